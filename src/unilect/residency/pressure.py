"""
The machine's lack of memory, as the kernel measures it, before it kills somebody.

The kernel measures for how much of the time processes stall since memory is short (PSI), and tells whoever has asked for it once that is a part of two
seconds; without a privilege no shorter time may be asked for. Stalls alone say little: a container beside this one may have reached a limit of
its own. So they count where less than the reserve is available, too, to the machine or to the groups that this process is in.

Where there is no such file, or it may not be written, as in older kernels without the privilege, nothing is told.

Source: https://docs.kernel.org/accounting/psi.html
"""

import asyncio
import logging
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from unilect.residency.budget import find_reserve
from unilect.residency.events import describe_size
from unilect.runtime.memory import free_bytes, total_bytes

log = logging.getLogger("unilect")
FILE = Path("/proc/pressure/memory")
_TRIGGER = b"some 100000 2000000\0"  # some process stalled for 0.1 s of 2 s
_MOST = 4096  # bytes of the file


class Shortage(NamedTuple):
    """
    A lack of memory.

    Attributes:
        stalled: The part of the last ten seconds for which some process stalled, in percent.
        free_bytes: What is available.
    """

    stalled: float
    free_bytes: int

    def __str__(self) -> str:
        """Describe it for people."""
        return f"memory is short: processes waited for it for {self.stalled:.0f} % of 10 s, {describe_size(self.free_bytes)} are available"


class Pressure:
    """
    The watch over memory.

    Args:
        tell: Is called with each shortage, at most once in two seconds.
        file: What the kernel tells it by.
        measure: Returns the bytes that are available, and those of all memory; None where the system does not say.

    Attributes:
        watches: The kernel tells.
    """

    def __init__(
        self,
        tell: Callable[[Shortage], None],
        file: Path = FILE,
        measure: Callable[[], tuple[int | None, int | None]] = lambda: (
            free_bytes(),
            total_bytes(),
        ),
    ) -> None:
        self._tell, self._file, self._measure = tell, file, measure
        self._told: int | None = None
        self._ready: select.epoll | None = None

    @property
    def watches(self) -> bool:
        """True while the kernel tells of shortages."""
        return self._ready is not None

    def open(self) -> None:
        """Have the kernel tell, if it can; to be closed. Idempotent."""
        if self.watches or not hasattr(select, "epoll"):
            return
        ready = select.epoll()
        try:
            self._told = os.open(self._file, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._told, _TRIGGER)
            # the file counts as readable at any time, so that the loop cannot wait for it, but for what waits for its events
            ready.register(self._told, select.EPOLLPRI)
        except OSError as error:
            log.debug("memory pressure is not watched: %s", error)
            ready.close()
            self._close_file()
            return
        self._ready = ready
        asyncio.get_running_loop().add_reader(ready.fileno(), self._look)

    def close(self) -> None:
        """Have nothing told any more. Idempotent."""
        if self._ready is not None:
            asyncio.get_running_loop().remove_reader(self._ready.fileno())
            self._ready.close()
            self._ready = None
        self._close_file()

    def _look(self) -> None:
        assert self._ready is not None
        self._ready.poll(0)
        free, total = self._measure()
        if free is not None and total is not None and free < find_reserve(total):
            self._tell(Shortage(self._read_stalled(), free))

    def _read_stalled(self) -> float:
        """Return the `avg10` of the first line; 0 where it is not there."""
        assert self._told is not None
        words = os.pread(self._told, _MOST, 0).split()
        found = (word.partition(b"=")[2] for word in words if word.startswith(b"avg10="))
        try:
            return float(next(found, b"0"))
        except ValueError:
            return 0.0

    def _close_file(self) -> None:
        if self._told is not None:
            os.close(self._told)
            self._told = None
