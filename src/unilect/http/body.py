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

    __slots__ = ("_left", "_pending", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        # payload bytes still to come of this chunk; -1 before a size line, 0 in the trailers
        self._left = -1
        self._pending = b""

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
        elif self._left < 0 and len(data) <= _MANY_CHUNKS_BYTES and (chunk := _one_chunk(data)):
            return chunk
        out: list[bytes] = []
        size, left, at = len(data), self._left, 0
        if left < 0 and size > _MANY_CHUNKS_BYTES:
            at = _many_chunks(data, out)
        while at < size and left:
            if left < 0:
                if (end := data.find(b"\r\n", at)) < 0:
                    break
                left, at = _chunk_size(data[at:end]), end + 2
            elif (stop := at + left) + 2 > size:
                break
            elif data[stop : stop + 2] != b"\r\n":
                raise ProtocolError("a chunk without its end")
            else:
                out.append(data[at:stop])
                left, at = -1, stop + 2
        self._left = left
        self._keep(data[at:], out)
        return out[0] if len(out) == 1 else b"".join(out)

    def _keep(self, rest: bytes, out: list[bytes]) -> None:
        """What comes after the last whole chunk."""
        if self._left == 0:
            self._end(rest)
        elif self._left > len(rest):
            out.append(rest)
            self._left -= len(rest)
        else:  # a line end is cut off
            self._pending = rest
            if self._left < 0 and len(rest) > _MAX_SIZE_LINE_BYTES:
                raise ProtocolError("an endless chunk size")

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


def body_of(status: int, headers: dict[str, str]) -> ChunkedBody | CountedBody | None:
    """
    What takes the body of an answer apart; None where it ends when the connection does.

    Raises:
        ProtocolError: Where it ends is ambiguous, or it is coded in a way that nobody asked for.
    """
    if status in (204, 304):  # these have no body, whatever their headers say
        return CountedBody(0)
    length, coding = headers.get("content-length"), headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked"):
        raise ProtocolError("an unknown transfer-encoding")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ProtocolError("a compressed body that nobody asked for")
    if length is None:
        return ChunkedBody() if coding else None
    if coding:
        raise ProtocolError("a length and chunks at once")
    if not length.isdecimal() or not length.isascii() or len(length) > 15:
        raise ProtocolError("a broken content-length")
    return CountedBody(int(length))


def _many_chunks(data: bytes, out: list[bytes]) -> int:
    """
    The payloads of the chunks that are whole, in a fixed number of calls: it takes a third of the time where many came at once.

    Where no payload has a line end in it, sizes and payloads lie in turn between line ends. That it is so is not believed:
    every payload must be as long as its size says, else nothing is taken.

    Returns:
        Where the first begins that is not whole, or is the last.
    """
    lines = data.split(b"\r\n")
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
