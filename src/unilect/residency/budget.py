"""The bytes that models may take where their operator does not say, and those that stay free."""

from unilect.residency.space import Space
from unilect.runtime.gpus import gpu_memory
from unilect.runtime.memory import MIB, free_bytes

_RESERVE = 20  # such a part of memory is to stay free, and `_LEAST_RESERVE` at least
_LEAST_RESERVE = 256 * MIB
_GPU_RESERVE = 1024 * MIB  # llama.cpp leaves so much of each GPU


def find_reserve(size: int) -> int:
    """Return the bytes of so many that are to stay free."""
    return max(_LEAST_RESERVE, size // _RESERVE)


def find_budget(memory_bytes: int | None = None) -> Space | None:
    """
    Return the bytes that models may take: what is free now on the machine and its GPUs together, but for a reserve, and on each GPU.

    Args:
        memory_bytes: The sum, if the operator says; None for what is free.

    Returns:
        None where the machine or a GPU does not tell, unless the operator says the sum: then no GPU counts where one of them does not tell.
    """
    free, gpus = free_bytes(), gpu_memory()
    if memory_bytes is None:
        if free is None or gpus is None:
            return None
        memory_bytes = max(0, free - find_reserve(free)) + sum(one.free for one in gpus)
    return Space(memory_bytes, tuple(max(0, one.free - _GPU_RESERVE) for one in gpus or ()))
