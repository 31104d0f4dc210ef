"""The check that a GGUF model fits into the memory of this machine, without loading it."""

from pathlib import Path

from msgspec import Struct

from unilect.api.backend import Capabilities
from unilect.config.model import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError, ModelTooLarge
from unilect.engines.gguf._file import read_model
from unilect.engines.gguf._memory import Needs, memory_error, needs, size_error
from unilect.engines.process.gpus import gpu_memory
from unilect.engines.settings import read_checked
from unilect.runtime.memory import MIB, free_bytes, total_bytes

_LEAST_BESIDE = 512 * MIB


class Room(Struct, frozen=True):
    """
    The memory that a model may take, in bytes.

    Attributes:
        free: What can be allocated now; None where only its child finds that out, or nobody.
        total: The same, if nothing else ran.
    """

    free: int | None
    total: int | None


def room_of(config: ModelConfig) -> Room:
    """Return the memory for a model: that of the machine, and of its GPUs where it may use them."""
    gpus = [] if config.gpu_layers == 0 else gpu_memory()
    free, total = free_bytes(), total_bytes()
    if gpus is None or free is None or total is None:
        return Room(None, None)
    return Room(free + sum(one.free for one in gpus), total + sum(one.total for one in gpus))


def require_room(name: str, need: Needs, room: Room) -> None:
    """
    Check the memory that a model takes, as its child does before it loads it.

    Raises:
        ModelTooLarge: It can never fit.
        BackendUnavailable: It does not fit now.
    """
    if why := size_error(name, need, room.total):
        raise ModelTooLarge(why)
    if why := memory_error(name, need, room.free):
        raise BackendUnavailable(why)


def may_fit(size: int) -> bool:
    """Return True where a file of so many bytes can be loaded on this machine, with room for a context; whatever is loaded now."""
    total = room_of(ModelConfig()).total
    return total is None or size + size // 8 + _LEAST_BESIDE <= total


def check_fit(name: str, path: Path, config: ModelConfig, can: Capabilities) -> None:
    """
    Check the memory that a model takes, for a configuration that is looked at and not served.

    Args:
        can: What its backend can do.

    Raises:
        ConfigError: It does not fit.
    """
    writes = can.chat or can.completions
    need = needs(read_checked(read_model, path), path, config, can.context or 0, not writes)
    try:
        require_room(name, need, room_of(config))
    except BackendUnavailable as error:
        raise ConfigError(f"models.{error.message}", ("models", name, "context")) from error
