"""
OpenAI's list of models: GET /v1/models and /v1/models/{model}, and both without /v1.

A model's card has the fields that OpenAI requires, those that FastChat's clients read (`root`, `parent`, `permission`), and
`unilect`: what the model's backend can do, parameter by parameter. `aliases`, `tags`, `meta` and the list's `models` are llama.cpp's.

Source: https://platform.openai.com/docs/api-reference/models
"""

import hashlib
from typing import Any

from aiohttp import web

from unilect.api.parameters import constraints as foreign_constraints
from unilect.api.parameters.rules import (
    ACCEPTED,
    EMULATED,
    ENDPOINTS,
    honours,
    list_unhonoured,
    parameters_of,
)
from unilect.models.model import Model
from unilect.runtime.tasks import list_in_slices
from unilect.web.route import Route, both, json_answer
from unilect.web.site import Site

#: What FastChat says of every model; clients of 2023 read it, and none has to obey.
_PERMISSION = {
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": True,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service

    async def list_models(request: web.Request) -> web.StreamResponse:
        """List the models that are served."""
        models = service.models
        cards = await list_in_slices(map(card, models))
        native = await list_in_slices(map(native_card, models))
        body = {"object": "list", "data": cards, "models": native}
        return json_answer(request, body)

    async def retrieve_model(request: web.Request) -> web.StreamResponse:
        """Describe one model, and its capabilities."""
        name = request.match_info["model"]
        model = service.model(name if name in service.registry else name.rstrip("/"), strict=True)
        return json_answer(request, card(model) | {"unilect": abilities(model)})

    return [
        *both("/models", list_models, "List the models"),
        *both("/models/{model:.+}", retrieve_model, "Describe one model"),
    ]


def card(model: Model) -> dict[str, Any]:
    """Return a model as OpenAI and FastChat list it."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "unilect",
        "root": model.name,
        "parent": None,
        "aliases": [model.name, *model.aliases],
        "tags": [],
        "meta": meta(model),
        "permission": [
            {
                "id": f"modelperm-{hashlib.sha256(model.name.encode()).hexdigest()[:22]}",
                "object": "model_permission",
                "created": model.created,
                **_PERMISSION,
            }
        ],
    }


def native_card(model: Model) -> dict[str, Any]:
    """Return a model as llama.cpp's server lists it beside, for clients that see there whether it reads images."""
    can = model.capabilities
    known = {
        "completion": can.chat or can.completions,
        "multimodal": can.vision,
        "embedding": can.embeddings and not (can.chat or can.completions),
    }
    return {
        "name": model.name,
        "model": model.name,
        "type": "model",
        "tags": [],
        "capabilities": [name for name, is_so in known.items() if is_so],
    }


def meta(model: Model) -> dict[str, Any]:
    """Return the sizes of a model, as llama.cpp's server lists them, as far as they are known."""
    backend = model.pool.members[0].backend
    told, found = backend.native_facts().meta, backend.describe()
    known = {
        "n_ctx": model.capabilities.context,
        "n_ctx_train": found.context,
        "n_embd": found.width,
        "n_params": found.parameters,
        "size": found.size_bytes,
        "ftype": found.quantization,
    }
    return {**known, **told, "n_ctx": model.capabilities.context}


def abilities(model: Model) -> dict[str, Any]:
    """Return the abilities of a model; complete once its backend has been started."""
    can = model.capabilities
    known: dict[str, str] = {**can.parameters, **dict.fromkeys(ACCEPTED, "accepted")}
    if can.chat:
        known |= {name: "emulated" for name in EMULATED if not honours(can, name)}
    for name, support in foreign_constraints.support(can).items():
        if name in known or not can.passes_unknown:
            known[name] = support
    return {
        "aliases": list(model.aliases),
        "state": model.state,
        "context": can.context,
        "slots": model.slots,
        "details": model.pool.members[0].backend.describe(),
        "chat": can.chat,
        "completions": can.completions,
        "embeddings": can.embeddings,
        "rerank": can.rerank,
        "vision": can.vision,
        "continues": can.continues,
        "thinking": can.thinking,
        "template_names": None if can.template_names is None else sorted(can.template_names),
        "unknown_parameters": "passed on" if can.passes_unknown else "ignored and reported",
        "unsupported_parameters": model.settings.unsupported,
        "defaults": model.settings.defaults,
        "queue": model.queue._asdict(),
        "parameters": dict(sorted(known.items())),
        "endpoints": {path: sorted(parameters_of(kind)) for path, kind in ENDPOINTS.items()},
        "not_honoured": {
            path: list_unhonoured(kind, can, model.settings.unsupported)
            for path, kind in ENDPOINTS.items()
        },
    }
