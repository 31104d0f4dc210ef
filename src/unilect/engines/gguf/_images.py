"""
The number of pixels that an image claims to have, read before it is decoded.

A file of some kilobytes may claim billions, and a decoder allocates memory for them.

Source: https://www.w3.org/TR/png-3/#11IHDR, https://www.w3.org/Graphics/GIF/spec-gif89a.txt, https://www.w3.org/Graphics/JPEG/itu-t81.pdf
"""

import base64
import binascii
import struct
from collections.abc import Callable

from unilect.core.errors import InvalidRequest

MAX_PIXELS = 2**24  # 4096 x 4096
BROKEN = "`messages`: an image cannot be read. Send a PNG, JPEG, GIF or BMP file that is whole."
_HEAD_CHARACTERS = 64  # of base64: 48 bytes
_MAX_SEGMENTS = 1000  # of a JPEG before its size; programs write some ten


def check_image(url: str) -> None:
    """
    Refuse an image that is too large, or of no kind that is decoded.

    Args:
        url: A `data:` URL.

    Raises:
        InvalidRequest: It is so.
    """
    text = url.partition(",")[2]
    head = _decode(text[:_HEAD_CHARACTERS])
    try:
        read = next(read for begin, read in _KINDS.items() if head.startswith(begin))
        width, height = read(_decode(text) if read is _of_jpeg else head)
    except (StopIteration, struct.error) as error:
        raise InvalidRequest(BROKEN, param="messages") from error
    if width * height > MAX_PIXELS:
        raise InvalidRequest(
            f"`messages`: an image has {width} x {height} pixels; the maximum is {MAX_PIXELS}. Send a smaller one.",
            param="messages",
        )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(BROKEN, param="messages") from error


def _of_png(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _of_gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _of_bmp(data: bytes) -> tuple[int, int]:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if size == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # a negative height says that the rows come from the top


def _of_jpeg(data: bytes) -> tuple[int, int]:
    """Return the size in the first frame header; errors as `struct`, where there is none."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", data, at)
        if mark == 0xFF and kind == 0xFF:  # a byte of padding
            at += 1
        elif mark == 0xFF and 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + length
    raise struct.error("no frame header")


_KINDS: dict[bytes, Callable[[bytes], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": _of_png,
    b"GIF8": _of_gif,
    b"BM": _of_bmp,
    b"\xff\xd8\xff": _of_jpeg,
}
