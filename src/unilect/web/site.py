"""
One address of the server, for its dialects: the service, the compatibility profile, and the background services.
"""

import socket

from unilect.config.server import Config
from unilect.routing.service import Service
from unilect.web.profile import CompatProfile, profile_of


class Resident:
    """A background service of a dialect, while an address is open; each method may do nothing."""

    async def open(self, url: str) -> None:
        """The address answers, at this URL."""

    async def shut(self) -> None:
        """The address accepts no more requests; running ones continue."""

    async def aclose(self) -> None:
        """The address is closed: release everything."""


class Site:
    """
    An address.

    Args:
        service: Answers the requests.
        config: The address's configuration.

    Attributes:
        service, config: As given.
        profile: The compatibility profile of this address.
        residents: The background services while it is open; a dialect's `routes` adds its own.
    """

    def __init__(self, service: Service, config: Config | None = None) -> None:
        self.service = service
        self.config = config or Config()
        self.profile: CompatProfile = profile_of(self.config)
        self.residents: list[Resident] = []

    async def open(self, url: str) -> None:
        """The address answers, at this URL."""
        for resident in self.residents:
            await resident.open(url)

    async def shut(self) -> None:
        """The address accepts no more requests."""
        self.service.ready = False
        for resident in self.residents:
            await resident.shut()

    async def aclose(self) -> None:
        """The address is closed."""
        for resident in self.residents:
            await resident.aclose()


def reachable(url: str) -> str:
    """A URL for other machines: a wildcard address is replaced by the host name."""
    for wildcard in ("//0.0.0.0", "//[::]"):
        url = url.replace(wildcard, f"//{socket.gethostname()}")
    return url
