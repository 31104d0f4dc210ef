"""Heads of GGUF files that somebody has changed: a sound one in which bytes, numbers, texts and pieces are others; seeded."""

import random
import struct

#: Numbers at which readers go wrong: edges of types, counts that multiply to little or to much, signs.
EDGES = (0, 1, 2, 3, 7, 31, 32, 63, 255, 256, 2**15, 2**16, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
_MOST = 4


def changed(head: bytes, number: int) -> bytes:
    """A head with some changes, which are those of its number."""
    dice, data = random.Random(number), bytearray(head)
    for _ in range(dice.randint(1, _MOST)):
        # most of a head is its vocabulary: the counts, the fields before it and the tensors behind it get as many changes
        at = dice.choice((0, 0, len(data) - 2000)) if dice.random() < 0.7 else 0
        end = min(len(data), at + 2000) if dice.random() < 0.7 else len(data)
        place = dice.randrange(max(0, at), max(end, 24) - 8)
        dice.choice(_WAYS)(data, place, dice)
    return bytes(data)


def _bit(data: bytearray, at: int, dice: random.Random) -> None:
    data[at] ^= 1 << dice.randrange(8)


def _byte(data: bytearray, at: int, dice: random.Random) -> None:
    data[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))


def _number(data: bytearray, at: int, dice: random.Random) -> None:
    size = dice.choice((4, 8))
    data[at : at + size] = (dice.choice(EDGES) % 2 ** (8 * size)).to_bytes(size, "little")


def _more(data: bytearray, at: int, dice: random.Random) -> None:
    """A number that is there, a little larger or smaller, or many times as large."""
    (value,) = struct.unpack_from("<I", data, at)
    other = dice.choice((value + 1, value - 1, value * 2, value * 1000, -value)) % 2**32
    struct.pack_into("<I", data, at, other)


def _out(data: bytearray, at: int, dice: random.Random) -> None:
    del data[at : at + dice.choice((1, 4, 8, dice.randrange(1, 64)))]
    data += bytes(64)


def _twice(data: bytearray, at: int, dice: random.Random) -> None:
    piece = data[at : at + dice.choice((1, 4, 8, dice.randrange(1, 64)))]
    data[at:at] = piece


def _elsewhere(data: bytearray, at: int, dice: random.Random) -> None:
    """A piece of it in place of another one."""
    size, source = dice.randrange(1, 64), dice.randrange(len(data) - 64)
    data[at : at + size] = data[source : source + size]


def _text(data: bytearray, at: int, dice: random.Random) -> None:
    """Bytes that are no text, or one that means something."""
    texts = (b"\xff\xfe\x80", b"%s%n%d", b"{{", b"{%", b"\0\0\0", b"../../", b"\xf0\x9f\x98\x80")
    text = dice.choice(texts)
    data[at : at + len(text)] = text


_WAYS = (_bit, _byte, _number, _number, _more, _more, _out, _twice, _elsewhere, _text)
