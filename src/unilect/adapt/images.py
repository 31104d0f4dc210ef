"""
Images that a client names by a URL, or sends as bare base64, for backends that take `data:` URLs alone.

A URL is fetched only from hosts that the operator allows, and never from an address that is not public: a name is resolved once, every
address that it has must be public, and the connection goes to the first of them, so that no later answer of DNS leads elsewhere. A
redirect is followed only if the same holds where it leads. Size, time and number are bounded.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Collection
from ipaddress import ip_address
from socket import SOCK_STREAM
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from unilect.core.errors import InvalidRequest, UnilectError
from unilect.core.image_kinds import image_kind
from unilect.core.requests import ChatRequest, ImagePart, Message, TextRequest
from unilect.http.addresses import IpAddress, is_public
from unilect.http.client import HttpServer
from unilect.http.tls import client_context

MAX_IMAGES = 8
MAX_BYTES = 10 * 1024 * 1024
MAX_BYTES_IN_ALL = 20 * 1024 * 1024
MAX_URL = 8192
TIMEOUT_S = 15.0  # of all images of a request
MAX_REDIRECTS = 3
_AT_ONCE = 16  # fetches of all requests
_HOST = re.compile(
    r"[a-z0-9._-]*|[0-9a-f:.]+", re.ASCII
)  # or an address, which no operator can allow
_BLANKS = b" \t\r\n\v\f"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=" + _BLANKS
_PIECE = 1024 * 1024  # characters of base64 that are looked at, and then others are served
_UNCHANGED = "/%:@!$&'()*+,;=~-._?"


class _Moved(UnilectError):
    """The image is at another URL."""

    def __init__(self, location: str) -> None:
        super().__init__("The image is elsewhere.")
        self.location = location


async def resolve_host(host: str, port: int) -> list[IpAddress]:
    """Return the addresses of a host; OSError or ValueError where there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [ip_address(str(one[4][0]).partition("%")[0]) for one in found]


def other_images(request: TextRequest) -> bool:
    """Return True if a request has images that are not `data:` URLs."""
    return isinstance(request, ChatRequest) and any(
        _is_other(part)
        for message in request.messages
        if isinstance(message.content, list)
        for part in message.content
    )


def _is_other(part: Any) -> bool:
    return isinstance(part, ImagePart) and not part.image_url.url.startswith("data:")


class Images:
    """
    Puts images into requests.

    Args:
        hosts: From which images are fetched: names, each perhaps with a port behind a colon; `*.` before a name stands for those below it.
        resolve, public: How a host is resolved, and which addresses are connected to.
    """

    def __init__(
        self,
        hosts: Collection[str] = (),
        resolve: Callable[[str, int], Any] = resolve_host,
        public: Callable[[IpAddress], bool] = is_public,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._resolve = resolve
        self._public = public
        self._fetching = asyncio.Semaphore(_AT_ONCE)
        if self._hosts:
            client_context()  # now, and not in the middle of a request

    async def inline(self, request: ChatRequest) -> ChatRequest:
        """
        Return a request whose images are all `data:` URLs.

        Raises:
            InvalidRequest: An image is none, may not be fetched, or cannot be; the message names its place.
        """
        places = [
            (number, place, part.image_url.url)
            for number, message in enumerate(request.messages)
            if isinstance(message.content, list)
            for place, part in enumerate(message.content)
            if isinstance(part, ImagePart) and _is_other(part)
        ]
        if len(places) > MAX_IMAGES:
            raise InvalidRequest(
                f"`messages` has {len(places)} images that are no `data:` URLs; the maximum is {MAX_IMAGES}.",
                param="messages",
            )
        found: dict[tuple[int, int], str] = {}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for number, place, url in places:
                    where = f"messages[{number}].content[{place}].image_url"
                    found[number, place] = await self._data_url(url, where)
                    if sum(map(len, found.values())) > MAX_BYTES_IN_ALL * 4 // 3 + 256:
                        raise _wrong(where, "the images have more than 20 MiB together")
        except TimeoutError as error:
            raise _wrong(where, f"it was not fetched within {TIMEOUT_S:g} s") from error
        messages = [
            _with(message, number, found) for number, message in enumerate(request.messages)
        ]
        return request.changed(messages=messages)

    async def _data_url(self, url: str, where: str) -> str:
        if url[:8].lower().startswith(("http://", "https://")):
            if len(url) > MAX_URL:  # before it is taken apart, which is not linear
                raise _wrong(where, f"a URL has at most {MAX_URL:,} characters")
            image = await self._fetch(url, where)
            return _data(image, base64.b64encode(image).decode(), where)
        written = await _without_blanks(url)
        if not written:
            raise _wrong(
                where, "expected a `data:image/...;base64,` URL, an http(s) URL, or base64"
            )
        try:
            begin = base64.b64decode(written[:64], validate=True)
        except ValueError as error:
            raise _wrong(where, "it is no base64") from error
        return _data(begin, written, where)

    async def _fetch(self, url: str, where: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            try:
                async with self._fetching:
                    return await self._get(url, where)
            except _Moved as moved:
                try:
                    url = urljoin(url, moved.location)
                except ValueError as error:
                    raise _wrong(where, "it is moved to what is no URL") from error
        raise _wrong(where, f"it is behind more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: str, where: str) -> bytes:
        """Fetch the bytes of an image from a URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _wrong(where, "it is no URL") from error
        if parts.scheme not in ("http", "https") or "@" in parts.netloc:
            raise _wrong(where, "only http and https URLs without a user are fetched")
        if not _HOST.fullmatch(host):
            raise _wrong(
                where,
                "the name of its host has other characters than letters, digits, `-`, `_` and `.`. Write it in Punycode (`xn--...`), or "
                "send the image itself as a `data:image/...;base64,` URL",
            )
        usual = 443 if parts.scheme == "https" else 80
        self._check_host(host, None if port == usual else port, where)
        port = port or usual
        address = await self._address(host, port, where)
        path = quote(parts.path or "/", safe=_UNCHANGED)
        if parts.query:
            path += "?" + quote(parts.query, safe=_UNCHANGED)
        try:
            server = HttpServer(
                f"{parts.scheme}://{host}:{port}",
                connect_to=str(address),
                timeout_s=TIMEOUT_S,
                raise_for=_raise_for,
                max_body_bytes=MAX_BYTES,
            )
            try:
                return await server.get(path)
            finally:
                await server.aclose()
        except _Moved:
            raise
        except UnilectError as error:
            raise _wrong(where, "its server did not send it, or more than 10 MiB") from error

    def _check_host(self, host: str, port: int | None, where: str) -> None:
        end = f":{port}" if port is not None else ""
        above = host.split(".")
        names = [host, *("*." + ".".join(above[place:]) for place in range(1, len(above)))]
        if not any(f"{name}{end}" in self._hosts for name in names):
            raise _wrong(
                where,
                "this server fetches no images from that host; its operator allows hosts in `image_hosts`. "
                "Send the image itself as a `data:image/...;base64,` URL",
            )

    async def _address(self, host: str, port: int, where: str) -> IpAddress:
        """Return the one address that is connected to."""
        try:
            addresses: list[IpAddress] = await self._resolve(host, port)
        except (OSError, ValueError) as error:
            raise _wrong(where, "the name of its host does not resolve") from error
        if not addresses or not all(map(self._public, addresses)):
            raise _wrong(where, "its host has an address that is not public")
        return addresses[0]


def _raise_for(status: int, headers: Any, body: bytes) -> None:
    if status in (301, 302, 303, 307, 308) and headers.get("location"):
        raise _Moved(headers["location"][:4096])
    raise InvalidRequest(f"status {status}")


async def _without_blanks(text: str) -> str:
    """Return base64 without blanks; nothing of any other text."""
    pieces = []
    for begin in range(0, len(text), _PIECE):
        piece = text[begin : begin + _PIECE].encode()
        if piece.translate(None, _BASE64):
            return ""
        pieces.append(piece.translate(None, _BLANKS))
        await asyncio.sleep(0)
    return b"".join(pieces).decode()


def _with(message: Message, number: int, found: dict[tuple[int, int], str]) -> Message:
    if not isinstance(message.content, list):
        return message
    content = list(message.content)
    for place, part in enumerate(content):
        if isinstance(part, ImagePart) and (url := found.get((number, place))) is not None:
            image = msgspec.structs.replace(part.image_url, url=url)
            content[place] = msgspec.structs.replace(part, image_url=image)
    return msgspec.structs.replace(message, content=content)


def _data(begin: bytes, written: str, where: str) -> str:
    """Return the URL of an image, whose kind is seen at its first bytes."""
    if kind := image_kind(begin):
        return f"data:image/{kind};base64,{written}"
    raise _wrong(where, "it is no PNG, JPEG, GIF, WebP or BMP")


def _wrong(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{where}`: {why}.", param=where)
