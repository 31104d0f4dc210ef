"""
RoPE scaling: the trained context of a model, and its extension. Does not import torch.

Rows of one batch share the frequencies, and what has been read stays as it was turned. So they never change while a model runs, and
`dynamic` stretches for the longest context that a request may have.

Source: https://huggingface.co/docs/transformers/internal/rope_utils; https://arxiv.org/abs/2309.00071 (NTK-aware, YaRN)
"""

from typing import Any

from unilect.config.model import RopeScaling
from unilect.core.errors import ConfigError

_STRETCHED = ("linear", "dynamic")  # `max_position_embeddings` is what they begin with
_REPLACED = ("default", "linear", "dynamic", "yarn")


def parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of positions in a `config.json`, by their current names; empty where it has none."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        return {}
    return {"rope_type": given.get("type", "default")} | given


def reach(config: dict[str, Any], positions: int) -> int:
    """
    The longest context that a model was made for.

    Args:
        config: Of the text model.
        positions: Its `max_position_embeddings`, or what it calls so.
    """
    rope = parameters(config)
    factor = rope.get("factor")
    if not isinstance(factor, int | float):
        return positions
    if rope["rope_type"] in _STRETCHED:
        return int(positions * factor)
    trained = rope.get("original_max_position_embeddings")
    if rope["rope_type"] == "yarn" and isinstance(trained, int):
        return max(positions, int(trained * factor))
    return positions


def extend_context(scaling: RopeScaling, config: dict[str, Any], positions: int) -> int:
    """
    The longest context with the option `rope_scaling`.

    Raises:
        ConfigError: The model's positions are stretched in a way that this cannot replace.
    """
    kind = parameters(config).get("rope_type", "default")
    if kind not in _REPLACED:
        raise ConfigError(
            f"rope_scaling: the model's own RoPE type {kind} cannot be replaced. Leave `rope_scaling` out."
        )
    return int(_original_context(scaling, parameters(config), positions) * scaling.factor)


def stretch(config: Any, scaling: RopeScaling, context: int) -> None:
    """
    Stretch the positions of a model that is about to be loaded.

    Args:
        config: Its configuration, of transformers.
        context: The longest that a request may be.

    Raises:
        ValueError: The model has no positions of the kind that can be stretched.
    """
    text = config.get_text_config()
    rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    if "rope_theta" not in rope or not hasattr(text, "max_position_embeddings"):
        raise ValueError(
            f"rope_scaling: a model of type {text.model_type} does not use the same rotary embedding in all layers."
        )
    trained = _original_context(scaling, rope, text.max_position_embeddings)
    kept = ("rope_theta", "partial_rotary_factor", "mrope_section")
    new = {name: rope[name] for name in kept if name in rope}
    new |= {"rope_type": scaling.rope_type, "factor": scaling.factor}
    if scaling.rope_type == "yarn":
        new["original_max_position_embeddings"] = trained
    elif scaling.rope_type == "ntk":
        new = _ntk(text, new, scaling.factor)
    elif scaling.rope_type == "dynamic":
        new = _ntk(text, new, dynamic_alpha(scaling.factor, context, trained))
    text.rope_parameters = new


def dynamic_alpha(factor: float, length: int, trained: int) -> float:
    """Return the factor by which dynamic scaling stretches the base for a text of this length; 1 up to the length of the training."""
    return max(1.0, factor * length / trained - (factor - 1))


def _ntk(config: Any, rope: dict[str, Any], alpha: float) -> dict[str, Any]:
    """The base grows, so that high frequencies stay nearly as they are and the lowest is divided by alpha."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(width * rope.get("partial_rotary_factor", 1.0))
    base = rope["rope_theta"] * alpha ** (turned / (turned - 2))
    rest = {name: value for name, value in rope.items() if name != "factor"}
    return rest | {"rope_type": "default", "rope_theta": base}


def _original_context(scaling: RopeScaling, rope: dict[str, Any], positions: int) -> int:
    """Return the context that the model was trained for, in tokens."""
    own = rope.get("original_max_position_embeddings")
    return scaling.original_max_position_embeddings or (own if isinstance(own, int) else positions)
