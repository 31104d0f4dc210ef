"""
llama.cpp's /props: what a model runs with.

What llama.cpp's own server says of a model is told again, with the model's defaults in it; of other backends what is known. Paths
stay here.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (GET /props)
"""

from importlib.metadata import version
from typing import Any

from unilect.models.model import Model

#: Our names of settings -> theirs, where they differ.
_NAMES = {
    "max_tokens": ("max_tokens", "n_predict"),
    "max_completion_tokens": ("max_tokens", "n_predict"),
    "repetition_penalty": ("repeat_penalty",),
}


def props(model: Model) -> dict[str, Any]:
    """Return the answer to /props for a model."""
    can, backend = model.capabilities, model.pool.members[0].backend
    told = dict(backend.native_facts().props)
    settings: dict[str, Any] = told.get("default_generation_settings") or {}
    params = settings.get("params", {}) | {
        name: value
        for ours, value in model.settings.defaults.items()
        for name in _NAMES.get(ours, (ours,))
        if value is not None
    }
    if not can.chat:  # llama.cpp has one for every model
        told["chat_template"] = ""
    own = {"params": params, "n_ctx": can.context or 0, "model": model.name}
    made = {
        "default_generation_settings": settings | own,
        "total_slots": can.slots or can.max_in_flight or 1,
        "model_alias": model.name,
        "user_name": "",
        "assistant_name": "",
        "build_info": f"unilect {version('unilect')}",
        "is_sleeping": model.runs_locally and not model.runs_here,
    }
    known = {
        "chat_template": "",
        "modalities": {"vision": can.vision, "video": False, "audio": False},
        "model_ftype": backend.describe().quantization or "",
    }
    return known | told | made
