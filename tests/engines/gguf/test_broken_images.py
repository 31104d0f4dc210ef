"""Images that are none, or are broken, through llama.cpp's own decoder: a tiny model with an encoder of images reads them."""

import base64
import json
import random
import struct
import zlib
from collections.abc import Iterator

import pytest
from attack import Attacker, Request, Target, assert_sound

from support.models import tiny_gguf
from support.servers.serving import KEY, serve
from unilect.engines.gguf._images import BROKEN, MAX_PIXELS

COUNT = 200


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 20, height: int = 20, kind: int = 2, rows: int | None = None) -> bytes:
    """A PNG file; `rows` are those that it has."""
    row = b"\0" + bytes(width * 3 % 256 for _ in range(min(width, 20_000) * 3))
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    data = zlib.compress(row * (height if rows is None else rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bmp(width: int = 8, height: int = 8) -> bytes:
    """A BMP file of 24 bits."""
    data = bytes(range(192))
    return b"BM" + struct.pack("<IIIIiiHHIIiiII", 54 + len(data), 0, 54, 40, width, height, 1, 24, 0, len(data), 0, 0, 0, 0) + data  # fmt: skip


def gif(width: int = 1, height: int = 1) -> bytes:
    """A GIF file of one pixel, which may say that it is larger."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0" + struct.pack("<HH", width, height) + b"\0\x02\x02D\x01\0;"  # fmt: skip


def jpeg(width: int, height: int) -> bytes:
    """The head of a JPEG file, without tables and pixels."""
    return b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\3\1\x22\0\2\x11\1\3\x11\1\xff\xda\0\x0c\3\1\0\2\x11\3\x11\0\x3f\0" + b"\xaa" * 40  # fmt: skip


SOUND = {"png": png(), "bmp": bmp(), "gif": gif()}
#: What says that it is more than it is, and what is no picture.
MADE = [
    b"", b"\0", b"a" * 1000, b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"\xff\xd8\xff", b"RIFF\x10\0\0\0WEBPVP8 ", b"P6 4 4 255 ",
    b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"#?RADIANCE\n", b"8BPS\0\1", b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0", b"ID3\4\0\0\0\0\0\0",
    png(0, 0), png(1, 0), png(2**31 - 1, 1, rows=1), png(2**24, 2**24, rows=1), png(30_000, 30_000, rows=1), png(20, 20, kind=3), png(20, 20, kind=9),
    png(20, 20, rows=1), png(4097, 4097, rows=1), png(60_000, 1_000, rows=1),
    bmp(2**31 - 1, 2**31 - 1), bmp(-1, 8), bmp(8, -(2**31)), bmp(30_000, 30_000), gif(65_535, 65_535), gif(0, 0),
    jpeg(65_535, 65_535), jpeg(0, 0), jpeg(16, 16),
]  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server of a model that reads images, which has answered for one."""
    folder = tmp_path_factory.mktemp("vision")
    model = tiny_gguf.make(folder / "m.gguf")
    projector = tiny_gguf.make_projector(folder / "p.gguf")
    config = f'api_keys = ["{KEY}"]\n[models.v]\nsource = "{model}"\nmmproj = "{projector}"\n'
    with serve(config=config) as server, Attacker(server) as attacker:
        replies = attacker.send([asked(data) for data in SOUND.values()])
        assert [200] * len(SOUND) == [reply.status for reply in replies], replies
        yield Target(server, attacker)


def asked(data: bytes) -> Request:
    """A chat with an image."""
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    return Request("/v1/chat/completions", json.dumps(body).encode())


def broken() -> list[bytes]:
    """200 of them, the same in every run."""
    chance, found = random.Random(7), list(MADE)
    for number in range(COUNT - len(MADE)):
        data = bytearray(chance.choice(list(SOUND.values())))
        if number % 2:
            del data[chance.randrange(len(data)) :]
        else:
            for _ in range(chance.randint(1, 12)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        found.append(bytes(data))
    return found


@pytest.mark.heavy
def test_broken_images(target: Target) -> None:
    """Of 200 broken images each is refused with a text of ours, or read where its fault harms nobody; the engine stays."""
    refused = 0
    for data in broken():
        request = asked(data)
        [reply] = target.attacker.send([request])
        assert_sound(reply, request)
        assert reply.status in (200, 400), (data[:80], reply)
        if reply.status == 400:
            refused += 1
            told = reply.error["message"]
            assert told == BROKEN or f"the maximum is {MAX_PIXELS}" in told, (data[:80], reply)
            assert "messages" == reply.error["param"]
    target.look()
    print(f"{refused} of {COUNT} were refused")
    assert refused > COUNT / 2


@pytest.mark.parametrize("text", ["", "A", "!!!!", "AAAA====", "\\u0000", "data:", "A" * 1_000_001])
def test_what_is_no_base64(target: Target, text: str) -> None:
    """An image whose base64 is none is refused with the same text."""
    request = asked(b"")
    body = request.body.replace(b"base64,", b"base64," + text.encode())
    [reply] = target.attacker.send([Request(request.path, body)])

    assert 400 == reply.status
    assert BROKEN == reply.error["message"]
    target.look()
