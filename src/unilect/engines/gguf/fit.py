"""The check that a GGUF model fits into the memory of this machine, without loading it."""

from pathlib import Path

from unilect.api.backend import Capabilities
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.engines.gguf._file import read_model
from unilect.engines.gguf._memory import memory_error, needs
from unilect.engines.process.memory import free_bytes, total_bytes
from unilect.engines.settings import read_checked

_GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dri")


def check_fit(name: str, path: Path, config: ModelConfig, can: Capabilities) -> None:
    """
    Check the memory that a model takes, as its child does before it loads it.

    Where there may be a GPU only the child, which has llama.cpp, knows what is free, and nothing is checked.

    Args:
        can: What its backend can do.

    Raises:
        ConfigError: It does not fit.
    """
    if config.gpu_layers != 0 and any(Path(one).exists() for one in _GPUS):
        return
    writes = can.chat or can.completions
    need = needs(read_checked(read_model, path), path, config, can.context or 0, not writes)
    if why := memory_error(name, need, free_bytes(), total_bytes()):
        raise ConfigError(f"models.{why}", ("models", name, "context"))
