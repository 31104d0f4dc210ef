"""
Reads and validates the header of a GGUF file before llama.cpp does: a broken or hostile file is refused with a reason.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from unilect.api.backend import Description
from unilect.api.parameters.support import names
from unilect.core.errors import BackendUnavailable, join_names
from unilect.core.file_errors import unreadable
from unilect.engines.gguf._infill import MARK_TEXTS, FillIn, fill_in_of
from unilect.engines.gguf._quantization import name_quantization

MAX_TENSORS = 100_000
MAX_FIELDS = 100_000
MAX_LAYERS = 4096  # llama.cpp takes 512; the memory of each is reckoned before it is asked
MAX_STRING_BYTES = 64 * 1024 * 1024
MAX_DIMENSIONS = 4
_NUMBERS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# numbers for each layer; longer arrays (vocabularies) are skipped over; nobody here reads them
_KEPT_NUMBERS, _KEPT_TEXTS = 512, 64
_EMBEDDING_ONLY = names("bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 modern-bert")
_FORMS = {code: struct.Struct("<" + code) for code in _NUMBERS.values()}
_LENGTH = _FORMS["Q"]  # of a text
_TENSORS = [struct.Struct(f"<{count}QIQ") for count in range(MAX_DIMENSIONS + 1)]
_MARK_SIZES = frozenset(map(len, MARK_TEXTS))
_MARK_ENDS = sorted({text.partition(b"<")[2] for text in MARK_TEXTS})
_ANY_MARK = re.compile(b"<(?:%s)" % b"|".join(map(re.escape, _MARK_ENDS)))
#: So many texts go at once, where each is shorter than `_SHORT`: a regular expression is five times as quick as a loop.
_AT_ONCE, _SHORT = 200, 64
_LENGTHS = sorted(range(_SHORT), key=lambda size: abs(size - 5))  # the commonest come first
_TEXTS = (b"%s\0{7}.{%d}" % (re.escape(bytes([size])), size) for size in _LENGTHS)
_SHORT_TEXTS = re.compile(b"(?s:(?>%s)){%d}+" % (b"|".join(_TEXTS), _AT_ONCE))
_ROWS = 8  # that many are put together
#: So many heads are read once: a folder's models are looked at before each is served, and each by its projector and its draft, too.
_READ = 10_000
_LFS = b"version https://git-lfs"
_LIBRARY = "xllamacpp"

#: The first file of a model that is split into several, as llama.cpp names them.
_SPLIT = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)
_POOLING_RANK = 4
#: The tensors of which llama.cpp makes a score.
_CLASSIFIERS = frozenset({b"cls.weight", b"cls.output.weight"})


class GgufHead(Struct, frozen=True, dict=True, eq=False):
    """
    The fields of a GGUF file's head; two of the same file are not equal, which makes it a key of what is reckoned of it.

    Attributes:
        fields: The metadata, without long arrays.
        parameters: The numbers in all of its tensors.
        size_bytes: The size of the file, and of those that it is split into.
        marks: The ids of tokens by their texts, of those that may be fill-in-the-middle tokens.
        classifies: It has layers that make a score of a text.
        vocabulary: The number of its tokens.
        matrices: The number of weights by type, of those that may be repacked.
    """

    fields: dict[str, Any]
    size_bytes: int
    parameters: int = 0
    marks: dict[bytes, int] = {}
    classifies: bool = False
    vocabulary: int = 0
    matrices: dict[int, int] = {}

    @cached_property
    def architecture(self) -> str:
        """llama.cpp's name for the kind of network."""
        return _architecture(self.fields)

    @property
    def context(self) -> int:
        """The context that the model was trained with, in tokens; 2048 where the file does not say."""
        value = self.fields.get(f"{self.architecture}.context_length")
        return value if isinstance(value, int) and value > 0 else 2048

    @property
    def description(self) -> Description:
        """The description of the model, from the metadata."""
        told = self.fields.get
        context = told(f"{self.architecture}.context_length")
        context = context if isinstance(context, int) else None
        kind = name_quantization(told("general.file_type"), self.matrices)
        width = told(f"{self.architecture}.embedding_length")
        return Description(
            self.architecture or None,
            self.parameters,
            kind,
            context,
            "gguf",
            self.size_bytes,
            width if isinstance(width, int) else None,
        )

    @property
    def fill_in(self) -> FillIn | None:
        """The fill-in-the-middle tokens; None where the model has none."""
        return fill_in_of(self.fields, self.marks)

    @property
    def template(self) -> str:
        """The chat template; empty where the file has none."""
        return str(self.fields.get("tokenizer.chat_template") or "")

    @property
    def templates(self) -> list[str]:
        """All templates of which llama.cpp uses one: the default, and the one for tools."""
        names = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
        return [str(text) for name in names if (text := self.fields.get(name))]

    @property
    def kind(self) -> str:
        """The kind of the file: `model`, `adapter` or `mmproj`."""
        if self.architecture == "clip":
            return "mmproj"
        return str(self.fields.get("general.type") or "model")

    @property
    def embedding_only(self) -> bool:
        """True for a model that makes embeddings and no text."""
        return self.architecture in _EMBEDDING_ONLY

    @property
    def pooling(self) -> bool:
        """True where the model says itself how its embeddings are pooled."""
        return bool(self.fields.get(f"{self.architecture}.pooling_type"))

    @property
    def ranks(self) -> bool:
        """True for a reranker, which scores a text for a question and makes no vector of it."""
        return self.fields.get(f"{self.architecture}.pooling_type") == _POOLING_RANK


def read_head(path: Path, whole_bytes: int = 0) -> GgufHead:
    """
    Read and check the head of a file.

    Args:
        whole_bytes: The size of the file, of which there is only the beginning; 0 where all of it is there.

    Raises:
        ValueError: The file is missing, cannot be read, or is no valid GGUF file. The message is one sentence.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a GGUF file.{_files_in(path)}")
        state = path.stat()
        if state.st_size < 24:
            raise ValueError(
                f"{path} is not a GGUF file: it has {state.st_size} bytes. Fetch it again; a download may have been cut off."
            )
        rest = sum(part.stat().st_size for part in model_files(path)[1:])
        return _read_whole(path, state.st_ctime_ns, whole_bytes or state.st_size, rest)
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {path}. Check the path.") from error
    except OSError as error:
        raise ValueError(unreadable(error)) from error
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(
            f"{path} is not a valid GGUF file: its header is cut off or damaged. Fetch it again."
        ) from error
    except _Damaged as error:
        raise ValueError(f"{path} is not a valid GGUF file: {error}. Fetch it again.") from error


@lru_cache(maxsize=_READ)
def _read_whole(path: Path, changed_ns: int, size: int, rest: int) -> GgufHead:
    """Read the head of a file that, or whose permissions, changed then last; `rest` are the bytes of those that it is split into."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data, size)
        return GgufHead(
            reader.head(),
            size + rest,
            reader.parameters,
            reader.marks,
            reader.classifies,
            reader.vocabulary,
            reader.matrices,
        )


def model_files(path: Path) -> list[Path]:
    """Return the files of a model that is named by its first; of several those before the first that is missing, without which nobody can load it."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    names = (f"{match[1]}-{number:05}-of-{match[2]}.gguf" for number in range(2, int(match[2]) + 1))
    return [path, *takewhile(Path.is_file, map(path.with_name, names))]


def read_model(path: Path) -> GgufHead:
    """
    Return the head of a model.

    Raises:
        ValueError: As in `read_head`, or it is a file that only goes with a model.
    """
    head = read_head(path)
    if head.kind == "adapter":
        raise ValueError(
            f"{path} is a LoRA adapter, not a model. Set its base model as the source, and the adapter as `lora`."
        )
    if head.kind == "mmproj":
        raise ValueError(
            f"{path} is the projector of a vision model, not a model. Set its model as the source, and the projector "
            "as `mmproj`."
        )
    return head


def check_adapter(path: Path) -> None:
    """
    Raises:
        ValueError: The file is no LoRA adapter for a GGUF model.
    """
    if (path / "adapter_config.json").exists():
        raise ValueError(
            f"lora: {path} is an adapter of peft, and this model is a GGUF file. Convert it with llama.cpp's "
            "convert_lora_to_gguf.py, and name the GGUF file that it writes."
        )
    try:
        kind = read_head(path).kind
    except ValueError as error:
        raise ValueError(f"lora: {error}") from error
    if kind != "adapter":
        raise ValueError(
            f"lora: {path} is a GGUF file, and no LoRA adapter. Name the adapter that belongs to the model."
        )


def check_projector(path: Path) -> None:
    """
    Raises:
        ValueError: The file is no projector of a vision model.
    """
    try:
        head = read_head(path)
    except ValueError as error:
        raise ValueError(f"mmproj: {error}") from error
    if head.kind != "mmproj":
        what = "a LoRA adapter" if head.kind == "adapter" else f"a model ({head.architecture[:50]})"
        raise ValueError(
            f"mmproj: {path} is {what}, and no projector. Name the projector that belongs to the vision model, mostly mmproj-....gguf; "
            "a model that reads text only has none."
        )


@contextmanager
def load_failure(path: Path, head: GgufHead) -> Iterator[None]:
    """The failed load of a model whose file is gone, or that the installed llama.cpp does not know, with what can be done about it."""
    try:
        yield
    except BackendUnavailable as error:
        if not path.exists():
            raise BackendUnavailable(
                "The model's file is no longer on its server.",
                reason=f"There is no file {path} any more. Put it back, or fetch it with `unilect pull` again.",
            ) from error
        if "unknown model architecture" not in error.message:
            raise
        raise BackendUnavailable(
            f"{path} has the architecture `{head.architecture[:50]}`, which the installed llama.cpp does not know "
            f"({_LIBRARY} {version(_LIBRARY)}). Install a newer one with `pip install -U {_LIBRARY}`, or serve the file "
            "from a newer llama-server and name that as the source: http://127.0.0.1:8080/v1.",
            retry_after_s=error.retry_after_s,
        ) from error


def _files_in(folder: Path) -> str:
    files = sorted(str(file) for file in folder.glob("*.gguf"))
    return (
        f" Name one of its files: {join_names(files, 5)}." if files else " It holds no GGUF file."
    )


def _architecture(fields: dict[str, Any]) -> str:
    return str(fields.get("general.architecture", ""))


class _Damaged(Exception):
    """The head contradicts itself."""


def _likeness(begin: bytes) -> str:
    """Name the kind of a file that is not a GGUF file, as a clause with what to do; empty where it is not known."""
    if begin.startswith(_LFS):
        return ", for it is a pointer of git LFS; run `git lfs pull` in its repository"
    if begin.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return ", for it is a web page; download the file itself (`resolve` instead of `blob` in the hub's addresses)"
    return ""


class _Reader:
    """Reads the head of one file from a mapping of it."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._at = self.parameters = self.vocabulary = 0
        self.matrices: dict[int, int] = {}
        self.marks: dict[bytes, int] = {}
        self.classifies = self._has_output = False
        self._embeddings = 0, 0  # type and number

    def head(self) -> dict[str, Any]:
        if self._data[:4] != b"GGUF":
            raise _Damaged(f"it does not begin with `GGUF`{_likeness(self._data[:64])}")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise _Damaged(f"its version is {version}, and 2 or 3 were expected")
        tensors, count = self._number("Q"), self._number("Q")
        if tensors > MAX_TENSORS or count > MAX_FIELDS:
            raise _Damaged(f"it claims {tensors} tensors and {count} fields")
        fields = {}
        for _ in range(count):
            name = self._string()
            fields[name] = self._value(self._number("I"))
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            raise _Damaged("its alignment is invalid")
        layers = fields.get(f"{_architecture(fields)}.block_count", 0)
        if not (isinstance(layers, int) and 0 <= layers <= MAX_LAYERS):
            raise _Damaged(f"its `block_count` is no number from 0 to {MAX_LAYERS}")
        self._check_tensors(tensors, alignment)
        if not self._has_output and fields.get("general.architecture") not in _EMBEDDING_ONLY:
            kind, weights = self._embeddings  # they are the output, too
            self.matrices[kind] = self.matrices.get(kind, 0) + weights
        return fields

    def _check_tensors(self, tensors: int, alignment: int) -> None:
        furthest = 0
        for _ in range(tensors):
            name = self._bytes()
            self.classifies = self.classifies or name in _CLASSIFIERS
            dimensions = self._number("I")
            if dimensions > MAX_DIMENSIONS:
                raise _Damaged(f"a tensor has {dimensions} dimensions")
            *sizes, kind, offset = self._unpack(_TENSORS[dimensions])
            if not all(1 <= size <= 2**40 for size in sizes):
                raise _Damaged("a tensor's size makes no sense")
            self.parameters += prod(sizes)
            self._count(name, sizes, kind)
            furthest = max(furthest, offset)
        start = (self._at + alignment - 1) // alignment * alignment
        if tensors and start + furthest >= self._size:
            raise _Damaged("it is cut off: tensors are beyond its end")

    def _count(self, name: bytes, sizes: Sequence[int], kind: int) -> None:
        """Take note of a tensor's type and rows."""
        self._has_output = self._has_output or name == b"output.weight"
        if name == b"token_embd.weight":
            self.vocabulary = sizes[-1]
            self._embeddings = kind, prod(sizes)
        elif (len(sizes) == 2 or b"_exps." in name) and sizes[1:] and sizes[1] % _ROWS == 0:
            self.matrices[kind] = self.matrices.get(kind, 0) + prod(sizes)

    def _number(self, code: str) -> Any:
        (value,) = self._unpack(_FORMS[code])
        return value

    def _unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def _string(self) -> str:
        return self._bytes().decode("utf-8", "replace")

    def _bytes(self) -> bytes:
        size = self._number("Q")
        if size > MAX_STRING_BYTES or self._at + size > self._size:
            raise _Damaged("a string extends beyond its end")
        self._at += size
        return self._data[self._at - size : self._at]

    def _skip_texts(self, count: int) -> None:
        """Skip over many texts, such as those of a vocabulary, and take note of marks."""
        for first in range(0, count, _AT_ONCE):
            short = _SHORT_TEXTS.match(self._data, self._at) if count - first >= _AT_ONCE else None
            if short is None or _ANY_MARK.search(self._data, *short.span()):
                self._read_texts(first, min(_AT_ONCE, count - first))
            else:
                self._at = short.end()

    def _read_texts(self, first: int, count: int) -> None:
        """Skip over texts, and take note of those that are marks; `first` is the number of the first."""
        at, end, data, unpack = self._at, self._size, self._data, _LENGTH.unpack_from
        for number in range(first, first + count):
            (size,) = unpack(data, at)
            start, at = at + 8, at + 8 + size
            if at > end or size > MAX_STRING_BYTES:
                raise _Damaged("a string extends beyond its end")
            if size in _MARK_SIZES and (text := data[start:at]) in MARK_TEXTS:
                self.marks.setdefault(text, number)
        self._at = at

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        raise _Damaged(f"a field has the unknown type {kind}")

    def _array(self) -> Any:
        """Return the elements of an array; None for a long one, which is skipped over."""
        kind, count = self._number("I"), self._number("Q")
        if kind not in (*_NUMBERS, _STRING):
            raise _Damaged(f"an array has elements of the type {kind}")
        size = count * _FORMS[_NUMBERS.get(kind, "Q")].size  # a text begins with its length
        if self._at + size > self._size:
            raise _Damaged("an array reaches beyond its end")
        if kind == _STRING:
            if count <= _KEPT_TEXTS:
                return [self._string() for _ in range(count)]
            self._skip_texts(count)
            return None
        begin, self._at = self._at, self._at + size
        if count > _KEPT_NUMBERS:
            return None
        return list(struct.unpack_from(f"<{count}{_NUMBERS[kind]}", self._data, begin))
