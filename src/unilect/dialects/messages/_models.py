"""
Anthropic's list of models: GET /v1/models and /v1/models/{model}, for clients that send `anthropic-version`.

Aliases are listed too: clients show the names in a picker, and one of their own models' names may be an alias here.

Source: https://platform.claude.com/docs/en/api/models/list
"""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from msgspec import structs

from unilect.core.errors import InvalidRequest
from unilect.dialects.messages import _errors
from unilect.dialects.messages._api import with_request_id
from unilect.models.model import Model
from unilect.runtime.tasks import list_in_slices
from unilect.web.decode import read_number
from unilect.web.route import Route, both, json_answer
from unilect.web.site import Site

_LIMIT = 20
_MAX_LIMIT = 1000


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service

    async def list_models_of_messages(request: web.Request) -> web.StreamResponse:
        """List the models that are served, and their aliases."""
        cards = await list_in_slices(
            card(model, name) for model in service.models for name in (model.name, *model.aliases)
        )
        with_request_id(request)
        return json_answer(request, page(cards, dict(request.query)))

    async def retrieve_model_of_messages(request: web.Request) -> web.StreamResponse:
        """Describe one model."""
        name = request.match_info["model"]
        name = name if name in service.registry else name.rstrip("/")
        model = service.model(name, strict=True)
        with_request_id(request)
        return json_answer(request, card(model, name))

    found = [
        *both("/models", list_models_of_messages, "List the models, for Anthropic's clients"),
        *both(
            "/models/{model:.+}",
            retrieve_model_of_messages,
            "Describe one model, for Anthropic's clients",
        ),
    ]
    return [
        structs.replace(route, error=_errors.answer, needs_header="anthropic-version")
        for route in found
    ]


def card(model: Model, name: str) -> dict[str, Any]:
    """Return a model as Anthropic lists it, by one of its names."""
    context = model.capabilities.context
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def page(cards: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """
    Return one page of the list.

    Args:
        query: `limit`, and `after_id` or `before_id`.

    Raises:
        InvalidRequest: One of them is wrong.
    """
    limit = query.get("limit", str(_LIMIT))
    size = read_number("limit", limit, f"an integer from 1 to {_MAX_LIMIT}", 1, _MAX_LIMIT)
    ids = [card["id"] for card in cards]
    begin, end = 0, len(ids)
    for name in ("after_id", "before_id"):
        if (id := query.get(name)) is None:
            continue
        if id not in ids:
            raise InvalidRequest.at(name, f"is {id[:100]!r}, which is no model here.")
        begin, end = (ids.index(id) + 1, end) if name == "after_id" else (begin, ids.index(id))
    backwards = "before_id" in query
    shown = cards[begin:end][-size:] if backwards else cards[begin:end][:size]
    return {
        "data": shown,
        "has_more": len(shown) < end - begin,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }
