"""What work costs: times of the processor that a slow or busy machine does not make longer."""

import gc
import time
from collections.abc import Callable

#: What `_unit` takes where nothing slows the machine that the tests' bounds were set on.
_UNIT_S = 0.0012
_TRIES = 20


def effort_s(work: Callable[[], object], most_s: float) -> float:
    """
    The seconds of the processor that the work takes this thread.

    Work that took `most_s` or longer is done again, a few times, between two turns of work that is always the same:
    the processor may be slowed by other machines, its caches are shared, and both have then been slowed alike. The
    least is told, as it would have been at full speed. Work that is not linear takes a hundred times as long as it may.
    """
    least = _cpu_s(work)
    for _ in range(_TRIES):
        if least < most_s:
            break
        before = _cpu_s(_unit)
        took = _cpu_s(work)
        least = min(least, took, took * _UNIT_S / max(before, _cpu_s(_unit)))
    return least


def _cpu_s(work: Callable[[], object]) -> float:
    gc.disable()  # a look at all that a process of tests holds takes a second
    try:
        begun_s = time.thread_time()
        work()
        return time.thread_time() - begun_s
    finally:
        gc.enable()


def _unit() -> None:
    """Some calls, slices and dicts, as parsers have them."""
    text, seen = "abcdefgh" * 64, dict[str, int]()
    for at in range(5000):
        piece = text[at % 500 : at % 500 + 5]
        seen[piece] = seen.get(piece, 0) + len(piece)
