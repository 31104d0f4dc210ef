"""The models of a server, for its operator: what each does, why, on what, and how fast; and the routes that load, stop and drain them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from unilect.accounting.metrics import Metrics
from unilect.api.backend import Life
from unilect.core.errors import (
    BackendUnavailable,
    ModelTooLarge,
    UnilectError,
    UnsupportedOperation,
)
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.residency.fits import Fits
from unilect.runtime.context import Requests
from unilect.runtime.tasks import list_in_slices
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._admin_keys import check_no_body, json_of
from unilect.server._memory import Memory, measure_memory
from unilect.server._model_events import ModelEvents
from unilect.web.route import Route


def routes(
    registry: Registry, metrics: Metrics, requests: Requests, events: ModelEvents
) -> list[Route]:
    """
    Return the routes about models.

    Args:
        requests: Those that are being answered.
        events: What has happened to the models.
    """

    descriptions = Descriptions(registry, metrics, requests)

    async def answer(model: Model) -> web.Response:
        (described,) = await descriptions.of([model])
        return json_of(described)

    async def load_model(request: web.Request) -> web.StreamResponse:
        """Start a model, and wait until it has; one that was drained takes requests again, and one that was given up is tried at once."""
        model = await _find_model(request, registry)
        for member in model.pool.members:
            for child in member.backend.children:
                child.forgive()
        try:
            await model.start()
        except UnilectError as error:  # an operator is told why
            kind = ModelTooLarge if isinstance(error, ModelTooLarge) else BackendUnavailable
            raise kind(error.for_operator) from error
        return await answer(model)

    async def stop_model(request: web.Request) -> web.StreamResponse:
        """Stop a model once no request runs in it; the next request starts it again."""
        model = await _find_model(request, registry)
        if not model.runs_locally:
            raise UnsupportedOperation(
                f"The model `{model.name}` runs on another server, which unilect cannot stop. Drain it instead."
            )
        model.set_keep_alive(0)
        return await answer(model)

    async def drain_model(request: web.Request) -> web.StreamResponse:
        """Send a model no more requests, and stop it once those that it has have ended, until it is loaded again."""
        model = await _find_model(request, registry)
        model.drain()
        return await answer(model)

    def act(name: str, handler: Any, summary: str) -> Route:
        return Route("POST", f"/models/{{model:.+}}/{name}", handler, summary=summary)

    return [
        _list_route(registry, descriptions),
        _events_route(registry, events),
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


class Descriptions:
    """
    The descriptions of models.

    Args:
        registry: All models.
        metrics: What is counted of them.
        requests: Those that are being answered.
    """

    def __init__(self, registry: Registry, metrics: Metrics, requests: Requests) -> None:
        self._registry, self._metrics, self._requests = registry, metrics, requests

    async def of(self, models: Sequence[Model]) -> list[dict[str, Any]]:
        """Describe some models, each with its presets."""
        memory = await measure_memory(models)
        presets = defaultdict[str, list[str]](list)
        for model in self._registry.models.values():
            presets[model.base.name] += [model.name] if model.base is not model else []
        made = Counter[str]()
        for one in self._requests.values():
            if one.meter is not None:
                made[one.model] += one.meter.usage.completion_tokens
        residency = self._registry.residency
        fits = None if residency is None else Fits(residency)
        return await list_in_slices(
            _describe(model, memory)
            | _describe_place(model, fits)
            | self._tell_tokens((model.name, *presets[model.name]), made)
            | {"presets": presets[model.name]}
            for model in models
        )

    def _tell_tokens(self, names: Sequence[str], made: Counter[str]) -> dict[str, Any]:
        """
        Describe what a model generates: `tokens_per_s` of one answer of late, and the tokens of all its answers.

        Args:
            made: The tokens of the answers that have not ended, by model.
        """
        metrics = self._metrics
        speeds = [speed for name in names if (speed := metrics.tokens_per_s(name)) is not None]
        return {
            "tokens_per_s": round(max(speeds), 1) if speeds else None,
            "completion_tokens": sum(made[one] + metrics.completion_tokens(one) for one in names),
        }


def _list_route(registry: Registry, descriptions: Descriptions) -> Route:
    """Return the route about all models."""

    async def list_models(request: web.Request) -> web.StreamResponse:
        """List the models that are served, and those that a reload has taken out and whose last requests still run; and the bytes of memory that all may take, and that are promised."""
        models = (*registry.bases, *registry.leaving)
        residency = registry.residency
        memory = None
        if residency is not None and residency.budget is not None:
            memory = {"budget_bytes": residency.budget, "promised_bytes": residency.claimed}
        return json_of({"memory": memory, "models": await descriptions.of(models)})

    return Route("GET", "/models", list_models, summary="List the models, with states")


def _describe(model: Model, memory: Memory) -> dict[str, Any]:
    """Describe a model; durations in seconds, `since` in seconds since 1970."""
    stops_at, now = model.idle_stop_at, asyncio.get_running_loop().time()
    members, state = model.pool.members, model.state
    troubles = [one.trouble for one in members if one.trouble is not None]
    shown = troubles if state in ("out", "failed") else []
    began = [one.began_at for one in members if one.loads] if state == "loading" else []
    queues = [one.queues[0] for one in members if one.queues]
    queue = model.queue
    backends = [_describe_backend(member, memory, now) for member in members]
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "state": state,
        "reason": "; ".join(dict.fromkeys(one.reason for one in shown)) or None,
        "since": max([one.since for one in shown] or began, default=None),
        "requests": model.in_use,
        "stops_in_s": None if stops_at is None else round(max(0.0, stops_at - now), 1),
        "memory_bytes": sum(one["memory_bytes"] for one in backends),
        "resident_memory_bytes": sum(one["resident_memory_bytes"] for one in backends),
        "pinned": model.pinned,
        "loading": _describe_load(model) if state == "loading" else None,
        "device": ", ".join(dict.fromkeys(filter(None, (m.backend.device for m in members)))),
        "context": model.capabilities.context,
        "slots": model.slots,
        "slots_used": sum(one.taken for one in queues),
        "queued": queue.length,
        "queue_wait_s": queue.wait_s,
        "backends": backends,
    }


def _describe_load(model: Model) -> dict[str, Any]:
    """Describe a load: its step (`downloading`, `loading`), and the part of it that is done (0 to 1) and its bytes, where they are told."""
    members = [one for one in model.pool.members if one.loads or one.is_coming_back]
    what = "downloading" if any(one.is_fetching for one in members) else "loading"
    steps = [one.steps.last for one in members if one.steps.last is not None]
    steps = [one for one in steps if one.what == what]
    slowest = min(steps, key=lambda one: one.part, default=None)
    return {
        "step": what,
        "part": None if slowest is None else round(slowest.part, 3),
        "size_bytes": None if slowest is None else slowest.size_bytes or None,
    }


def _describe_place(model: Model, fits: Fits | None) -> dict[str, Any]:
    """Describe the place of a model in memory: what it takes, how long its load takes, and what another load would do; None each where it has none."""
    place = model.place
    fit = None if place is None or fits is None else fits.of(place)
    is_timed = place is not None and (place.waiting or (place.starts and model.is_loading))
    is_fetched = any(one.is_fetching for one in model.pool.members)
    return {
        "memory_need_bytes": None if place is None else place.need.total,
        "fit": None if fit is None else fit.verdict,
        "evicts": [] if fit is None else fit.evicts,
        "load_s": None if place is None else place.load_s,
        "load_left_s": round(place.wait_s, 1) if place and is_timed and not is_fetched else None,
        "waits_for": _waits_for(model),
    }


def _events_route(registry: Registry, events: ModelEvents) -> Route:
    """Return the route about what has happened to a model."""

    async def list_events(request: web.Request) -> web.StreamResponse:
        """List what has happened to a model's place in memory and to its processes, and why, the oldest first; also in earlier and other processes of the store."""
        model = await _find_model(request, registry)
        found, missing = await events.read(model)
        told = [
            {name: getattr(one, name) for name in ("server", "kind", "reason", "numbers")}
            | {"time": one.at}
            for one in found
        ]
        return json_of(
            {"model": model.name, "state": model.state, "server": events.server}
            | {"missing": missing, "events": told}
        )

    told = "List the loads, evictions and deaths of a model, with reasons"
    return Route("GET", "/models/{model:.+}/events", list_events, summary=told)


def _waits_for(model: Model) -> str | None:
    """Say why a model that is asked for is not loaded; None where it is, or nobody asks."""
    place = model.place
    if place is None or not place.waiting or not model.events.last:
        return None
    last = model.events.last[-1]
    return last.reason if last.kind == "waits" else None


def _describe_backend(member: PooledBackend, memory: Memory, now: float) -> dict[str, Any]:
    """
    Describe a backend.

    Args:
        now: The event loop's time.
    """
    trouble, look_at = member.trouble, member.next_look_at
    processes = [
        _describe_process(one, memory) for one in member.backend.children if one.pid is not None
    ]
    return {
        "source": member.source,
        "requests": member.outstanding,
        "served": member.served,
        "out": member.breaker.open,
        "reason": None if trouble is None else trouble.reason,
        "since": None if trouble is None else trouble.since,
        "next_look_in_s": None if look_at is None else round(max(0.0, look_at - now), 1),
        "memory_bytes": sum(one["memory_bytes"] for one in processes),
        "resident_memory_bytes": sum(one["resident_memory_bytes"] for one in processes),
        "device": member.backend.device,
        "processes": processes,
    }


def _describe_process(life: Life, memory: Memory) -> dict[str, Any]:
    """Describe a process of an engine; one that has come since the memory was measured has none."""
    return {
        "pid": life.pid,
        "memory_bytes": memory.get(life, 0),
        "resident_memory_bytes": life.resident_memory_bytes,
        "starts": life.starts,
    }
