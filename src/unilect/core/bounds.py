"""
Bounds on what a request may hold, counted before anything else is made of it.

A body is read as one piece, so the parser holds the event loop for as long as it works: some 50 ns for a number, half a
microsecond for a member of an object. Long texts cost it little, many small values cost it much, so the values are counted.
"""

import asyncio
import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from unilect.core.errors import InvalidRequest

SMALL_BYTES = 64 * 1024  # a smaller body is read whatever others take
LARGE_BYTES = 512 * 1024  # a smaller body cannot hold so much that it takes longer than 50 ms
MANY_VALUES = 10_000  # of a body between the two
MAX_VALUES = 1_000_000  # /detokenize takes as many token ids
MAX_PARTS = 120_000  # texts, names, lists and objects; 65,536 prompts are as many texts
MAX_FIELDS = 256
MAX_NAME = 256
MAX_DEPTH = 32  # of a JSON schema or any other free-form part; deeper ones are bombs
MAX_LEVELS = (
    128  # of what is only kept and told again, which writes it from deeper within than it was read
)
MAX_NODES = 10_000  # of a JSON schema or any other free-form part
MAX_ALL_NODES = 50_000  # of all tools of a request: a look at each value takes a microsecond
MAX_ESCAPES = 1_500_000  # as many Chinese characters are a million tokens
MOST_BESIDE = 1024  # connections to models' servers that stand beside those of clients, of a kind
_STEP = 61  # a prime: the values of a row of equal ones do not all lie between two steps
_SLICE_BYTES = 128 * 1024
_LONG_BYTES = 4096
_SHOWN_BYTES = 300
_PASSES = WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()  # those in use
_TURNS = 3  # what came during a pass is read in the first, its task woken in the second, and answered before the third ends
_CUTTABLE = b"\\" + bytes(range(128, 256))  # what begins an escape, or is part of a character


def open_files() -> int | None:
    """Return the limit of open files of this process; None for no limit."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else files


def raise_open_files() -> None:
    """Let this process open as many files as the system allows: each client takes one, and its backend another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a lower bound of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_background() -> int:
    """Return the limit of simultaneous responses in the background: each takes a connection to its model's server."""
    files = open_files()
    return MOST_BESIDE if files is None else max(1, min(MOST_BESIDE, files // 8))


def most_further_parts() -> int:
    """Return the limit of simultaneous parts of requests beside the first part of each: as for responses in the background."""
    return most_background()


@asynccontextmanager
async def one_pass() -> AsyncGenerator[None, None]:
    """
    To be held for one pass over a large body, and no longer: between two passes, over whichever bodies, others have their turns.

    A pass over 15 MB takes 10 to 20 ms; of eight bodies in one turn of the event loop all others would wait eight times as long.
    Whoever passed waits, also where the pass failed.
    """
    async with _PASSES.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        try:
            yield
        finally:
            for _ in range(_TURNS):
                await asyncio.sleep(0)


def has_many_values(body: bytes) -> bool:
    """
    True for a body of more than `SMALL_BYTES` that is to be decoded in `one_pass` though it is not large, such as one of 20,000 token ids.

    Its commas are estimated: to count those of 100 kB takes as long as to decode it. To hide them gains no more than 50 ms.
    """
    return body[::_STEP].count(b",") * _STEP > MANY_VALUES


async def check_body(body: bytes) -> bytes:
    """
    Count the values of a large body in slices, and let others work between them; what stands in texts is not counted.

    Returns:
        The body with its long texts shortened, where it has any: what is wrong with it is found there first. The parser repeats a
        wrong text as a whole, and works on one of 16 MB for a third of a second.

    Raises:
        InvalidRequest: There are too many.
    """
    values = marks = quotes = escapes = begin = 0
    within = False  # a text
    short: list[bytes] = []
    while begin < len(body):
        end = begin + _SLICE_BYTES
        end = body.find(b'"', end, end + 2 * _LONG_BYTES) + 1 or end  # only a long text is cut
        piece = body[begin:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # a slice ends behind an escape
            piece, end = body[begin : end + 1], end + 1
        is_cut, begin = not piece.endswith(b'"'), end
        if b"\\" in piece:
            escapes += piece.count(b"\\")
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        texts = piece.split(b'"')
        outside, inside = b"".join(texts[within::2]), slice(not within, None, 2)
        quotes += len(texts) - 1
        marks += outside.count(b":") + outside.count(b"[") + outside.count(b"{")
        values += outside.count(b",")
        within = quotes % 2 == 1
        for number, most, what in (
            (marks + quotes // 2, MAX_PARTS, "texts, names, lists and objects"),
            (values, MAX_VALUES, "values"),
            (escapes, MAX_ESCAPES, "escapes in its texts"),
        ):
            if number > most:
                raise InvalidRequest(
                    f"The request's body holds more than {most} {what}; at most so many are read. Send less at a time."
                )
        texts[inside] = [
            _short(text) if len(text) > _LONG_BYTES else text for text in texts[inside]
        ]
        if within and is_cut:
            texts[-1] = _short(texts[-1])
        short.append(b'"'.join(texts))
        await asyncio.sleep(0)
    shortened = b"".join(short)
    return shortened if len(shortened) < len(body) else b""


def _short(text: bytes) -> bytes:
    """The beginning of a text, which nothing can be cut off from; no name or value that is known ends so."""
    return text[:_SHOWN_BYTES].translate(None, _CUTTABLE) + b"..."


def most_values(text: str) -> int:
    """More values than JSON text holds; a text that is none is counted as well."""
    return text.count(",") + text.count("[") + text.count("{")


def check_free_form(name: str, value: Any, max_bytes: int = 64 * 1024, before: int = 0) -> int:
    """
    Bound a part of a request that has no fixed form: a schema, a tool's parameters.

    Args:
        before: The values of the parts of its kind that stand before it: many may be as large as none of them may be.

    Returns:
        The values up to here.

    Raises:
        InvalidRequest: It is nested too deep, holds too many values, or is too large.
    """
    nodes, level = 1, [value]
    for _ in range(MAX_DEPTH):
        nodes += sum(len(item) for item in level if isinstance(item, dict | list))
        if nodes > MAX_NODES:  # before anything is made of so many
            raise InvalidRequest(
                f"`{name}` holds more than {MAX_NODES} values; at most so many are read.",
                param=name,
            )
        level = _children(level)
    if level:
        raise InvalidRequest(
            f"`{name}` is nested more than {MAX_DEPTH} levels deep; flatten it.", param=name
        )
    if before + nodes > MAX_ALL_NODES:
        raise InvalidRequest(
            f"`{name}`: up to here there are more than {MAX_ALL_NODES} values; at most so many are read.",
            param=name,
        )
    if (size := len(msgspec.json.encode(value))) > max_bytes:
        raise InvalidRequest(
            f"`{name}` has {size} bytes of JSON; at most {max_bytes} are read.", param=name
        )
    return before + nodes


def check_levels(name: str, written: bytes, value: Any) -> None:
    """
    Bound the nesting of a part of a request that is kept, or told again.

    Args:
        written: Its JSON, whose brackets nearly always say that it cannot be so deep.

    Raises:
        InvalidRequest: It is nested too deep.
    """
    if written.count(b"[") + written.count(b"{") > MAX_LEVELS and is_deeper(value, MAX_LEVELS):
        raise InvalidRequest(
            f"`{name}` is nested more than {MAX_LEVELS} levels deep; flatten it.", param=name
        )


def is_deeper(value: Any, levels: int) -> bool:
    """True when a decoded JSON value has more levels than this, counted without recursion and no further than needed."""
    level = [value]
    for _ in range(levels):
        level = _children(level)
        if not level:
            return False
    return True


def _children(level: list[Any]) -> list[Any]:
    return [
        child
        for item in level
        if isinstance(item, dict | list)
        for child in (item.values() if isinstance(item, dict) else item)
    ]
