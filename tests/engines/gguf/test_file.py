"""Tests of unilect.engines.gguf._file."""

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.api.backend import Description
from unilect.demo import MODEL
from unilect.engines.gguf._file import GgufHead, model_files, read_head

U32, STRING, ARRAY = 4, 8, 9


def text(value: str | bytes) -> bytes:
    """A text as GGUF writes it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def field(name: str, kind: int, value: bytes) -> bytes:
    """A field of the metadata."""
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), offset: int = 0) -> bytes:
    """The description of a tensor."""
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", 0, offset)


def gguf(
    fields: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"\0" * 64,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    magic: bytes = b"GGUF",
) -> bytes:
    """A GGUF file."""
    fields, tensors = fields or [], tensors or []
    n_tensors, n_fields = counts or (len(tensors), len(fields))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_fields)
    head += b"".join(fields) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A place for a file."""
    return tmp_path / "x.gguf"


ARCHITECTURE = field("general.architecture", STRING, text("llama"))
CONTEXT = field("llama.context_length", U32, struct.pack("<I", 512))


def test_the_bundled_model() -> None:
    """The head of the bundled model is read."""
    head = read_head(MODEL)

    assert ("llama", MODEL.stat().st_size) == (head.architecture, head.size_bytes)
    assert (False, False) == (head.embedding_only, head.pooling)
    assert head.context >= 512


def test_fields(path: Path) -> None:
    """Fields of every type are read, and long arrays are skipped over."""
    values = [
        ("u8", 0, struct.pack("<B", 7), 7),
        ("i8", 1, struct.pack("<b", -7), -7),
        ("u16", 2, struct.pack("<H", 7), 7),
        ("i16", 3, struct.pack("<h", -7), -7),
        ("u32", 4, struct.pack("<I", 7), 7),
        ("i32", 5, struct.pack("<i", -7), -7),
        ("f32", 6, struct.pack("<f", 0.5), 0.5),
        ("bool", 7, b"\1", True),
        ("text", 8, text("é中"), "é中"),
        ("broken text", 8, text(b"\xff"), "�"),
        ("u64", 10, struct.pack("<Q", 2**63), 2**63),
        ("i64", 11, struct.pack("<q", -7), -7),
        ("f64", 12, struct.pack("<d", 0.5), 0.5),
        ("numbers", 9, struct.pack("<IQ2i", 5, 2, 1, -1), [1, -1]),
        ("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b"), ["a", "b"]),
        ("many numbers", 9, struct.pack("<IQ", 0, 1000) + b"x" * 1000, None),
        ("many texts", 9, struct.pack("<IQ", 8, 1000) + text("a") * 1000, None),
    ]
    path.write_bytes(gguf([field(name, kind, data) for name, kind, data, _ in values]))

    assert {name: value for name, _, _, value in values} == read_head(path).fields


@pytest.mark.parametrize("at", [0, 199, 200, 1234, 2099])
@pytest.mark.parametrize("others", ["", "x", "<|fim_", "\0" * 8, "x" * 63, "x" * 64, "x" * 300])
def test_the_marks_of_a_vocabulary(path: Path, others: str, at: int) -> None:
    """Marks are found wherever they stand among tokens of any length, and the field behind them is read."""
    texts = [others if number % 3 else f"<{number}" for number in range(2100)]
    texts[at] = texts[-1] = "<|fim_prefix|>"
    vocabulary = struct.pack("<IQ", STRING, len(texts)) + b"".join(map(text, texts))
    path.write_bytes(gguf([field("tokens", ARRAY, vocabulary), ARCHITECTURE]))
    head = read_head(path)

    assert ({b"<|fim_prefix|>": at}, "llama") == (head.marks, head.architecture)


@pytest.mark.parametrize("version", [2, 3])
def test_a_small_model(path: Path, version: int) -> None:
    """A sound file of either version is taken."""
    path.write_bytes(gguf([ARCHITECTURE, CONTEXT], [tensor(offset=32)], version=version))

    assert ("llama", 512) == (read_head(path).architecture, read_head(path).context)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("", 2048, False, False)),
        ({"general.architecture": "llama"}, ("llama", 2048, False, False)),
        ({"general.architecture": "llama", "llama.context_length": "x"}, ("llama", 2048, False, False)),
        ({"general.architecture": "llama", "llama.context_length": 0}, ("llama", 2048, False, False)),
        ({"general.architecture": "bert", "bert.pooling_type": 1}, ("bert", 2048, True, True)),
        ({"general.architecture": "bert", "bert.pooling_type": 0}, ("bert", 2048, True, False)),
    ],
)  # fmt: skip
def test_what_a_head_says(fields: dict[str, object], expected: tuple[object, ...]) -> None:
    """What the fields do not say, or say wrongly, has a default."""
    head = GgufHead(fields, 0)

    assert expected == (head.architecture, head.context, head.embedding_only, head.pooling)


LIE = struct.pack("<Q", 2**62)
BROKEN = [
    ("empty", b""),
    ("short", b"GGUF" + b"\0" * 19),
    ("other magic", gguf(magic=b"GGML")),
    ("text", b"hello, " * 100),
    ("HTML", b"<!doctype html>" + b" " * 100),
    ("version 1", gguf(version=1)),
    ("version 4", gguf(version=4)),
    ("big-endian", gguf(version=0x03000000)),
    ("many tensors", gguf(counts=(2**40, 0))),
    (
        "many layers",
        gguf([ARCHITECTURE, field("llama.block_count", U32, struct.pack("<I", 2**31))]),
    ),
    (
        "layers in a list",
        gguf(
            [ARCHITECTURE, field("llama.block_count", ARRAY, struct.pack("<IQQ", 10, 1, 3 * 10**7))]
        ),
    ),
    (
        "layers without an architecture",
        gguf([field(".block_count", 10, struct.pack("<Q", 3 * 10**7))]),
    ),
    ("many fields", gguf(counts=(0, 2**40))),
    ("more fields than there are", gguf([ARCHITECTURE], counts=(0, 50))),
    ("long name", gguf([LIE + b"x"], data=b"")),
    ("long text", gguf([text("a") + struct.pack("<I", STRING) + LIE])),
    ("unknown type", gguf([field("a", 13, b"\0" * 8)])),
    ("huge type", gguf([field("a", 2**31, b"\0" * 8)])),
    ("long numbers", gguf([field("a", ARRAY, struct.pack("<I", 4) + LIE)])),
    ("long texts", gguf([field("a", ARRAY, struct.pack("<I", 8) + LIE)])),
    ("many empty texts", gguf([field("a", ARRAY, struct.pack("<IQ", 8, 2**20))])),
    (
        "a text that is too long among many",
        gguf(
            [
                field(
                    "a",
                    ARRAY,
                    struct.pack("<IQ", 8, 1000) + text("a") * 700 + LIE + text("a") * 299,
                )
            ]
        ),
    ),
    ("nested arrays", gguf([field("a", ARRAY, struct.pack("<IQ", 9, 1) * 50)])),
    ("unknown elements", gguf([field("a", ARRAY, struct.pack("<IQ", 99, 1))])),
    ("five dimensions", gguf(tensors=[tensor(shape=(1, 1, 1, 1, 1))])),
    ("no size", gguf(tensors=[tensor(shape=(0,))])),
    ("huge size", gguf(tensors=[tensor(shape=(2**63,))])),
    ("tensor beyond the end", gguf(tensors=[tensor(offset=2**20)])),
    ("no data", gguf(tensors=[tensor()], data=b"")),
    ("alignment 0", gguf([field("general.alignment", U32, b"\0\0\0\0")], [tensor()])),
    ("alignment text", gguf([field("general.alignment", STRING, text("x"))], [tensor()])),
]


@pytest.mark.parametrize(("name", "data"), BROKEN)
def test_broken_files(path: Path, name: str, data: bytes) -> None:
    """A broken or hostile file is refused with one sentence that names it."""
    path.write_bytes(data)
    with pytest.raises(ValueError) as raised:
        read_head(path)

    assert str(path) in str(raised.value)
    assert str(raised.value).endswith(".")


def test_a_model_in_several_files(tmp_path: Path) -> None:
    """Its size is that of all files, up to the first that is missing, however many its name claims; a later one stands for itself."""
    names = [tmp_path / f"m-0000{number}-of-99999.gguf" for number in (1, 2, 3, 5)]
    for number, name in enumerate(names):
        name.write_bytes(gguf(data=b"\0" * 64 * (number + 1)))
    sizes = [name.stat().st_size for name in names]

    assert names[:3] == model_files(names[0])
    assert names[1:2] == model_files(names[1])
    assert sum(sizes[:3]) == read_head(names[0]).size_bytes
    assert sizes[1] == read_head(names[1]).size_bytes


def test_no_file(path: Path) -> None:
    """A file that does not exist is refused with a sentence."""
    with pytest.raises(ValueError, match="There is no file"):
        read_head(path)


def test_a_folder(tmp_path: Path) -> None:
    """A folder is refused with a sentence."""
    with pytest.raises(ValueError, match="folder"):
        read_head(tmp_path)


def test_a_name_beyond_any_file() -> None:
    """A name that no file can have is refused with a sentence."""
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(ValueError):
            read_head(Path(name))


# The bundled model's head, mutated


HEAD = MODEL.read_bytes()[:200_000]  # reaches beyond the descriptions of the tensors
SIZE = MODEL.stat().st_size


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the bundled model's size with its head, whose data are holes."""
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def refused_or_taken(path: Path, head: bytes, size: int) -> None:
    """Read a file with this head and size; only a ValueError may be raised."""
    with path.open("r+b") as file:
        file.write(head)
        file.truncate(size)
    with suppress(ValueError):
        read_head(path)


@given(size=st.integers(0, SIZE // 2))
def test_cut_files(sparse: Path, size: int) -> None:
    """The bundled model cut anywhere before its last tensor is refused."""
    with sparse.open("r+b") as file:
        file.write(HEAD)
        file.truncate(size)

    with pytest.raises(ValueError):
        read_head(sparse)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    )
)
def test_changed_heads(sparse: Path, changes: list[tuple[int, bytes]]) -> None:
    """The bundled model with any bytes of its head changed is refused or taken, and soon."""
    head = bytearray(HEAD)
    for at, data in changes:
        head[at : at + len(data)] = data

    refused_or_taken(sparse, bytes(head), SIZE)


@given(at=st.integers(0, 3000), size=st.integers(1, 64))
def test_heads_with_a_piece_left_out(sparse: Path, at: int, size: int) -> None:
    """The bundled model without a piece of its head is refused or taken, and soon."""
    refused_or_taken(sparse, HEAD[:at] + HEAD[at + size :], SIZE)


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic(sparse: Path, data: bytes) -> None:
    """Any bytes after a sound beginning are refused or taken, and soon."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 3, 3) + data

    refused_or_taken(sparse, head + b"\0" * 64, len(head) + 64)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"general.architecture": "llama", "general.file_type": 15, "llama.context_length": 8, "llama.embedding_length": 4}, Description("llama", 7, "Q4_K_M", 8, "gguf", 9, 4)),
        ({"general.file_type": [1], "general.architecture": ""}, Description(None, 7, format="gguf", size_bytes=9)),
        ({"general.architecture": "x", "general.file_type": 999, "x.context_length": "many", "x.embedding_length": "wide"}, Description("x", 7, format="gguf", size_bytes=9)),
    ],
)  # fmt: skip
def test_what_the_model_is(fields: dict[str, Any], expected: Description) -> None:
    """What a file says of its model is told; what is no such thing is not."""
    assert expected == GgufHead(fields, 9, 7).description
