"""
Bounds on what a request may hold, counted before anything else is made of it.

A body is read as one piece, so the parser holds the event loop for as long as it works: some 50 ns for a number, half a
microsecond for a member of an object. Long texts cost it little, many small values cost it much, so the values are counted.
"""

import asyncio
from typing import Any

import msgspec

from unilect.errors import InvalidRequest

LARGE_BYTES = 512 * 1024  # a smaller body cannot hold so much that it takes longer than 50 ms
MAX_VALUES = 1_000_000  # /detokenize takes as many token ids
MAX_PARTS = 120_000  # texts, names, lists and objects; 65,536 prompts are as many texts
MAX_FIELDS = 256
MAX_NAME = 256
MAX_DEPTH = 32  # of a JSON schema or any other free-form part; deeper ones are bombs
MAX_NODES = 10_000  # of the same
_SLICE_BYTES = 128 * 1024


async def check_body(body: bytes) -> None:
    """
    Count the values of a large body in slices, and let others work between them; what stands in texts is not counted.

    Raises:
        InvalidRequest: There are too many.
    """
    values = marks = quotes = begin = 0
    within = False  # a text
    while begin < len(body):
        end = begin + _SLICE_BYTES
        piece = body[begin:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # a slice ends behind an escape
            piece, end = body[begin : end + 1], end + 1
        begin = end
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = piece.split(b'"')
        outside = b"".join(texts[within::2])
        quotes += len(texts) - 1
        marks += outside.count(b":") + outside.count(b"[") + outside.count(b"{")
        values += outside.count(b",")
        within = quotes % 2 == 1
        if marks + quotes // 2 > MAX_PARTS:
            raise InvalidRequest(
                f"The request's body holds more than {MAX_PARTS} texts, names, lists and objects; at most so many are "
                "read. Send less at a time."
            )
        if values > MAX_VALUES:
            raise InvalidRequest(
                f"The request's body holds more than {MAX_VALUES} values; at most so many are read. Send less at a time."
            )
        await asyncio.sleep(0)


def check_free_form(name: str, value: Any, max_bytes: int = 64 * 1024) -> None:
    """
    Bound a part of a request that has no fixed form: a schema, a tool's parameters.

    Raises:
        InvalidRequest: It is nested too deep, holds too many values, or is too large.
    """
    if nested(value, MAX_DEPTH):
        raise InvalidRequest(
            f"`{name}` is nested more than {MAX_DEPTH} levels deep; flatten it.", param=name
        )
    if (size := len(msgspec.json.encode(value))) > max_bytes:
        raise InvalidRequest(
            f"`{name}` has {size} bytes of JSON; at most {max_bytes} are read.", param=name
        )
    if (nodes := count_nodes(value)) > MAX_NODES:
        raise InvalidRequest(
            f"`{name}` holds {nodes} values; at most {MAX_NODES} are read.", param=name
        )


def nested(value: Any, levels: int) -> bool:
    """True when a decoded JSON value has more levels than this, counted without recursion and no further than needed."""
    level = [value]
    for _ in range(levels):
        level = _children(level)
        if not level:
            return False
    return True


def count_nodes(value: Any) -> int:
    """How many values a decoded JSON value holds, itself included; it is not nested without end."""
    nodes, level = 0, [value]
    while level:
        nodes += len(level)
        level = _children(level)
    return nodes


def _children(level: list[Any]) -> list[Any]:
    return [
        child
        for item in level
        if isinstance(item, dict | list)
        for child in (item.values() if isinstance(item, dict) else item)
    ]
