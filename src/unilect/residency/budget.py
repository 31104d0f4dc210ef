"""The bytes that models may take where their operator does not say, and those that stay free."""

from unilect.runtime.gpus import gpu_memory
from unilect.runtime.memory import MIB, free_bytes

_RESERVE = 20  # such a part of memory is to stay free, and `_LEAST_RESERVE` at least
_LEAST_RESERVE = 256 * MIB


def find_reserve(size: int) -> int:
    """Return the bytes of so many that are to stay free."""
    return max(_LEAST_RESERVE, size // _RESERVE)


def find_budget() -> int | None:
    """Return the bytes that are free now on the machine and its GPUs, but for a reserve; None where one of them does not tell."""
    free, gpus = free_bytes(), gpu_memory()
    if free is None or gpus is None:
        return None
    return max(0, free - find_reserve(free)) + sum(one.free for one in gpus)
