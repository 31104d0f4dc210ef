"""
Server-sent events: bytes in, the data of whole frames out, whatever its format.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import json

from unilect.core.errors import BackendError

MAX_FRAME_BYTES = (
    1024 * 1024
)  # one endless line froze a peer for 60 s; nginx's and Envoy's limits are smaller


class FrameReader:
    """
    Splits a byte stream into frames. Feed it pieces of any size.

    A frame of llama.cpp's older servers, `error: {...}`, becomes the data `{"error": {...}}`.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()
        self._ends_in_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """
        Add bytes.

        Returns:
            The data of every frame that is now complete, in order.

        Raises:
            BackendError: A frame is longer than the limit.
        """
        # `in` is slower: it tries bytes as a number first
        if self._ends_in_cr or data.find(b"\r") >= 0:
            data = self._without_cr(data)
        if self._rest and not (data := self._with_rest(data)):
            return []
        if data[-2:] != b"\n\n" and not (data := self._whole_frames(data)):
            return []
        if data[:6] == b"data: ":
            frames = data[6:-2].split(b"\n\ndata: ")
            # each is one line, as nearly always; to join them is quicker than to count line ends
            if b"".join(frames).find(b"\n") < 0:
                return frames
        blocks = (_parse(block) for block in data.split(b"\n\n"))
        return [frame for frame in blocks if frame is not None]

    @property
    def has_rest(self) -> bool:
        """True while a frame is incomplete."""
        return bool(self._rest) or self._ends_in_cr

    def end(self) -> list[bytes]:
        """Return the frame that the end of the stream completes, if any."""
        return self.feed(b"\n\n")

    def _whole_frames(self, data: bytes) -> bytes:
        """Cut off the last frame, which is incomplete, and keep it for the next call."""
        end = data.rfind(b"\n\n") + 2
        whole, rest = (data[:end], data[end:]) if end > 1 else (b"", data)
        self._keep(rest)
        return whole

    def _with_rest(self, data: bytes) -> bytes:
        """Return the incomplete frame and these bytes, once they complete it. Only they are looked at: a frame may come byte by byte."""
        if data.find(b"\n\n") < 0 and not (data[:1] == b"\n" and self._rest[-1:] == b"\n"):
            self._keep(data)
            return b""
        data = bytes(self._rest + data)
        self._rest.clear()
        return data

    def _keep(self, data: bytes) -> None:
        """Add to the frame that is incomplete; errors as `feed`."""
        self._rest += data
        if len(self._rest) > self._limit_bytes:
            raise BackendError(
                f"The backend sent a frame of more than {self._limit_bytes} bytes; "
                "the answer was aborted."
            )

    def _without_cr(self, data: bytes) -> bytes:
        """CR LF and CR become LF, also if a read ends between the two."""
        if self._ends_in_cr:
            data = b"\r" + data
        self._ends_in_cr = data.endswith(b"\r")
        if self._ends_in_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


_BOM = b"\xef\xbb\xbf"
_PINGS = frozenset({b"ping", b"keepalive", b"keep-alive", b"heartbeat"})


def _parse(block: bytes) -> bytes | None:
    """Return the data of one block of lines; None for comments, for pings and for blocks without data."""
    data = []
    event = b""
    for line in block.removeprefix(_BOM).split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
        elif name == b"error":
            return b'{"error":' + value + b"}"
    if not data or event in _PINGS:
        return None
    if event == b"error":
        return _error(b"\n".join(data))
    return b"\n".join(data)


def _error(data: bytes) -> bytes:
    """Return the data of an `event: error`, an error of any format, as `{"error": ...}`."""
    if data.startswith(b"{"):
        return data if b'"error"' in data else b'{"error":' + data + b"}"
    return b'{"error":' + json.dumps(data.decode(errors="replace")).encode() + b"}"
