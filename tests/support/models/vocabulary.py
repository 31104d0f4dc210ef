"""Texts cut into the pieces that the tokens of a real vocabulary make of them."""

import codecs
import re
import struct
from collections.abc import Iterator
from pathlib import Path

_TOKENS = b"tokenizer.ggml.tokens"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")
_MOST = 32  # bytes of a token that is looked for


def tokens_of(file: Path) -> frozenset[bytes]:
    """The tokens of a GGUF file, as the bytes that they stand for."""
    data = file.read_bytes()
    at = data.index(_TOKENS) + len(_TOKENS)
    kind, inner, count = struct.unpack_from("<IIQ", data, at)
    assert (9, 8) == (kind, inner)  # a list of texts
    at += 16
    texts = []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", data, at)
        texts.append(data[at + 8 : at + 8 + size].decode(errors="replace"))
        at += 8 + size
    to_bytes = _of_gpt2() if any("Ġ" in text for text in texts) else {"▁": 0x20}
    return frozenset(_bytes(text, to_bytes) for text in texts)


def _bytes(text: str, to_bytes: dict[str, int]) -> bytes:
    if (found := _BYTE.match(text)) is not None:
        return bytes([int(found[1], 16)])
    if len(to_bytes) > 1 and all(sign in to_bytes for sign in text):
        return bytes(to_bytes[sign] for sign in text)
    return text.replace("▁", " ").encode()


def _of_gpt2() -> dict[str, int]:
    """The signs that byte-level vocabularies write bytes as."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


def pieces_of(text: str, tokens: frozenset[bytes]) -> Iterator[str]:
    """The text of one token after the other, the longest first; a character may be there only with the last of its bytes."""
    raw, at, decoder = text.encode(), 0, codecs.getincrementaldecoder("utf-8")()
    while at < len(raw):
        size = next((n for n in range(_MOST, 1, -1) if raw[at : at + n] in tokens), 1)
        if piece := decoder.decode(raw[at : at + size]):
            yield piece
        at += size
