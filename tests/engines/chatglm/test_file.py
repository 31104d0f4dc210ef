"""Tests of unilect.engines.chatglm._file."""

import random
import struct
from pathlib import Path

import pytest

from support.models import tiny_chatglm
from unilect.engines.chatglm._file import ChatglmHead, read_head


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a sound model file."""
    path = tmp_path_factory.mktemp("model") / "model.bin"
    return tiny_chatglm.write(path, ["Hello"], context=256).read_bytes()


def test_head(tmp_path: Path) -> None:
    """The head tells the family, the vocabulary and the context."""
    for family, name in ((3, "ChatGLM3"), (2, "ChatGLM2")):
        head = read_head(
            tiny_chatglm.write(tmp_path / "m.bin", ["Hello"], context=256, family=family)
        )

        assert (name, 256) == (head.family, head.context)
        assert 300 < head.vocabulary < 500


def old(kind: int, numbers: int) -> bytes:
    """A file of the first version, without its tensors' names mattering."""
    fields = [0, 1000, 64, 2, 1, 32, 2048, *([1] * (numbers - 7))]
    tensor = struct.pack("<i1s3i", 1, b"t", 1, 4, 0)
    head = b"ggml" + struct.pack(f"<2i{numbers}i", kind, 1, *fields) + struct.pack("<i", 0)
    head += tensor
    return head + b"\0" * (-len(head) % 16) + b"\0" * 16


def test_heads_of_the_first_version(tmp_path: Path) -> None:
    """Files of the library's first version are read, too."""
    file = tmp_path / "m.bin"
    for kind, numbers, family in ((1, 11, "ChatGLM"), (2, 12, "ChatGLM2")):
        file.write_bytes(old(kind, numbers))

        assert ChatglmHead(family, 1000, 2048) == read_head(file)  # type: ignore[arg-type]


def test_a_file_that_is_cut_off(tmp_path: Path, sound: bytes) -> None:
    """Wherever a file is cut off, it is refused."""
    file = tmp_path / "m.bin"
    for length in (0, 3, 4, 11, 30, 64, 70, 3000, len(sound) // 2, len(sound) - 1):
        file.write_bytes(sound[:length])

        with pytest.raises(ValueError, match="no valid"):
            read_head(file)


def test_damaged_heads(tmp_path: Path, sound: bytes) -> None:
    """Whatever bytes the head is made of, it is read or refused in words."""
    file, dice = tmp_path / "m.bin", random.Random(0)
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(3):
            data[dice.randrange(72)] = dice.choice((0, 1, 127, 128, 255))
        file.write_bytes(data)
        try:
            read_head(file)
        except ValueError as error:
            assert str(error).startswith(str(file))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGUF" + bytes(100), "begin with `ggml`"),
        (b"ggml" + struct.pack("<2i", 1024, 1) + bytes(100), "Baichuan"),
        (b"ggml" + struct.pack("<2i", 1004, 2) + bytes(100), "GLM-4V"),
        (b"ggml" + struct.pack("<2i", 77, 2) + bytes(100), "77"),
        (b"ggml" + struct.pack("<2i", 3, 9) + bytes(100), "version 9"),
    ],
)
def test_other_files(data: bytes, said: str, tmp_path: Path) -> None:
    """A file of another kind is refused with what it is."""
    file = tmp_path / "m.bin"
    file.write_bytes(data)

    with pytest.raises(ValueError, match=said):
        read_head(file)


def test_no_file(tmp_path: Path) -> None:
    """A missing file is told, and for a folder how to convert it."""
    with pytest.raises(ValueError, match="There is no file"):
        read_head(tmp_path / "missing.bin")
    with pytest.raises(ValueError, match=r"chatglm_cpp\.convert"):
        read_head(tmp_path)
