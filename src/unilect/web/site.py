"""
One address of the server, for its dialects: the service, the compatibility profile, and the background services.
"""

import asyncio
import socket
from contextlib import suppress

from unilect.accounting.ledger import LedgerRecorder
from unilect.answers.inflight import Answers
from unilect.answers.service import Service
from unilect.auth.key_cache import KeyCache
from unilect.auth.keys import Keys, MetricsKeys
from unilect.config.server import Config
from unilect.limits.limiter import Limiter
from unilect.runtime.context import Requests
from unilect.runtime.tasks import END_TIMEOUT_S, Tasks
from unilect.store.responses import ResponseStore
from unilect.web.profile import CompatProfile, profile_of


class BackgroundService:
    """A background service of a dialect, while an address is open; each method may do nothing."""

    async def open(self, url: str) -> None:
        """Begin: the address answers, at this URL."""

    async def shut(self) -> None:
        """Leave: the address accepts no more requests; running ones continue."""

    async def aclose(self) -> None:
        """Release everything: the address is closed."""


class Site:
    """
    An address.

    Args:
        service: Answers the requests.
        config: The address's configuration.
        answers: Stored responses, of all addresses.
        known: The keys of the store, of all addresses.
        ledger: What was used, of all addresses.
        requests: The requests that are being answered, of all addresses; work in the background for a caller is one of them.
        limits: The limits of requests, of all addresses.
        inflight: The owner of answers that may outlive their clients, of all addresses; one of its own by default.

    Attributes:
        service, config: As given.
        answers: As given; None where none are stored.
        ledger: As given; None where nothing is recorded.
        limits: As given; None where there are none.
        requests, inflight: As given.
        keys: Who may send requests to this address.
        metrics_keys: Who may read the metrics there.
        profile: How clients of this address want their answers.
        background_services: What goes on while it is open; a dialect's `routes` adds its own.
        background: Work apart from requests, such as of a batch; it is cancelled once no more requests are taken.
    """

    def __init__(
        self,
        service: Service,
        config: Config | None = None,
        answers: ResponseStore | None = None,
        known: KeyCache | None = None,
        ledger: LedgerRecorder | None = None,
        requests: Requests | None = None,
        limits: Limiter | None = None,
        inflight: Answers | None = None,
    ) -> None:
        self.service = service
        self.limits = limits
        self.answers = answers
        self.ledger = ledger
        self.requests: Requests = {} if requests is None else requests
        self.inflight = inflight or Answers(0.0, self.requests)
        self.config = config or Config()
        self.profile: CompatProfile = profile_of(self.config)
        self.keys = Keys(self.config.api_keys, self.profile.any_key_scheme, known)
        self.metrics_keys = MetricsKeys(self.keys, *_of_metrics(self.config))
        self.background_services: list[BackgroundService] = []
        self.background = Tasks()

    def change(self, config: Config) -> None:
        """Go by another configuration from now on, as far as it can be changed while the address is open."""
        self.config = config
        self.keys.change(config.api_keys)
        self.metrics_keys.change(*_of_metrics(config))

    async def open(self, url: str) -> None:
        """Begin: the address answers, at this URL."""
        for service in self.background_services:
            await service.open(url)

    def shut(self) -> None:
        """Accept no more requests."""
        self.service.ready = False

    async def end_background(self) -> None:
        """Cancel the background work, and have the background services leave, all at the same time and within `END_TIMEOUT_S`."""
        leaving = (_leave(service) for service in self.background_services)
        await asyncio.gather(self.background.aclose(), *leaving)

    async def aclose(self) -> None:
        """Close the address."""
        await self.background.aclose()
        for service in self.background_services:
            await service.aclose()


async def _leave(service: BackgroundService) -> None:
    with suppress(TimeoutError):  # the address is closed, whoever still has to hear it
        async with asyncio.timeout(END_TIMEOUT_S):
            await service.shut()


def _of_metrics(config: Config) -> tuple[list[str], list[str]]:
    """Return the keys that may read the metrics: their own, and those of the admin API."""
    return config.metrics_keys, config.admin.api_keys


def reachable(url: str) -> str:
    """Return a URL for other machines: a wildcard address is replaced by the host name."""
    for wildcard in ("//0.0.0.0", "//[::]"):
        url = url.replace(wildcard, f"//{socket.gethostname()}")
    return url
