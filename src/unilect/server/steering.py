"""
The routes by which an operator sees and steers a server: those of the admin API, and the same for its page.

On the addresses of clients they are below `/admin`, where none is without a key: one of `[admin]`, or the one that the server makes at
each start, which whoever may use the admin API gets there (`GET /page`), and nobody else.
"""

import secrets
from urllib.parse import urlsplit, urlunsplit

from msgspec import structs

from unilect.auth.keys import Keys
from unilect.config.server import Config
from unilect.models.registry import Registry
from unilect.server import _admin_failures as failures
from unilect.server import _admin_keys as keys
from unilect.server import _admin_models as models
from unilect.server import _admin_requests as requests
from unilect.server import _admin_usage as usage
from unilect.server._admin_logs import EngineLogs
from unilect.server._live import Live
from unilect.server.app import Shared
from unilect.web.route import Route


class Steering:
    """
    The operators' side of one server, at all its addresses.

    Args:
        shared: The parts that they operate.

    Attributes:
        registry, metrics: Those of the server.
    """

    def __init__(self, config: Config, shared: Shared) -> None:
        self._key = secrets.token_urlsafe(24)
        self._keys = Keys()
        self.change(config)
        self._shared, self.metrics, self.registry = shared, shared.metrics, shared.registry
        self._logs = EngineLogs(self.registry)
        self._live = Live(shared.registry, shared.metrics, shared.requests, shared.failures)

    def change(self, config: Config) -> None:
        """Let in who has a key of another configuration from now on."""
        self._is_on = config.page.on and config.page.steer
        self._keys.change([*config.admin.api_keys, self._key])

    def open(self) -> None:
        """Begin to sample what the page plots."""
        if self._is_on:
            self._live.open()

    async def shut(self) -> None:
        """End what follows the server at the addresses of clients. Idempotent."""
        self._logs.end()
        await self._live.shut()

    def routes(self, logs: EngineLogs) -> list[Route]:
        """Return the routes of the admin API that operate the server."""
        shared, registry, known = self._shared, self._shared.registry, self._shared.known
        stored = None if known is None else known.stored
        routes = [
            *keys.routes(known, lambda: _aliases(registry)),
            *usage.routes(shared.ledger, shared.limits, stored, registry),
            *models.routes(registry, shared.metrics, shared.requests, shared.events),
            *logs.routes(),
            *requests.routes(shared.requests),
            *failures.routes(shared.failures),
            *self._live.routes(),
        ]
        return [structs.replace(route, admin=True) for route in routes]

    def page_routes(self) -> list[Route]:
        """Return the same for the page, on an address of clients; none where it is off."""
        if not self._is_on:
            return []
        return [
            structs.replace(route, path=f"/admin{route.path}", keys=self._keys)
            for route in self.routes(self._logs)
        ]

    def link(self, url: str) -> str | None:
        """
        Return the address of the page with the key in its fragment, which no browser sends anywhere; None where the page is off.

        Args:
            url: Of the server.
        """
        if not self._is_on:
            return None
        scheme, place, *_ = urlsplit(url)
        return urlunsplit((scheme, place, "/", "", f"key={self._key}"))


def _aliases(registry: Registry) -> dict[str, str]:
    return {alias: model.name for model in registry.models.values() for alias in model.aliases}
