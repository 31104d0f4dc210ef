"""The stay of a model in memory, as its operator wants it."""

from collections.abc import Callable
from typing import NamedTuple

from unilect.config.model import ModelConfig
from unilect.config.sizes import parse_size
from unilect.core.errors import BackendUnavailable

_NO_ROOM = "does not fit into memory"  # in the words of all engines


class Stays(NamedTuple):
    """
    The stay of a model in memory.

    Attributes:
        takes_memory: It takes memory of this machine, which it shares with the other models.
        pinned: It is not stopped to make room for another one.
        memory_bytes: What it takes at most, if the operator says.
        while_loading: The model that answers while this one is not loaded, if that is loaded itself.
    """

    takes_memory: bool = False
    pinned: bool = False
    memory_bytes: int | None = None
    while_loading: str | None = None


def stays_of(config: ModelConfig, is_engine: bool) -> Stays:
    """Return how a model stays in memory; only what runs on this machine takes any."""
    here = is_engine and config.replicas is None
    return Stays(here, config.pin, parse_size(config.memory), config.while_loading)


def name_idle(error: BackendUnavailable, idle: Callable[[], list[str]]) -> BackendUnavailable:
    """Return the error of a start, which tells the operator what is loaded and idle where it failed for want of memory."""
    names = idle() if _NO_ROOM in error.for_operator else []
    if not names:
        return error
    told = error.alone()
    told.reason = f"{error.for_operator} Loaded and idle: {', '.join(names[:10])}; `unilect stop MODEL` stops one."
    return told
