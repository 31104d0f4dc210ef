"""
RoPE frequencies that depend on the longest text in the batch: set once, for the configured context.

transformers chooses them anew for each step (longrope: short or long factors; dynamic: by the length), which in a batch would let
one answer change the others, and in a prompt that is read in pieces the later ones. As vLLM and llama.cpp have it, a context
beyond the original length takes the long factors for every text.

Source: https://arxiv.org/abs/2402.13753 (longrope); https://huggingface.co/docs/transformers/internal/rope_utils
"""

from typing import Any

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_BY_LENGTH = ("longrope", "dynamic")


def freeze_rope(model: nn.Module, context: int) -> None:
    """Settle the frequencies of all modules of a model that choose them by length."""
    for module in list(model.modules()):
        kinds: Any = getattr(module, "rope_type", None)
        if isinstance(kinds, dict):  # one for each type of layers
            for layer_type, kind in list(kinds.items()):
                if kind in _BY_LENGTH:
                    _settle(module, kind, context, f"{layer_type}_", {"layer_type": layer_type})
                    kinds[layer_type] = "default"
        elif kinds in _BY_LENGTH:
            _settle(module, kinds, context, "", {})
            module.rope_type = "default"


def _settle(module: Any, kind: str, context: int, prefix: str, more: dict[str, Any]) -> None:
    old = getattr(module, f"{prefix}inv_freq")
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](
        module.config, old.device, seq_len=context, **more
    )
    old.copy_(frequencies)
    setattr(module, f"{prefix}attention_scaling", scaling)
