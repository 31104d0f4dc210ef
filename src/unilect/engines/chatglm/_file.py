"""
Reads and validates the header of a chatglm.cpp model file (GGML) before the library does, which would read beyond its end.

Source: https://github.com/li-plus/chatglm.cpp/blob/main/chatglm_cpp/convert.py
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from msgspec import Struct

from unilect.core.file_errors import unreadable

Family: TypeAlias = Literal["ChatGLM", "ChatGLM2", "ChatGLM3", "ChatGLM4"]
MAX_TENSORS = 100_000
_ALIGNMENT = 16
#: The number in a file -> the family of models.
_FAMILIES: dict[int, Family] = {1: "ChatGLM", 2: "ChatGLM2", 3: "ChatGLM3", 4: "ChatGLM4"}
_OTHERS = {1004: "GLM-4V", 1024: "Baichuan", 1280: "InternLM"}
#: ggml's number of a type -> numbers in a block, and the block's bytes.
_TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)}


class _Layout(Struct, frozen=True):
    """The layout of one version of the head: how many numbers it has, and the indices of the vocabulary's size and the context."""

    numbers: int
    vocabulary: int
    context: int


_V1, _V1_GROUPED, _V2 = _Layout(11, 1, 6), _Layout(12, 1, 6), _Layout(13, 1, 10)


class ChatglmHead(Struct, frozen=True):
    """
    The fields of a file's head.

    Attributes:
        family: The generation of ChatGLM.
        vocabulary: The number of token ids.
        context: The longest prompt and answer together, in tokens, that the file allows.
    """

    family: Family
    vocabulary: int
    context: int


class _Damaged(Exception):
    """The file contradicts itself."""


def read_head(path: Path) -> ChatglmHead:
    """
    Read and check a file.

    Raises:
        ValueError: It is missing, cannot be read, or is no valid model file. The message is one sentence.
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; convert the model once with `python -m chatglm_cpp.convert -i {path} -t q4_0 -o model.bin`."
        )
    try:
        with path.open("rb") as file:
            return _head(file, path.stat().st_size)
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {path}. Check the path.") from error
    except OSError as error:
        raise ValueError(unreadable(error)) from error
    except (struct.error, OverflowError) as error:
        raise ValueError(
            f"{path} is no valid chatglm.cpp file: it is cut off. Fetch it again."
        ) from error
    except _Damaged as error:
        raise ValueError(
            f"{path} is no valid chatglm.cpp file: {error}. Fetch or convert it again."
        ) from error


def _head(file: BinaryIO, size: int) -> ChatglmHead:
    if file.read(4) != b"ggml":
        raise _Damaged("it does not begin with `ggml`")
    kind, version = _numbers(file, 2)
    if kind in _OTHERS:
        raise _Damaged(f"it holds a {_OTHERS[kind]} model, which chatglm-cpp 0.4 cannot run here")
    family = _FAMILIES.get(kind)
    layouts = {1: _V1 if kind == 1 else _V1_GROUPED, 2: _V2}
    if family is None or version not in layouts or (family == "ChatGLM4" and version == 1):
        raise _Damaged(f"model kind {kind} with version {version} is not supported")
    layout = layouts[version]
    numbers = _numbers(file, layout.numbers)
    vocabulary, context = numbers[layout.vocabulary], numbers[layout.context]
    if not (1 <= vocabulary <= 10_000_000 and 16 <= context <= 100_000_000):
        raise _Damaged(f"it claims {vocabulary} token ids and a context of {context}")
    _skip(file, size, _numbers(file, 1)[0])  # the tokenizer
    _check_tensors(file, size)
    return ChatglmHead(family, vocabulary, context)


def _check_tensors(file: BinaryIO, size: int) -> None:
    for count in range(MAX_TENSORS):
        if file.tell() >= size:
            if count == 0:
                raise _Damaged("it is cut off: it holds no tensors")
            return
        _skip(file, size, _numbers(file, 1)[0])  # the name
        (dimensions,) = _numbers(file, 1)
        if not 1 <= dimensions <= 4:
            raise _Damaged(f"a tensor has {dimensions} dimensions")
        *lengths, kind = _numbers(file, dimensions + 1)
        elements = 1
        for length in lengths:
            elements *= length
        if kind not in _TYPES or not all(1 <= length <= 2**31 for length in lengths):
            raise _Damaged("a tensor's size or type makes no sense")
        block, block_bytes = _TYPES[kind]
        _skip(file, size, -file.tell() % _ALIGNMENT)
        _skip(file, size, elements // block * block_bytes)
    raise _Damaged(f"it claims more than {MAX_TENSORS} tensors")


def _numbers(file: BinaryIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", file.read(4 * count))


def _skip(file: BinaryIO, size: int, length: int) -> None:
    """
    Go on by so many bytes.

    Raises:
        _Damaged: They are not there.
    """
    if length < 0 or file.tell() + length > size:
        raise _Damaged("it is cut off: it ends in the middle of a part")
    file.seek(length, os.SEEK_CUR)
