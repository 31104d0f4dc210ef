"""
Server-sent events: bytes in, the data of whole frames out. It knows nothing of JSON.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from unilect.errors import BackendError

MAX_FRAME_BYTES = (
    1024 * 1024
)  # one endless line froze a peer for 60 s; nginx's and Envoy's limits are smaller


class FrameReader:
    """
    Cuts a byte stream into frames. Feed it pieces of any size.

    A frame of llama.cpp's older servers, `error: {...}`, is given as the data `{"error": {...}}`.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._ends_in_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """
        Take in bytes.

        Returns:
            The data of every frame that is now whole, in order.

        Raises:
            BackendError: A frame is longer than the limit.
        """
        if self._ends_in_cr or b"\r" in data:
            data = self._without_cr(data)
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > self._limit_bytes:
            raise BackendError(
                f"The backend sent a frame of more than {self._limit_bytes} bytes; "
                "the answer was given up."
            )
        frames = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                frames.append(block[6:])
            elif (frame := _parse(block)) is not None:
                frames.append(frame)
        return frames

    def end(self) -> list[bytes]:
        """The frame that the end of the stream completes, if any."""
        return self.feed(b"\n\n")

    def _without_cr(self, data: bytes) -> bytes:
        """CR LF and CR become LF, also where a pair is cut in two by a read."""
        if self._ends_in_cr:
            data = b"\r" + data
        self._ends_in_cr = data.endswith(b"\r")
        if self._ends_in_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse(block: bytes) -> bytes | None:
    """The data of one block of lines; None for comments and blocks without data."""
    data = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"error":
            return b'{"error":' + value + b"}"
    return b"\n".join(data) if data else None
