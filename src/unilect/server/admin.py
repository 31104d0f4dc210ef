"""
The admin API: keys, usage, limits, metrics, models, running requests and the reload of the configuration, on an address of its own and with keys of its own.

It has a guard like any other address: Host, Origin and key are checked for every path, known or not. None of its routes is public, and none
is on an address of clients.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import structs

from unilect.accounting.failures import MOST_FAILURES, Failures
from unilect.auth.keys import Keys
from unilect.config.server import Config
from unilect.core.errors import (
    InvalidRequest,
    NotStored,
    RequestCancelled,
)
from unilect.models.registry import Registry
from unilect.runtime.context import Context, Requests
from unilect.server import _admin_keys as keys
from unilect.server import _admin_models as models
from unilect.server import _admin_usage as usage
from unilect.server import _openapi as openapi
from unilect.server._admin_keys import check_no_body, json_of
from unilect.server._admin_logs import EngineLogs
from unilect.server.app import GUARD, Shared, add_routes, metrics_route
from unilect.server.reload import Reloader
from unilect.web.bodies import Bodies
from unilect.web.guard import Guard
from unilect.web.route import Route

_ABOUT = (
    "<p>This is the admin API of a unilect server. The machine-readable description of every endpoint is "
    "<a href=openapi.json>openapi.json</a>.</p>"
)
ADMIN_KEYS = web.AppKey("admin_keys", Keys)
ADMIN_BODIES = web.AppKey("admin_bodies", Bodies)


def create_admin(
    config: Config,
    shared: Shared,
    reloader: Reloader,
    describe: Callable[[], Awaitable[dict[str, Any]]],
) -> web.Application:
    """
    Make the application of the admin API.

    Args:
        shared: The parts that it operates.
        reloader: Reloads the configuration.
        describe: Describes the server.
    """
    registry, known = shared.registry, shared.known
    accepted, table = Keys(config.admin.api_keys), dict[web.AbstractRoute, Route]()
    bodies = Bodies(config.max_body_bytes)  # clients who fill theirs lock no operator out
    guard = Guard(_guard_config(config), table, bodies=bodies, keys=accepted, admin=True)
    app = web.Application(middlewares=[guard.handle], client_max_size=config.max_body_bytes)
    app[GUARD], app[ADMIN_KEYS], app[ADMIN_BODIES] = guard, accepted, bodies
    stored = None if known is None else known.stored
    logs = EngineLogs(registry)
    app.on_shutdown.append(logs.end)
    routes = [
        *keys.routes(known, lambda: _aliases(registry)),
        *usage.routes(shared.ledger, shared.limits, stored, registry),
        *models.routes(registry, shared.metrics, shared.requests, shared.events),
        *logs.routes(),
        *_request_routes(shared.requests),
        *_failure_routes(shared.failures),
        *_process_routes(reloader, describe),
        metrics_route(shared.metrics),
    ]
    routes = [structs.replace(route, admin=True) for route in routes]
    pages = openapi.routes(routes, accepted, "unilect's admin API", _ABOUT)
    # who types the address into a browser gets the page, too
    pages += [structs.replace(route, path="/") for route in pages if route.path == "/docs"]
    routes += [structs.replace(route, admin=True) for route in pages]
    add_routes(app, table, routes, admin=True)
    return app


def change_admin(app: web.Application, config: Config) -> None:
    """Have the admin API go by the keys, the hosts and the length of bodies of another configuration from now on."""
    app[ADMIN_KEYS].change(config.admin.api_keys)
    app[ADMIN_BODIES].change(config.max_body_bytes)
    app[GUARD].change(_guard_config(config))


def _guard_config(config: Config) -> Config:
    """Return the configuration as the guard of the admin API is to see it: no page of another origin calls it."""
    place = config.admin.place
    if isinstance(place, tuple):
        hosts = {"host": place[0], "allowed_hosts": config.allowed_hosts}
    else:  # no name of a page leads to a unix socket
        hosts = {"host": "localhost", "allowed_hosts": ["*"]}
    return structs.replace(
        config, **hosts, allowed_origins=[], allow_credentials=False, api_keys=config.admin.api_keys
    )


def _aliases(registry: Registry) -> dict[str, str]:
    return {alias: model.name for model in registry.models.values() for alias in model.aliases}


def _request_routes(requests: Requests) -> list[Route]:
    async def list_requests(request: web.Request) -> web.StreamResponse:
        """List the requests of clients that are being answered, the oldest first; not what they say."""
        return json_of({"requests": [_describe_request(one) for one in requests.values()]})

    async def cancel_request(request: web.Request) -> web.StreamResponse:
        """End a request; its client gets an error, as the last event of a stream that has begun."""
        check_no_body(await request.read())
        name = request.match_info["request"]
        context = requests.get(name)
        if context is None:
            raise NotStored(f"There is no running request `{name[:100]}`; it may have ended.")
        context.end(RequestCancelled("An operator of this server has ended the request."))
        return json_of(_describe_request(context))

    return [
        Route("GET", "/requests", list_requests, summary="List the requests that run"),
        Route(
            "POST", "/requests/{request}/cancel", cancel_request, summary="End a request that runs"
        ),
    ]


def _failure_routes(failures: Failures) -> list[Route]:
    async def list_failures(request: web.Request) -> web.StreamResponse:
        """List the last failed requests of clients, the latest first: `limit` of them (20)."""
        limit = request.query.get("limit", "20")
        if not limit.isdecimal() or len(limit) > 4:
            raise InvalidRequest("limit: expected a number from 0 to 9999.", param="limit")
        return json_of({"failures": list(map(structs.asdict, failures.latest(int(limit))))})

    async def get_failure(request: web.Request) -> web.StreamResponse:
        """Tell why a request of a client failed, and which backends it was sent to."""
        name = request.match_info["request"]
        found = failures.get(name)
        if found is None:
            raise NotStored(
                f"No failure of a request `{name[:100]}` is known. It has not failed, it runs still, or it failed long ago: the last "
                f"{MOST_FAILURES:,} failures are kept, until the server ends."
            )
        return json_of(structs.asdict(found))

    return [
        Route("GET", "/failures", list_failures, summary="List the last failed requests"),
        Route("GET", "/failures/{request}", get_failure, summary="Why a request failed"),
    ]


def _describe_request(context: Context) -> dict[str, Any]:
    """Describe a request in JSON, with its age in seconds and its tokens so far."""
    usage = None if context.meter is None else context.meter.usage
    return {
        "id": context.request_id,
        "caller": context.caller,
        "address": context.address,
        "owner": context.owner,
        "model": context.model,
        "answering": context.answering,
        "source": context.source,
        "endpoint": context.endpoint,
        "dialect": context.dialect,
        "state": "ending" if context.ended is not None else context.state,
        "age_s": round(time.perf_counter() - context.started, 3),
        "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
        "completion_tokens": 0 if usage is None else usage.completion_tokens,
    }


def _process_routes(
    reloader: Reloader, describe: Callable[[], Awaitable[dict[str, Any]]]
) -> list[Route]:
    async def get_server(request: web.Request) -> web.StreamResponse:
        """Describe the server: its process, addresses, configuration file and store, and whether it asks clients for keys."""
        return json_of(await describe() | {"config": _path(reloader)})

    async def get_reload(request: web.Request) -> web.StreamResponse:
        """Say which file the configuration comes from, and whether a reload is under way."""
        return json_of({"state": reloader.state, "file": _path(reloader)})

    async def reload(request: web.Request) -> web.StreamResponse:
        """Reload the configuration: all of it, or nothing, and the reason."""
        check_no_body(await request.read())
        done = await reloader.reload("the admin API")
        return json_of({"file": _path(reloader), "told": str(done)} | structs.asdict(done))

    async def count_tasks(request: web.Request) -> web.StreamResponse:
        """Count the asyncio tasks of the server by name, this request's included."""
        tasks = asyncio.all_tasks()
        names = Counter(
            "a connection or a request" if name.startswith("Task-") else name
            for name in (task.get_name() for task in tasks)
        )
        return json_of({"count": len(tasks), "tasks": dict(sorted(names.items()))})

    return [
        Route("GET", "/server", get_server, summary="Describe the server"),
        Route("GET", "/reload", get_reload, summary="Whether a reload is under way"),
        Route("POST", "/reload", reload, summary="Reload the configuration"),
        Route("GET", "/debug/tasks", count_tasks, summary="Count the server's tasks"),
    ]


def _path(reloader: Reloader) -> str | None:
    return None if reloader.file is None else str(reloader.file.absolute())
