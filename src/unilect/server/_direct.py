"""
The way from a request to its route.

Nearly every request names a path as it stands in the table of routes, letter for letter. That one is looked up here, and handled as
aiohttp's application would after its search, which takes 250 of the 8,100 steps of the interpreter for a whole answer. Every other request goes
aiohttp's way: one with a query, with a part that varies, with an escape, with `Expect`, or for no route.
"""

from collections.abc import Awaitable

from aiohttp import hdrs, web
from aiohttp.web_urldispatcher import PlainResource, UrlMappingMatchInfo

from unilect.web.aiohttp_internals import set_match
from unilect.web.guard import Guard
from unilect.web.route import Handler


class Direct:
    """
    The handler of all requests to an application.

    Args:
        app: The application, with all its routes; its only middleware is the guard.
        guard: The guard.
        search: aiohttp's way.
    """

    def __init__(self, app: web.Application, guard: Guard, search: Handler) -> None:
        self._guard, self._search = guard, search
        self._known: dict[tuple[str, str], tuple[UrlMappingMatchInfo, Handler]] = {}
        for route in app.router.routes():
            if isinstance(route.resource, PlainResource):
                found = UrlMappingMatchInfo({}, route)
                found.add_app(app)
                found.freeze()
                # as aiohttp, which takes the first of several
                name = route.method, route.resource.canonical
                self._known.setdefault(name, (found, route.handler))

    def handle(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        """Answer a request."""
        known = self._known.get((request.method, request.raw_path))
        if known is None or hdrs.EXPECT in request.headers:
            return self._search(request)
        match, handler = known
        set_match(request, match)
        return self._guard.handle(request, handler)
