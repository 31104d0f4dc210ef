"""
Bodies of HTTP/1.1 answers: bytes in, payload out. No I/O.

Source: https://www.rfc-editor.org/rfc/rfc9112#name-transfer-codings
"""

import re
from collections.abc import Mapping

MAX_HEAD_BYTES = 64 * 1024  # and trailers
_MAX_SIZE_LINE_BYTES = 1024
_MANY_CHUNKS_BYTES = 1024  # some five tokens of a stream; fewer are quicker cut out one by one
_LINE_END = re.compile(rb"\r\n")  # splits in half the time of `bytes.split`
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ProtocolError(Exception):
    """The server's answer is not valid HTTP."""


class CountedBody:
    """A body of a known length; bytes in, payload out, with the attributes of `ChunkedBody`."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self.done = length == 0
        self.rest = b""
        self._left = length

    def feed(self, data: bytes) -> bytes:
        """Add bytes; returns those that belong to the body."""
        payload, self.rest = data[: self._left], data[self._left :]
        self._left -= len(payload)
        self.done = not self._left
        return payload


class ChunkedBody:
    """
    Decodes chunked bodies: bytes in, payload out.

    Attributes:
        done: True after the last chunk and its trailers.
        rest: Bytes after the end of the body.
    """

    __slots__ = ("_left", "_pending", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        # payload bytes still to come of this chunk; -1 before a size line, 0 in the trailers
        self._left = -1
        self._pending = b""

    def single_chunk(self, data: bytes) -> bytes:
        """Return the payload of data that is exactly one small chunk, and changes nothing here; nothing for any other."""
        if self._left >= 0 or self._pending or len(data) > _MANY_CHUNKS_BYTES:
            return b""
        return _one_chunk(data)

    def feed(self, data: bytes) -> bytes:
        """
        Add bytes.

        Returns:
            The payload that they contain.

        Raises:
            ProtocolError: The framing is broken.
        """
        if self._pending:
            data, self._pending = self._pending + data, b""
        elif self._left < 0 and len(data) <= _MANY_CHUNKS_BYTES and (chunk := _one_chunk(data)):
            return chunk
        out: list[bytes] = []
        size, left, at, many = len(data), self._left, 0, len(data) > _MANY_CHUNKS_BYTES
        while at < size and left:
            if many and left < 0:
                many, at = False, at + _many_chunks(data[at:], out)
            elif left < 0:
                if (end := data.find(b"\r\n", at)) < 0:
                    break
                left, at = _chunk_size(data[at:end]), end + 2
            elif (stop := at + left) + 2 > size:
                break
            elif data[stop : stop + 2] != b"\r\n":
                raise ProtocolError("a chunk without its final CR LF")
            else:
                out.append(data[at:stop])
                left, at = -1, stop + 2
        self._left = left
        self._keep(data[at:], out)
        return out[0] if len(out) == 1 else b"".join(out)

    def _keep(self, rest: bytes, out: list[bytes]) -> None:
        """Keep the bytes after the last whole chunk."""
        if self._left == 0:
            self._end(rest)
        elif self._left > len(rest):
            out.append(rest)
            self._left -= len(rest)
        else:  # a line end is cut off
            self._pending = rest
            if self._left < 0 and len(rest) > _MAX_SIZE_LINE_BYTES:
                raise ProtocolError("a chunk size line that is too long")

    def _end(self, data: bytes) -> None:
        """Skip the trailers, up to a blank line."""
        if data.startswith(b"\r\n"):
            self.done, self.rest = True, data[2:]
        elif (end := data.find(b"\r\n\r\n")) >= 0:
            self.done, self.rest = True, data[end + 4 :]
        elif len(data) > MAX_HEAD_BYTES:
            raise ProtocolError("endless trailers")
        else:
            self._pending = data


class JsonEnd:
    """
    Finds where a JSON object or list ends that comes in pieces, by its brackets: bytes in, each of which is looked at once. It cannot
    tell whether the text is JSON.
    """

    __slots__ = ("_begun", "_depth", "_escape", "_quoted")

    def __init__(self) -> None:
        self._begun = self._quoted = False
        self._depth = 0
        self._escape = b""  # the first half of one that was cut

    def feed(self, data: bytes) -> bool:
        """Add bytes; True if all brackets up to here are closed again."""
        data = self._escape + data
        self._escape = data[-1:] if (len(data) - len(data.rstrip(b"\\"))) % 2 else b""
        if b"\\" in data:
            data = data[: len(data) - len(self._escape)]
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = data.split(b'"')
        outside = b"".join(texts[self._quoted :: 2])
        self._quoted ^= len(texts) % 2 == 0
        opened = outside.count(b"{") + outside.count(b"[")
        self._begun = self._begun or opened > 0
        self._depth += opened - outside.count(b"}") - outside.count(b"]")
        return self._begun and self._depth <= 0 and not self._quoted


def _one_chunk(data: bytes) -> bytes:
    """Return the payload, if the data is exactly one chunk, as when tokens arrive one at a time; else nothing."""
    size, _, rest = data.partition(b"\r\n")
    if rest[-2:] != b"\r\n" or _chunk_size(size) != len(rest) - 2:
        return b""
    return rest[:-2]


CHUNKED = -1  # the length of a body that tells its end by itself


def length_of(status: int, headers: Mapping[str, str]) -> int | None:
    """
    Return the length of the body of an answer: a number of bytes, or `CHUNKED`; None if the body ends with the connection.

    Raises:
        ProtocolError: The end is ambiguous, or the body has a coding that was not requested.
    """
    if status in (204, 304):  # these have no body, whatever their headers say
        return 0
    length, coding = headers.get("content-length"), headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked"):
        raise ProtocolError("an unknown transfer-encoding")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ProtocolError("a compressed body that was not requested")
    if length is None:
        return CHUNKED if coding else None
    if coding:
        raise ProtocolError("both content-length and transfer-encoding")
    if not length.isdecimal() or not length.isascii() or len(length) > 15:
        raise ProtocolError("an invalid content-length")
    return int(length)


def _many_chunks(data: bytes, out: list[bytes]) -> int:
    """
    Return the payloads of all complete chunks, in a fixed number of calls: a third of the time if many arrive at once.

    If no payload contains a line end, sizes and payloads alternate between line ends. This is verified:
    every payload must have the length that its size line declares, else nothing is decoded.

    Returns:
        The offset of the first chunk that is incomplete, or is the last.
    """
    lines = _LINE_END.split(data)
    payloads = lines[1:-1:2]  # what follows the last line end is not whole
    sizes = lines[: 2 * len(payloads) : 2]
    try:
        lengths = [*map(_chunk_size, sizes)]
    except ProtocolError:
        return 0
    if lengths and lengths[-1] == 0:  # the last chunk
        del payloads[-1], lengths[-1]
    if lengths != [*map(len, payloads)] or 0 in lengths:
        return 0
    out += payloads
    return len(data) - len(b"\r\n".join(lines[2 * len(payloads) :]))


class _Sizes(dict[bytes, int]):
    """
    The sizes in chunk size lines, cached: a stream repeats a few of them.

    Raises:
        ProtocolError: A line is not a size.
    """

    def __missing__(self, line: bytes) -> int:
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 8 or not _HEX.issuperset(digits):
            raise ProtocolError("an invalid chunk size")
        if len(self) >= 1024:
            self.clear()
        self[line] = size = int(digits, 16)
        return size


_chunk_size = _Sizes().__getitem__  # a third of the price of an lru_cache
