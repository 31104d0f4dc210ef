"""
The bundled model: a demonstration and a test bench of a few million parameters, made by `training/` in this repository.

`model.gguf` is what `unilect serve` answers with when no model is named; `hf/` is the same model as safetensors, and
`lora-*` are small adapters for it.
"""

from pathlib import Path

from unilect.engines import gguf
from unilect.sources import Place

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model.gguf"


def backend(place: Place) -> gguf.GgufEngine:
    """The engine for `demo:`."""
    return gguf.engine(place, MODEL)
