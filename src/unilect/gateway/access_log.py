"""
The log line of each request, written in batches: a line by itself costs as much CPU as reading the request's JSON.
"""

import asyncio
import logging
import sys
import time

access = logging.getLogger("unilect.access")
FLUSH_S = 0.1


class AccessLog:
    """
    Gathers lines and writes them to stderr ten times a second.

    Attributes:
        on: True when requests are logged at all (level *info*).
    """

    def __init__(self) -> None:
        self.on = access.isEnabledFor(logging.INFO)
        self._lines: list[str] = []
        self._second = 0
        self._stamp = ""

    def add(self, line: str) -> None:
        """Log a line, soon."""
        now = time.time()
        if int(now) != self._second:
            self._second = int(now)
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        if not self._lines:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        self._lines.append(f"{self._stamp} INFO {line}\n")

    def flush(self) -> None:
        """Write what has been gathered."""
        sys.stderr.write("".join(self._lines))
        sys.stderr.flush()
        self._lines.clear()
