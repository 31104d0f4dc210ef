"""
Bodies of HTTP/1.1 answers: bytes in, payload out. It knows no connection.

Source: https://www.rfc-editor.org/rfc/rfc9112#name-transfer-codings
"""

MAX_HEAD_BYTES = 64 * 1024  # and trailers
_MAX_SIZE_LINE_BYTES = 1024
_MANY_CHUNKS_BYTES = 1024  # some five tokens of a stream; fewer are quicker cut out one by one
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ProtocolError(Exception):
    """The server's answer is no sound HTTP."""


class CountedBody:
    """A body of a known length; bytes in, payload out, with the attributes of `ChunkedBody`."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self.done = length == 0
        self.rest = b""
        self._left = length

    def feed(self, data: bytes) -> bytes:
        """Take in bytes; what belongs to the body is given back."""
        payload, self.rest = data[: self._left], data[self._left :]
        self._left -= len(payload)
        self.done = not self._left
        return payload


class ChunkedBody:
    """
    Takes chunked bodies apart: bytes in, payload out.

    Attributes:
        done: True after the last chunk and its trailers.
        rest: Bytes after the end of the body.
    """

    __slots__ = ("_left", "_pending", "_trailers", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._left = (
            -1
        )  # payload bytes still to come of this chunk, and its line end; -1 before a size line
        self._pending = b""
        self._trailers = False

    def feed(self, data: bytes) -> bytes:
        """
        Take in bytes.

        Returns:
            The payload that they complete.

        Raises:
            ProtocolError: The framing is broken.
        """
        if self._pending:
            data, self._pending = self._pending + data, b""
        elif self._left < 0 and not self._trailers and (chunk := _one_chunk(data)):
            return chunk
        out: list[bytes] = []
        at = 0
        while at < len(data) and not self._trailers:
            if self._left < 0:
                if len(data) > _MANY_CHUNKS_BYTES:
                    at = _many_chunks(data, at, out)
                at = _whole_chunks(data, at, out)
                at = self._begin_chunk(data, at)
            if self._left >= 0 and not self._trailers:
                at = self._part_of_chunk(data, at, out)
        if self._trailers:
            self._end(data[at:])
        return out[0] if len(out) == 1 else b"".join(out)

    def _begin_chunk(self, data: bytes, at: int) -> int:
        """The size line of a chunk that is not all here, if there is one."""
        end = data.find(b"\r\n", at)
        if end < 0:
            self._pending = data[at:]
            if len(self._pending) > _MAX_SIZE_LINE_BYTES:
                raise ProtocolError("an endless chunk size")
            return len(data)
        self._left = _chunk_size(data[at:end])
        self._trailers = self._left == 0
        return end + 2

    def _part_of_chunk(self, data: bytes, at: int, out: list[bytes]) -> int:
        """What is here of a chunk whose size is known, and its line end where that has come whole."""
        stop = at + self._left
        if stop + 2 <= len(data):
            if not data.startswith(b"\r\n", stop):
                raise ProtocolError("a chunk without its end")
            out.append(data[at:stop])
            self._left = -1
            return stop + 2
        if stop <= len(data):  # the line end is cut off
            self._pending = data[at:]
        else:
            out.append(data[at:])
            self._left -= len(data) - at
        return len(data)

    def _end(self, data: bytes) -> None:
        """The trailers, up to a blank line; nobody reads them."""
        if data.startswith(b"\r\n"):
            self.done, self.rest = True, data[2:]
        elif (end := data.find(b"\r\n\r\n")) >= 0:
            self.done, self.rest = True, data[end + 4 :]
        elif len(data) > MAX_HEAD_BYTES:
            raise ProtocolError("endless trailers")
        else:
            self._pending = data


def _one_chunk(data: bytes) -> bytes:
    """The payload where there is one whole chunk and nothing else, as when tokens come one at a time; else nothing."""
    size, _, rest = data.partition(b"\r\n")
    if rest[-2:] != b"\r\n" or _chunk_size(size) != len(rest) - 2:
        return b""
    return rest[:-2]


def _whole_chunks(data: bytes, at: int, out: list[bytes]) -> int:
    """
    The payloads of all chunks that are whole, which nearly all are, one by one.

    Returns:
        Where the first begins that is not, or is the last.
    """
    size, find, starts_with, append = len(data), data.find, data.startswith, out.append
    while (end := find(b"\r\n", at)) >= 0:
        length = _chunk_size(data[at:end])
        stop = end + 2 + length
        if length == 0 or stop + 2 > size:
            break
        if not starts_with(b"\r\n", stop):
            raise ProtocolError("a chunk without its end")
        append(data[end + 2 : stop])
        at = stop + 2
    return at


def _many_chunks(data: bytes, at: int, out: list[bytes]) -> int:
    """
    The same in a fixed number of calls: it takes a third of the time where many chunks came at once.

    Where no payload has a line end in it, sizes and payloads lie in turn between line ends. That it is so is not believed:
    every payload must be as long as its size says, else nothing is taken, and `_whole_chunks` looks.
    """
    lines = data[at:].split(b"\r\n")
    payloads = lines[1:-1:2]  # what follows the last line end is not whole
    sizes = lines[: 2 * len(payloads) : 2]
    try:
        lengths = [*map(_chunk_size, sizes)]
    except ProtocolError:
        return at
    if lengths and lengths[-1] == 0:  # the last chunk
        del payloads[-1], lengths[-1]
    if lengths != [*map(len, payloads)] or 0 in lengths:
        return at
    out += payloads
    return len(data) - len(b"\r\n".join(lines[2 * len(payloads) :]))


class _Sizes(dict[bytes, int]):
    """
    What the size lines of chunks say: a stream has a few, over and over.

    Raises:
        ProtocolError: A line is no size.
    """

    def __missing__(self, line: bytes) -> int:
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 8 or not _HEX.issuperset(digits):
            raise ProtocolError("a broken chunk size")
        if len(self) >= 1024:
            self.clear()
        self[line] = size = int(digits, 16)
        return size


_chunk_size = _Sizes().__getitem__  # a third of the price of an lru_cache
