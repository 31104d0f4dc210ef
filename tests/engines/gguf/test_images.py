"""Tests of unilect.engines.gguf._images: how large an image says that it is."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.core.errors import InvalidRequest
from unilect.engines.gguf._images import BROKEN, MAX_PIXELS, check_image

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def url(data: bytes) -> str:
    """A `data:` URL of bytes."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    """The head of a PNG file."""
    return PNG + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"


def gif(width: int, height: int) -> bytes:
    """The head of a GIF file."""
    return b"GIF89a" + struct.pack("<HH", width, height)


def bmp(width: int, height: int) -> bytes:
    """The head of a BMP file."""
    return b"BM" + bytes(12) + struct.pack("<Iii", 40, width, height)


def old_bmp(width: int, height: int) -> bytes:
    """The head of a BMP file of OS/2."""
    return b"BM" + bytes(12) + struct.pack("<IHH", 12, width, height)


def jpeg(width: int, height: int, before: bytes = b"") -> bytes:
    """The head of a JPEG file, with segments before its size."""
    size = struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8\xff\xe0\0\x04ab" + before + b"\xff\xff\xc2" + size


@pytest.mark.parametrize("head", [png, gif, bmp, old_bmp, jpeg])
def test_sizes(head: type[bytes]) -> None:
    """As many pixels as are allowed pass, and more are refused with their number, in every kind of file."""
    check_image(url(head(4096, 4096)))
    with pytest.raises(InvalidRequest, match=rf"4097 x 4096 pixels; the maximum is {MAX_PIXELS}"):
        check_image(url(head(4097, 4096)))


def test_rows_from_the_top() -> None:
    """A BMP file with a negative height has as many rows."""
    with pytest.raises(InvalidRequest, match="30000 x 30000"):
        check_image(url(bmp(30_000, -30_000)))


def test_a_far_size() -> None:
    """The size of a JPEG file is found behind a large profile, and not looked for without end."""
    profile = b"\xff\xe2\xff\xff" + bytes(65_533)
    check_image(url(jpeg(16, 16, profile * 20)))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        check_image(url(jpeg(16, 16, b"\xff\xe2\0\x02" * 1_000_000)))


@given(st.binary(max_size=200), st.sampled_from([b"", PNG, b"GIF89a", b"BM", b"\xff\xd8\xff\xe0"]))
def test_any_bytes(data: bytes, begin: bytes) -> None:
    """Whatever the bytes are, they pass or are refused."""
    try:
        check_image(url(begin + data))
    except InvalidRequest as error:
        assert error.message == BROKEN or "pixels" in error.message


@pytest.mark.parametrize(
    "text", ["data:image/png", "data:image/png;base64,", "data:image/png,%89PNG"]
)
def test_no_base64(text: str) -> None:
    """What is no base64 is refused."""
    with pytest.raises(InvalidRequest, match="cannot be read"):
        check_image(text)
