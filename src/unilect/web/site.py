"""
One address of the server, as its dialects see it: who answers, how clients want it, and what goes on while it is open.
"""

import socket

from unilect.config.server import Config
from unilect.routing.service import Service
from unilect.tasks import Tasks
from unilect.web.profile import CompatProfile, profile_of


class Resident:
    """What a dialect has going on apart from requests, while an address is open; each call may do nothing."""

    async def open(self, url: str) -> None:
        """The address answers, at this URL."""

    async def shut(self) -> None:
        """The address takes no more requests; those that run go on."""

    async def aclose(self) -> None:
        """The address is closed: leave nothing behind."""


class Site:
    """
    An address.

    Args:
        service: Who answers.
        config: The address's configuration.

    Attributes:
        service, config: As given.
        profile: How clients of this address want their answers.
        residents: What goes on while it is open; a dialect's `routes` adds its own.
        background: Work apart from requests, such as of a batch; it is cancelled once no more requests are taken.
    """

    def __init__(self, service: Service, config: Config | None = None) -> None:
        self.service = service
        self.config = config or Config()
        self.profile: CompatProfile = profile_of(self.config)
        self.residents: list[Resident] = []
        self.background = Tasks()

    async def open(self, url: str) -> None:
        """The address answers, at this URL."""
        for resident in self.residents:
            await resident.open(url)

    async def shut(self) -> None:
        """The address takes no more requests."""
        self.service.ready = False
        await self.background.aclose()
        for resident in self.residents:
            await resident.shut()

    async def aclose(self) -> None:
        """The address is closed."""
        await self.background.aclose()
        for resident in self.residents:
            await resident.aclose()


def reachable(url: str) -> str:
    """A URL for other machines: none of them can call a wildcard address."""
    for wildcard in ("//0.0.0.0", "//[::]"):
        url = url.replace(wildcard, f"//{socket.gethostname()}")
    return url
