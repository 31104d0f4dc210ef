"""
The bundled model: a demonstration and a test bench of a few million parameters, made by `training/` in this repository.

`model.gguf` is what `unilect serve` answers with when no model is named; `hf/` is the same model as safetensors, and
`lora-*` are small adapters for it.
"""

from pathlib import Path

import msgspec

from unilect.api.backend import BackendSpec
from unilect.core.errors import ConfigError
from unilect.engines.gguf import engine as gguf

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model.gguf"
CACHE_RAM_MIB = 64  # twelve whole contexts; memory is for models that need it


def backend(spec: BackendSpec) -> gguf.GgufEngine:
    """
    Make the engine for `demo:`.

    Raises:
        ConfigError: It is given a name of another model.
    """
    config = spec.config
    if config.model is not None and len(config.sources) == 1:
        raise ConfigError("model: is for an upstream or a folder of GGUF files; leave it out.")
    if config.cache_ram_mib is None:
        config = msgspec.structs.replace(config, cache_ram_mib=CACHE_RAM_MIB)
    return gguf.engine(msgspec.structs.replace(spec, config=config), MODEL)
