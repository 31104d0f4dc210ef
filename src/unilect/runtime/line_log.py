"""The last lines that the processes of an engine have written, for whoever looks at them while it runs."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

MOST_BYTES = 256 * 1024
MOST_CHARACTERS = 2000
_LINE_BYTES = 200  # of Python's objects about a line


class Line(NamedTuple):
    """
    A line.

    Attributes:
        at: When it came, in seconds since 1970.
        pid: The process that wrote it.
        text: What it says, without control characters.
    """

    at: float
    pid: int
    text: str


class LineLog:
    """
    The last lines, up to MOST_BYTES of memory; a longer line is cut.

    Attributes:
        count: How many lines there have been.
        watchers: Called after each line, by those who follow it.
    """

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._size = 0
        self.count = 0
        self.watchers: set[Callable[[], None]] = set()

    def append(self, line: Line) -> None:
        """Keep a line, in place of the oldest ones where there is no room."""
        if len(line.text) > MOST_CHARACTERS:
            line = line._replace(text=f"{line.text[:MOST_CHARACTERS]}…")
        self._lines.append(line)
        self._size += _size(line)
        while self._size > MOST_BYTES:
            self._size -= _size(self._lines.popleft())
        self.count += 1
        for watch in self.watchers:
            watch()

    def since(self, count: int) -> list[Line]:
        """Return the lines after the first `count` of all, as far as they are kept, the oldest first."""
        new = min(self.count - count, len(self._lines))
        return list(islice(self._lines, len(self._lines) - new, None))


def _size(line: Line) -> int:
    return _LINE_BYTES + len(line.text)
