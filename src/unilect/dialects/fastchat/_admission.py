"""
Admission of FastChat workers and of their URLs: old workers send no key, and every registered URL is called.

A worker registers itself, so its URL must lead to the address that the call comes from, or into a network that the configuration
names. A name is resolved once, and that address is the one that is connected to. Without settings only this machine may register.
"""

import asyncio
import base64
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM, gaierror
from typing import NamedTuple

from aiohttp import web

from unilect.config.server import Config
from unilect.core.errors import InvalidRequest, PermissionDenied, RateLimited
from unilect.http.addresses import IpAddress, is_public

MAX_NAME = 256  # characters of a worker's URL
RESOLVE_TIMEOUT_S = 5.0
MAX_RESOLVING = 4  # names at a time: the system's resolver has few threads
MAX_PEERS = 1024  # whose calls are counted
_URL = re.compile(
    r"(https?)://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~-]+)*)/?"
)


class WorkerUrl(NamedTuple):
    """
    A worker's URL, taken apart.

    Attributes:
        url: The URL in its plain form, without a slash at its end.
        host: Its host, an IPv6 address without brackets.
        port: Its port.
    """

    url: str
    host: str
    port: int


def worker_url(name: str) -> WorkerUrl:
    """
    Return a worker's name as the URL that it must be: a scheme, a host, perhaps a port and a path, and nothing else.

    Raises:
        InvalidRequest: It is none, or more than that: a user, a query or a fragment.
    """
    match = _URL.fullmatch(name) if len(name) <= MAX_NAME else None
    if match is not None:
        scheme, host, port, path = match.groups()
        number = int(port) if port else {"http": 80, "https": 443}[scheme]
        if 0 < number < 65536 and not {".", ".."} & set(path.split("/")):
            return WorkerUrl(name.rstrip("/"), host.strip("[]"), number)
    raise InvalidRequest.at(
        "worker_name",
        "must be the worker's URL, such as http://10.0.0.5:21002: a host, perhaps a port and a path, and no user, "
        f"query or fragment, in at most {MAX_NAME} characters.",
    )


class Admission:
    """
    Decides who may register.

    Args:
        config: Its `fastchat_workers_from` and `fastchat_token`.
        is_caller: Whether the headers of a request hold one of the server's own keys.
    """

    def __init__(self, config: Config, is_caller: Callable[[Mapping[str, str]], bool]) -> None:
        self._networks = [ip_network(one, strict=False) for one in config.fastchat_workers_from]
        self._token = config.fastchat_token
        self._is_caller = is_caller
        self._resolving = asyncio.Semaphore(MAX_RESOLVING)

    def is_trusted(self, request: web.Request) -> bool:
        """Return True if a call comes from an allowed network, or carries the token or a key."""
        peer = _peer(request)
        return (peer is not None and self._is_near(request, peer)) or self._has_token(request)

    def check(self, request: web.Request) -> None:
        """
        Let a worker's call in.

        Raises:
            PermissionDenied: It comes from elsewhere and brings no token.
        """
        if not self.is_trusted(request):
            raise PermissionDenied(
                "Workers may not register from this address. Add its network to `fastchat_workers_from`, or send the "
                "`fastchat_token` (as `http://worker:TOKEN@host:port` in the worker's `--controller-address`)."
            )

    async def address_of(self, request: web.Request, url: WorkerUrl) -> str:
        """
        Return the IP address of a worker that registers: the one that is connected to from now on.

        Raises:
            InvalidRequest: Its name does not resolve, or leads to where no worker of this caller's can be.
        """
        addresses = await self._resolve(url)
        if not all(self._may_lead_to(request, address) for address in addresses):
            raise InvalidRequest.at(
                "worker_name",
                "resolves to another machine than the one that registers. A worker registers itself; add other networks of "
                "workers in `fastchat_workers_from`.",
            )
        return str(addresses[0])

    def _may_lead_to(self, request: web.Request, address: IpAddress) -> bool:
        """Return True for an address of a worker: where it calls from, in an allowed network, or with the token anywhere in public."""
        peer = _peer(request)
        if address == peer:
            return True
        if self._is_near(request, address):
            # without settings that is this machine: nobody else may have it called
            return bool(self._networks) or (peer is not None and self._is_near(request, peer))
        return is_public(address) and self._has_token(request)

    def _is_near(self, request: web.Request, address: IpAddress) -> bool:
        """Return True if an address is in a configured network; without any, if it is this machine's."""
        if self._networks:
            return any(address in network for network in self._networks)
        return address.is_loopback or address == _address(request, "sockname")

    def _has_token(self, request: web.Request) -> bool:
        if self._is_caller(request.headers):
            return True
        sent = _parse_token(request.headers.get("Authorization", ""))
        return self._token is not None and hmac.compare_digest(
            sent.encode("utf-8", "surrogateescape"), self._token.encode()
        )

    async def _resolve(self, url: WorkerUrl) -> list[IpAddress]:
        try:
            return [_plain(ip_address(url.host))]
        except ValueError:
            pass  # a name
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S), self._resolving:
                found = await loop.getaddrinfo(url.host, url.port, type=SOCK_STREAM)
            return [_plain(ip_address(one[4][0])) for one in found]
        except (OSError, UnicodeError, ValueError, gaierror) as error:
            raise InvalidRequest.at(
                "worker_name", f": the name {url.host} does not resolve here."
            ) from error


class Pace:
    """
    The rate limit of each peer's calls: a token bucket.

    Args:
        burst: Calls at once.
        per_s: Calls a second from then on.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, peer: str) -> None:
        """
        Count a call.

        Raises:
            RateLimited: There were too many of this peer.
        """
        now_s = asyncio.get_running_loop().time()
        left, at_s = self._peers.pop(peer, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        allowed = left >= 1
        self._peers[peer] = (left - 1 if allowed else left, now_s)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        if not allowed:
            raise RateLimited("Too many calls of this worker. Try again later.", retry_after_s=1)


def _peer(request: web.Request) -> IpAddress | None:
    return _address(request, "peername")


def _address(request: web.Request, which: str) -> IpAddress | None:
    """Return the address of the caller (`peername`), or of this machine in the connection (`sockname`); None where it has none."""
    name = request.transport.get_extra_info(which) if request.transport is not None else None
    return _plain(ip_address(name[0].partition("%")[0])) if isinstance(name, tuple) else None


def _plain(address: IpAddress) -> IpAddress:
    """Return an IPv4 address that is written as IPv6, as itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _parse_token(authorization: str) -> str:
    """Return the token of a header: `Bearer TOKEN`, or the password of Basic authentication."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
