"""
The HTTP application: every route in one table, behind the guard.

A route that is not declared public needs a key; there is no other way to add one.
"""

from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from aiohttp import web

from unilect import plugins
from unilect.config.server import Config
from unilect.dialects import DIALECTS
from unilect.dialects.fastchat import _controller as fastchat_controller
from unilect.dialects.fastchat import _worker as fastchat_worker
from unilect.dialects.fastchat._admission import Admission
from unilect.dialects.fastchat._workers import Workers
from unilect.gateway.keys import Keys
from unilect.gateway.metrics import Metrics
from unilect.routing.model_facts import kind, limits
from unilect.routing.registry import Registry
from unilect.routing.service import Service
from unilect.server import _openapi as openapi
from unilect.web import pages
from unilect.web.bodies import Bodies
from unilect.web.guard import Guard
from unilect.web.manners import OPENAI, Manners, manners_of
from unilect.web.route import Route

_VARY = {"Vary": "Accept", "Cache-Control": "no-store"}
_LINKS = {
    "name": "unilect",
    "models": "/v1/models",
    "chat_completions": "/v1/chat/completions",
    "docs": "/docs",
    "openapi": "/openapi.json",
}
SERVICE = web.AppKey("service", Service)
GUARD = web.AppKey("guard", Guard)
WORK = web.AppKey("work", fastchat_worker.Work)


def create_app(
    config: Config,
    registry: Registry,
    metrics: Metrics | None = None,
    bodies: Bodies | None = None,
) -> web.Application:
    """
    The application for a configuration and its models.

    Args:
        registry: The models; the application stops their backends when it is cleaned up.
        metrics: Where to count; new ones by default.
        bodies: What reads request bodies; one of its own by default.
    """
    manners = manners_of(config)
    service = Service(registry, metrics or Metrics(), manners.unknown_model)
    routes = all_routes(service, manners, bool(config.api_keys))
    work = fastchat_worker.Work(service, config.fastchat_worker_concurrency)
    workers = Workers(registry, config.fastchat_dispatch)
    routes += fastchat_routes(config, service, work, workers)
    public = {path for route in routes if route.public for path in _spellings(route)}
    guard = Guard(config, public, manners, bodies, registry.look_again)
    guard.pages = frozenset(path for route in routes if route.page for path in _spellings(route))
    app = web.Application(middlewares=[guard.handle], client_max_size=config.max_body_bytes)
    app[SERVICE], app[GUARD], app[WORK] = service, guard, work
    for route in routes:
        for path in _spellings(route):
            app.router.add_route(route.method, path, route.handler)
            if route.method == "GET":
                app.router.add_route("HEAD", path, route.handler)

    async def clean_up(app: web.Application) -> None:
        workers.aclose()
        await registry.aclose()

    app.on_cleanup.append(clean_up)
    return app


def _spellings(route: Route) -> tuple[str, ...]:
    """The path of a route, and the same with a slash at its end, as some clients write it; a page's links want one of them."""
    alone = route.page or route.path.endswith(("/", ":.+}"))
    return (route.path,) if alone else (route.path, f"{route.path}/")


def all_routes(service: Service, manners: Manners = OPENAI, has_keys: bool = True) -> list[Route]:
    """The routes of every dialect, of every `unilect.dialects` entry point, and our own."""
    modules = [import_module(name) for name in DIALECTS.values()]
    routes = own_routes(service, has_keys)
    routes += [route for module in modules for route in module.routes(service, manners)]
    _, left_out = plugins.use_all(plugins.DIALECTS, partial(_add, routes, service, manners))
    for why in left_out:
        plugins.warn(why)
    return routes + openapi.routes(routes, has_keys)


def _add(routes: list[Route], service: Service, manners: Manners, module: Any) -> None:
    """
    Add the routes of a dialect of another package.

    Raises:
        ValueError: Another dialect has one of them. Whatever else is wrong with one raises as it does where it is used.
    """
    new: list[Route] = module.routes(service, manners)
    taken, dispatcher = {(route.method, route.path) for route in routes}, web.UrlDispatcher()
    for route in new:
        if (route.method, route.path) in taken:
            raise ValueError(f"{route.method} {route.path} belongs to another dialect")
        dispatcher.add_route(route.method, route.path, route.handler)
    openapi.openapi(new)
    routes += new


def fastchat_routes(
    config: Config, service: Service, work: fastchat_worker.Work, workers: Workers
) -> list[Route]:
    """The routes of FastChat's worker and controller, as far as the configuration asks for them."""
    if not config.fastchat_controller and config.fastchat_register is None:
        return []
    own = fastchat_worker.routes(service, work)
    if not config.fastchat_controller:
        return own
    keys = Keys(config.api_keys)
    admission = Admission(config, keys.knows)
    is_worker = config.fastchat_register is not None

    def is_open(request: web.Request) -> bool:
        """Our own models need a key, where there are keys, unless this is a worker; those who may register need none."""
        return is_worker or not keys or admission.is_trusted(request)

    calls = {route.path: route.handler for route in own}
    here = fastchat_controller.Own(calls, work.names_of, is_open)
    return fastchat_controller.routes(workers, admission, here)


def own_routes(service: Service, has_keys: bool = True) -> list[Route]:
    """The routes that belong to no dialect."""

    async def home(request: web.Request) -> web.StreamResponse:
        """Say what this server is: a page for a browser, links for a program."""
        if not pages.wants_html(request.headers.get("Accept", "")):
            return web.json_response(_LINKS | {"version": version("unilect")}, headers=_VARY)
        models = [(m.name, kind(m), limits(m)) for m in service.registry.models.values()]
        text = pages.home(request.host, request.secure, models, has_keys)
        return web.Response(body=text.encode(), headers=pages.HEADERS)

    async def healthz(request: web.Request) -> web.StreamResponse:
        """Say that the process lives."""
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.StreamResponse:
        """Say that requests are taken: 200, or 503 while the server starts or stops."""
        if service.ready:
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    async def metrics(request: web.Request) -> web.StreamResponse:
        """Tell all metrics, in Prometheus' text format."""
        return web.Response(
            body=service.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    return [
        Route("GET", "/", home, page=True, summary="What this server is, for people"),
        Route("GET", "/healthz", healthz, public=True, summary="Say that the process lives"),
        Route("GET", "/readyz", readyz, public=True, summary="Say that requests are taken"),
        Route("GET", "/metrics", metrics, summary="Metrics for Prometheus"),
    ]
