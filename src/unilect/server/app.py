"""
The HTTP application: every route in one table, behind the guard.

A route that is not declared public needs a key; there is no other way to add one.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial, wraps
from importlib.metadata import version
from typing import Any

from aiohttp import web
from msgspec import Struct, field, structs

from unilect.accounting.account import Accounts, RequestRecorder
from unilect.accounting.failures import Failures
from unilect.accounting.ledger import LedgerRecorder
from unilect.accounting.metrics import Metrics
from unilect.accounting.tracing import Tracing
from unilect.adapt.images import Images
from unilect.answers.inflight import Answers
from unilect.answers.service import Service
from unilect.auth.key_cache import KeyCache
from unilect.config.server import Config
from unilect.config.store import SQLITE
from unilect.core.errors import BackendUnavailable, UnilectError
from unilect.limits.limiter import Limiter
from unilect.models.facts import kind, traits
from unilect.models.registry import Registry
from unilect.runtime import plugins
from unilect.runtime.context import Requests
from unilect.runtime.tasks import list_in_slices
from unilect.server import _openapi as openapi
from unilect.server import _page as page
from unilect.server import _usage as usage
from unilect.server._model_events import ModelEvents
from unilect.store.store import Store
from unilect.web import pages
from unilect.web.bodies import Bodies
from unilect.web.guard import Guard
from unilect.web.profile import profile_of
from unilect.web.rejoining import Rejoining
from unilect.web.route import Route
from unilect.web.site import Site

_VARY = {"Vary": "Accept", "Cache-Control": "no-store"}
_LINKS = {
    "name": "unilect",
    "models": "/v1/models",
    "chat_completions": "/v1/chat/completions",
    "docs": "/docs",
    "openapi": "/openapi.json",
}
SITE = web.AppKey("site", Site)
GUARD = web.AppKey("guard", Guard)


class Shared(Struct, frozen=True):
    """
    The parts of a server that all its addresses share.

    Attributes:
        registry: The models; an application stops their backends when it is cleaned up.
        metrics: Where to count.
        bodies: What reads request bodies; one for each application by default.
        requests: Where the requests that are being answered are listed.
        store: What is kept beyond a request; one in memory for each application by default.
        known: The keys of the store; by default those of the configuration are the only ones.
        ledger: Records the requests; by default nothing is recorded.
        limits: Decides about each request; it is asked after the ledger, and closed before it. By default there are no limits.
        tracing: Traces the requests; by default nothing is traced.
        inflight: The owner of answers that may outlive their clients; one for each application by default, which holds none.
        failures: Keeps the failed requests.
        events: Has what happened to the models' places; by default only what is in memory.
    """

    registry: Registry
    metrics: Metrics
    bodies: Bodies | None = None
    requests: Requests = field(default_factory=dict)
    store: Store | None = None
    known: KeyCache | None = None
    ledger: LedgerRecorder | None = None
    limits: Limiter | None = None
    tracing: Tracing | None = None
    inflight: Answers | None = None
    failures: Failures = field(default_factory=Failures)
    events: ModelEvents = field(default_factory=ModelEvents)


def create_app(config: Config, shared: Shared, steering: Sequence[Route] = ()) -> web.Application:
    """
    Make the application for the configuration of an address.

    Args:
        steering: The routes for operators there.
    """
    registry, metrics, ledger = shared.registry, shared.metrics, shared.ledger
    kept = shared.store or Store(structs.replace(config.store, url=SQLITE), {})
    images = Images(config.image_hosts)
    # totals of the ledger are read for the limits: what has a row has been counted there before
    books: tuple[RequestRecorder | None, ...] = (shared.tracing, ledger, shared.limits)
    accounts = Accounts(metrics, tuple(book for book in books if book is not None))
    service = Service(registry, accounts, profile_of(config).unknown_model, images)
    site = Site(
        *(service, config, kept.answers, shared.known, ledger, shared.requests),
        *(shared.limits, shared.inflight),
    )
    routes: dict[web.AbstractRoute, Route] = {}
    guard = Guard(
        *(
            config,
            routes,
            site.profile,
            shared.bodies,
            registry.look_again,
            site.requests,
            site.keys,
        ),
        refuse=metrics.refuse,
        failures=shared.failures,
        tracing=shared.tracing,
    )
    app = web.Application(middlewares=[guard.handle], client_max_size=config.max_body_bytes)
    app[SITE], app[GUARD] = site, guard
    every_route = all_routes(site)
    if site.inflight.window_s:  # else a request meets nothing of it
        every_route = list(map(Rejoining(site.inflight, ledger).joinable, every_route))
    add_routes(app, routes, every_route, admin=False)
    add_routes(app, routes, list(steering), admin=True)

    async def clean_up(app: web.Application) -> None:
        if shared.inflight is None:
            await site.inflight.aclose()
        await site.aclose()
        if shared.store is None:
            await kept.aclose()
        await registry.aclose()

    app.on_cleanup.append(clean_up)
    return app


def change(app: web.Application, config: Config) -> None:
    """Have an application go by another configuration of its address, as far as that can be changed while it serves."""
    app[GUARD].change(config)
    app[SITE].change(config)
    app[SITE].service.images = Images(config.image_hosts)


def add_routes(
    app: web.Application,
    table: dict[web.AbstractRoute, Route],
    routes: list[Route],
    admin: bool,
) -> None:
    """
    Put routes into an application, and into its guard's table.

    Args:
        admin: The routes are those of operators, or none is.

    Raises:
        ValueError: A route belongs to the other kind.
    """
    for route in _group(routes):
        if (route.access == "admin") is not admin:
            raise ValueError(f"{route.method} {route.path} is of the other kind")
        for path in _spellings(route):
            for method in (route.method, "HEAD")[: 1 + (route.method == "GET")]:
                table[app.router.add_route(method, path, route.handler)] = route


def _group(routes: list[Route]) -> list[Route]:
    """Return one route for each URL and method, with those of the same that need a header."""
    others = defaultdict[tuple[str, str], list[Route]](list)
    for route in routes:
        if route.needs_header:
            others[route.method, route.path].append(route)
    alone = [route for route in routes if not route.needs_header]
    return [_with_others(route, tuple(others[route.method, route.path])) for route in alone]


def _with_others(route: Route, others: tuple[Route, ...]) -> Route:
    """Return a route that hands requests with a header of the others' to them."""
    if not others:
        return route

    @wraps(route.handler)
    async def handler(request: web.Request) -> web.StreamResponse:
        chosen = next((one for one in others if one.needs_header in request.headers), route)
        return await chosen.handler(request)

    return structs.replace(route, others=others, handler=handler)


def _spellings(route: Route) -> tuple[str, ...]:
    """Return the path of a route, and the same with a slash at its end, as some clients write it; a page's links want one of them."""
    alone = route.page or route.path.endswith(("/", ":.+}"))
    return (route.path,) if alone else (route.path, f"{route.path}/")


def all_routes(site: Site) -> list[Route]:
    """Return the routes of every dialect, unilect's own before those of other packages, and those that belong to none."""
    routes = [*own_routes(site), *usage.routes(site)]
    for entry in plugins.ours(plugins.DIALECTS).values():
        module = entry.load()
        routes += _set_dialect(module, module.routes(site))
    _, left_out = plugins.use_all(plugins.DIALECTS, partial(_add, routes, site))
    for why in left_out:
        plugins.warn(why)
    about = openapi.about_api(site.config.page.on)
    return routes + openapi.routes(routes, site.keys, about)


def _add(routes: list[Route], site: Site, module: Any) -> None:
    """
    Add the routes of a dialect of another package.

    Raises:
        ValueError: Another dialect has one of them. Whatever else is wrong with one raises as it does where it is used.
    """
    new: list[Route] = module.routes(site)
    taken, dispatcher = {(route.method, route.path) for route in routes}, web.UrlDispatcher()
    for route in new:
        if (route.method, route.path) in taken:
            raise ValueError(f"{route.method} {route.path} belongs to another dialect")
        if route.admin:
            raise ValueError(f"{route.method} {route.path} is no route of clients: it has `admin`")
        dispatcher.add_route(route.method, route.path, route.handler)
    openapi.openapi(new)
    routes += _set_dialect(module, new)


def _set_dialect(module: Any, routes: list[Route]) -> list[Route]:
    """Return the routes of a dialect, with its name."""
    name = module.__name__.removeprefix("unilect.dialects.")
    return [structs.replace(route, dialect=name) for route in routes]


def _check_ready(site: Site) -> None:
    """
    Check that a request to an address may succeed.

    Raises:
        UnilectError: None can; the message is for anybody.
    """
    if not site.service.ready:
        raise BackendUnavailable("The server is stopping.")
    if site.ledger is not None and not site.ledger.ready:
        raise BackendUnavailable("The ledger, which each request needs, cannot be written.")
    if site.limits is not None and not site.limits.ready:
        raise BackendUnavailable(
            "The limits, which each request has, cannot be counted. The log says why."
        )
    _ = site.keys.required  # raises where the store, which may have keys, cannot be read
    site.service.registry.check_able()


def own_routes(site: Site) -> list[Route]:
    """Return the routes that belong to no dialect."""
    service, greeting, has_page = site.service, site.profile.home, site.config.page.on

    async def home(request: web.Request) -> web.StreamResponse:
        """Say what this server is: a page for a browser, links for a program."""
        if not pages.wants_html(request.headers.get("Accept", "")):
            if greeting is not None:
                return web.Response(text=greeting, headers=_VARY)
            return web.json_response(_LINKS | {"version": version("unilect")}, headers=_VARY)
        if has_page:
            return page.respond_file(request, "index.html")
        tables = site.config.models
        models = [(m.name, kind(m), traits(m, tables.get(m.name))) for m in service.models]
        needs_key, has_metrics = site.keys.required, site.metrics_keys.open
        text = pages.home(request.host, request.secure, models, needs_key, has_metrics)
        return web.Response(body=text.encode(), headers=pages.HEADERS)

    async def healthz(request: web.Request) -> web.StreamResponse:
        """Say that the process lives."""
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.StreamResponse:
        """Say that requests are taken: 200, or 503 with the reason while none can succeed, as where the store cannot be read or all models are out."""
        try:
            _check_ready(site)
        except UnilectError as error:
            return web.Response(text=f"not ready: {error.message}\n", status=503)
        return web.Response(text="ready\n")

    return [
        Route(
            "GET", "/", home, page=True, public=has_page, summary="What this server is, for people"
        ),
        *(page.routes(site) if has_page else ()),
        Route("GET", "/healthz", healthz, public=True, summary="Say that the process lives"),
        Route("GET", "/readyz", readyz, public=True, summary="Say that requests are taken"),
        structs.replace(metrics_route(service.accounts.metrics), keys=site.metrics_keys),
    ]


def metrics_route(told: Metrics) -> Route:
    """Return the route of some metrics."""

    async def metrics(request: web.Request) -> web.StreamResponse:
        """Tell all metrics, in Prometheus' text format."""
        await told.measure()
        pieces = await list_in_slices(map(str.encode, told.exposition()))
        return web.Response(
            body=b"".join(pieces),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    return Route("GET", "/metrics", metrics, page=True, summary="Metrics for Prometheus")
