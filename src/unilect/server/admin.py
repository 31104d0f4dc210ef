"""
The admin API: keys, usage, limits, metrics, models, running requests and the reload of the configuration, on an address of its own and with keys of its own.

It has a guard like any other address: Host, Origin and key are checked for every path, known or not. None of its routes is public. Those that the page
needs are on the addresses of clients, too (`steering.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import structs

from unilect.auth.keys import Keys
from unilect.config.server import Config
from unilect.core.errors import NotStored
from unilect.server import _openapi as openapi
from unilect.server._admin_keys import check_no_body, json_of
from unilect.server._admin_logs import EngineLogs
from unilect.server.app import GUARD, add_routes, metrics_route
from unilect.server.reload import Reloader
from unilect.server.steering import Steering
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
    steering: Steering,
    reloader: Reloader,
    describe: Callable[[], Awaitable[dict[str, Any]]],
) -> web.Application:
    """
    Make the application of the admin API.

    Args:
        steering: What it operates.
        reloader: Reloads the configuration.
        describe: Describes the server.
    """
    accepted, table = Keys(config.admin.api_keys), dict[web.AbstractRoute, Route]()
    bodies = Bodies(config.max_body_bytes)  # clients who fill theirs lock no operator out
    guard = Guard(_guard_config(config), table, bodies=bodies, keys=accepted, admin=True)
    app = web.Application(middlewares=[guard.handle], client_max_size=config.max_body_bytes)
    app[GUARD], app[ADMIN_KEYS], app[ADMIN_BODIES] = guard, accepted, bodies
    own = [*_process_routes(reloader, describe, steering), metrics_route(steering.metrics)]
    logs = EngineLogs(steering.registry)

    async def end_logs(app: web.Application) -> None:
        logs.end()

    app.on_shutdown.append(end_logs)
    routes = steering.routes(logs) + [structs.replace(route, admin=True) for route in own]
    pages = openapi.routes(routes, accepted, _ABOUT, "unilect's admin API")
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


def _process_routes(
    reloader: Reloader, describe: Callable[[], Awaitable[dict[str, Any]]], steering: Steering
) -> list[Route]:
    async def get_server(request: web.Request) -> web.StreamResponse:
        """Describe the server: its process, addresses, configuration file and store, and whether it asks clients for keys."""
        return json_of(await describe() | {"config": _path(reloader)})

    async def get_page(request: web.Request) -> web.StreamResponse:
        """Give the address of the server's page with a key that steers the server from there, until the server ends."""
        url = steering.link((await describe())["urls"][0])
        if url is None:
            raise NotStored(
                "This server has no page to steer it by: `page` is off in its configuration."
            )
        return json_of({"url": url})

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
        Route("GET", "/page", get_page, summary="The page that steers the server"),
        Route("GET", "/reload", get_reload, summary="Whether a reload is under way"),
        Route("POST", "/reload", reload, summary="Reload the configuration"),
        Route("GET", "/debug/tasks", count_tasks, summary="Count the server's tasks"),
    ]


def _path(reloader: Reloader) -> str | None:
    return None if reloader.file is None else str(reloader.file.absolute())
