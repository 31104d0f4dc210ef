"""The models of a server, for its operator: what each does, why, on what, and how fast; and the routes that load, stop and drain them."""

import asyncio
from collections import defaultdict
from typing import Any

from aiohttp import web

from unilect.accounting.metrics import Metrics
from unilect.core.errors import BackendUnavailable, UnilectError, UnsupportedOperation
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.tasks import list_in_slices
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._admin_keys import check_no_body, json_of
from unilect.web.route import Route


def routes(registry: Registry, metrics: Metrics) -> list[Route]:
    """Return the routes about models."""

    async def list_models(request: web.Request) -> web.StreamResponse:
        """List the models that are served, and those that a reload has taken out and whose last requests still run."""
        presets = defaultdict[str, list[str]](list)
        for model in registry.models.values():
            presets[model.base.name] += [model.name] if model.base is not model else []
        models = (*registry.bases, *registry.leaving)
        described = await list_in_slices(
            _describe(model, metrics) | {"presets": presets[model.name]} for model in models
        )
        return json_of({"models": described})

    async def load_model(request: web.Request) -> web.StreamResponse:
        """Start a model, and wait until it has; one that was drained takes requests again, and one that was given up is tried at once."""
        model = await _find_model(request, registry)
        for member in model.pool.members:
            for child in member.backend.children:
                child.forgive()
        try:
            await model.start()
        except UnilectError as error:  # an operator is told why
            raise BackendUnavailable(error.for_operator) from error
        return json_of(_describe(model, metrics))

    async def stop_model(request: web.Request) -> web.StreamResponse:
        """Stop a model once no request runs in it; the next request starts it again."""
        model = await _find_model(request, registry)
        if not model.runs_locally:
            raise UnsupportedOperation(
                f"The model `{model.name}` runs on another server, which unilect cannot stop. Drain it instead."
            )
        model.set_keep_alive(0)
        return json_of(_describe(model, metrics))

    async def drain_model(request: web.Request) -> web.StreamResponse:
        """Send a model no more requests, and stop it once those that it has have ended, until it is loaded again."""
        model = await _find_model(request, registry)
        model.drain()
        return json_of(_describe(model, metrics))

    def act(name: str, handler: Any, summary: str) -> Route:
        return Route("POST", f"/models/{{model:.+}}/{name}", handler, summary=summary)

    return [
        Route("GET", "/models", list_models, summary="List the models, with states"),
        act("load", load_model, "Start a model; end a drain"),
        act("stop", stop_model, "Stop a model until the next request"),
        act("drain", drain_model, "Send a model no more requests, and stop it"),
    ]


async def _find_model(request: web.Request, registry: Registry) -> Model:
    """
    Return the model of a path; of a preset its base, which has the backends.

    Raises:
        ModelNotFound: There is none.
        InvalidRequest: The request has a body.
    """
    check_no_body(await request.read())
    return registry.get(request.match_info["model"]).base


def _describe(model: Model, metrics: Metrics) -> dict[str, Any]:
    """Describe a model; durations in seconds, `since` in seconds since 1970, `tokens_per_s` of one answer."""
    stops_at, now = model.idle_stop_at, asyncio.get_running_loop().time()
    members, state = model.pool.members, model.state
    troubles = [one.trouble for one in members if one.trouble is not None]
    shown = troubles if state in ("out", "failed") else []
    began = [one.began_at for one in members if one.loads] if state == "loading" else []
    queues = [one.queues[0] for one in members if one.queues]
    queue = model.queue
    speed = metrics.tokens_per_s(model.name)
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "state": state,
        "reason": "; ".join(dict.fromkeys(one.reason for one in shown)) or None,
        "since": max([one.since for one in shown] or began, default=None),
        "requests": model.in_use,
        "stops_in_s": None if stops_at is None else round(max(0.0, stops_at - now), 1),
        "memory_bytes": sum(map(_memory, members)),
        "device": ", ".join(dict.fromkeys(filter(None, (m.backend.device for m in members)))),
        "context": model.capabilities.context,
        "slots": sum(one.places for one in queues) or None,
        "slots_used": sum(one.taken for one in queues),
        "queued": queue.length,
        "queue_wait_s": queue.wait_s,
        "tokens_per_s": None if speed is None else round(speed, 1),
        "backends": [_describe_backend(member, now) for member in members],
    }


def _describe_backend(member: PooledBackend, now: float) -> dict[str, Any]:
    """
    Describe a backend.

    Args:
        now: The event loop's time.
    """
    trouble, look_at = member.trouble, member.next_look_at
    return {
        "source": member.source,
        "requests": member.outstanding,
        "served": member.served,
        "out": member.breaker.open,
        "reason": None if trouble is None else trouble.reason,
        "since": None if trouble is None else trouble.since,
        "next_look_in_s": None if look_at is None else round(max(0.0, look_at - now), 1),
        "memory_bytes": _memory(member),
        "device": member.backend.device,
    }


def _memory(member: PooledBackend) -> int:
    """Sum up the resident bytes of a backend's processes, with the files that they map."""
    return sum(one.resident_memory_bytes for one in member.backend.children)
