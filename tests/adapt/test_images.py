"""Tests of unilect.adapt.images: what a client names by a URL is fetched from where the operator allows, and from nowhere else."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from support.servers.appserver import serving
from unilect.adapt import images
from unilect.adapt.images import Images
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.config.server import Config
from unilect.core.errors import InvalidRequest
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, ImagePart, ImageUrl, Message, TextPart
from unilect.http.tls import client_context

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
JPEG = b"\xff\xd8\xff\xe0" + bytes(60)
AS_PNG = "data:image/png;base64," + base64.b64encode(PNG).decode()
HERE = ip_address("127.0.0.1")
PRIVATE = ip_address("10.1.2.3")
NAMES = {"pictures.example": [HERE], "a.b.example": [HERE], "inside.example": [HERE, PRIVATE], "example": [HERE]}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    """The port of a server of images, and of what is none."""

    async def answer(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/a.png" | "/ä b.png":
                return web.Response(body=PNG)
            case "/big":
                return web.Response(body=PNG + bytes(images.MAX_BYTES))
            case "/page":
                return web.Response(text="<html>")
            case "/missing":
                raise web.HTTPNotFound
            case "/slow":
                await asyncio.Event().wait()
        return web.Response(status=302, headers={"Location": request.query["to"]})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # `/slow` never ends
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


class Dns:
    """
    Resolves the names of `NAMES`.

    Attributes:
        asked: The names that were asked for, in order.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Any:
        """Its addresses; others, which are private, when it is asked again."""
        self.asked.append(host)
        if host not in NAMES:
            raise OSError("no such name")
        return NAMES[host] if self.asked.count(host) == 1 else [PRIVATE]


def fetching(port: int, dns: Dns | None = None) -> Images:
    """What fetches from hosts that are all here, as if this machine was a public one."""
    hosts = (f"pictures.example:{port}", f"*.b.example:{port}", f"inside.example:{port}", f"gone.example:{port}")  # fmt: skip
    return Images(hosts, dns or Dns(), lambda address: address == HERE)


def showing(*urls: str) -> ChatRequest:
    """A chat with images."""
    parts = [TextPart("What is it?"), *(ImagePart(ImageUrl(url)) for url in urls)]
    return ChatRequest(messages=[Message("system", "S"), Message("user", parts)])


async def shown(source: Images, *urls: str) -> list[str]:
    """The URLs of a chat's images as a backend gets them."""
    content = (await source.inline(showing(*urls))).messages[1].content
    assert isinstance(content, list)
    return [part.image_url.url for part in content if isinstance(part, ImagePart)]


@in_one_loop
async def test_images_by_url(port: int) -> None:
    """An image of an allowed host is put into the request, whatever its path holds; what is there already stays."""
    at = f"http://pictures.example:{port}"
    found = await shown(fetching(port), f"{at}/a.png", AS_PNG)
    other = await shown(fetching(port), f"HTTP://A.b.example:{port}/ä b.png?x=%20 y#f")

    assert [AS_PNG, AS_PNG] == found
    assert [AS_PNG] == other


@in_one_loop
async def test_a_name_is_resolved_once(port: int) -> None:
    """The connection goes to the address that was looked at: no later answer for the name is asked for."""
    dns = Dns()

    assert [AS_PNG] == await shown(fetching(port, dns), f"http://pictures.example:{port}/a.png")
    assert ["pictures.example"] == dns.asked


@in_one_loop
async def test_a_redirect_is_a_new_url(port: int) -> None:
    """A redirect to an allowed host is followed, and its name is resolved and looked at again."""
    dns = Dns()
    to = f"http://a.b.example:{port}/a.png"
    found = await shown(fetching(port, dns), f"http://pictures.example:{port}/x?to={to}")
    with pytest.raises(InvalidRequest, match="not public"):
        await shown(fetching(port, dns), f"http://pictures.example:{port}/a.png")

    assert [AS_PNG] == found
    assert ["pictures.example", "a.b.example", "pictures.example"] == dns.asked


@in_one_loop
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://evil.example/a.png", "fetches no images from that host"),
        ("http://pictures.example/a.png", "fetches no images from that host"),  # another port
        ("http://b.example:PORT/a.png", "fetches no images from that host"),
        ("http://pictures.example.evil.example:PORT/a.png", "fetches no images from that host"),
        ("http://127.0.0.1:PORT/a.png", "fetches no images from that host"),
        ("http://inside.example:PORT/a.png", "not public"),
        ("http://gone.example:PORT/a.png", "does not resolve"),
        ("http://u:p@pictures.example:PORT/a.png", "without a user"),
        ("http://[::1/a.png", "no URL"),
        ("http://pictures.example:99999/a.png", "no URL"),
        ("http://b\u00fccher.b.example:PORT/a.png", "Punycode"),
        ("http://a b.b.example:PORT/a.png", "Punycode"),
        ("http://a\x00.b.example:PORT/a.png", "Punycode"),
        ("http://a\u2100.b.example:PORT/a.png", "no URL"),
        ("http:///a.png", "fetches no images from that host"),
        ("http://[2606:4700::1111]:PORT/a.png", "fetches no images from that host"),
        ("http://pictures.example:PORT/x?to=http://[::1", "moved to what is no URL"),
        ("http://pictures.example:PORT/x?to=http://%C3%BC.b.example:PORT/a.png", "Punycode|no URL"),
        ("http://pictures.example:PORT/missing", "did not send it"),
        ("http://pictures.example:PORT/big", "more than 10 MiB"),
        ("http://pictures.example:PORT/page", "no PNG"),
        ("http://pictures.example:PORT/x?to=http://evil.example/", "from that host"),
        ("http://pictures.example:PORT/x?to=http://inside.example:PORT/a.png", "not public"),
        ("http://pictures.example:PORT/x?to=file:///etc/passwd", "only http"),
        ("file:///etc/passwd", "expected a `data:"),
        ("ftp://pictures.example/a.png", "expected a `data:"),
        ("", "expected a `data:"),
        ("abc", "no base64"),
        (base64.b64encode(b"hello hello hello").decode(), "no PNG"),
    ],
)
async def test_what_is_refused(port: int, url: str, why: str) -> None:
    """What may not be fetched, or is no image, is refused with its place and the reason."""
    with pytest.raises(InvalidRequest, match=why) as raised:
        await shown(fetching(port), AS_PNG, url.replace("PORT", str(port)))

    assert "messages[1].content[2].image_url" == raised.value.param


@in_one_loop
async def test_redirects_without_end(port: int) -> None:
    """Redirects are followed three times."""
    NAMES_ONCE = Images((f"pictures.example:{port}",), lambda *_: _here(), lambda _: True)
    with pytest.raises(InvalidRequest, match="3 redirects"):
        await shown(NAMES_ONCE, f"http://pictures.example:{port}/x?to=/x%3Fto=/x%3Fto=/x%253Fto=/x")


async def _here() -> Any:
    return [HERE]


@in_one_loop
async def test_a_server_that_is_slow(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All images of a request together take a bounded time."""
    monkeypatch.setattr(images, "TIMEOUT_S", 0.05)
    with pytest.raises(InvalidRequest, match="not fetched within"):
        await shown(fetching(port), f"http://pictures.example:{port}/slow")


async def test_bare_base64() -> None:
    """Base64 without a head is an image of the kind that its bytes show, on any server."""
    written = [base64.b64encode(image).decode() for image in (PNG, JPEG)]

    assert [AS_PNG, f"data:image/jpeg;base64,{written[1]}"] == await shown(Images(), written[0][:30] + "\n" + written[0][30:], written[1])  # fmt: skip


async def test_others_are_served_meanwhile() -> None:
    """Base64 of megabytes is looked at piece by piece, and between any two of them it is the others' turn."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    size = 8 * 1024 * 1024
    serving = asyncio.create_task(others())
    try:
        [url] = await shown(Images(), (base64.b64encode(PNG[:48]).decode() + " A" * size)[:size])
    finally:
        serving.cancel()

    assert turns >= 8
    assert " " not in url


@pytest.mark.parametrize("url", ["http://" + "a." * 4_000_000, "https://" + "ä" * 8_000_000])
async def test_a_url_without_end(url: str) -> None:
    """A URL of megabytes is refused before it is taken apart: its host has millions of names above it."""
    with pytest.raises(InvalidRequest, match="at most 8,192 characters"):
        await shown(Images(["a.example"]), url)


@in_one_loop
async def test_one_tls_context(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authorities are read when hosts are allowed, and neither for an image nor for its redirects."""
    made = list[ssl.SSLContext]()
    create = ssl.create_default_context

    def make() -> ssl.SSLContext:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", make)
    client_context.cache_clear()
    Images()
    assert [] == made
    source = fetching(port)
    assert 1 == len(made)
    urls = [f"https://pictures.example:{port}/{number}.png" for number in range(3)]
    for url in (*urls, f"http://pictures.example:{port}/x?to={urls[0]}"):
        with pytest.raises(InvalidRequest):
            await shown(Images([f"pictures.example:{port}"], lambda *_: _here(), lambda _: True), url)  # fmt: skip
    assert [AS_PNG] == await shown(source, f"http://pictures.example:{port}/a.png")

    assert 1 == len(made)


async def test_too_many() -> None:
    """Their number is bounded before anything is fetched."""
    with pytest.raises(InvalidRequest, match="the maximum is 8"):
        await shown(Images(), *["http://a.example/"] * 9)


class Sees(Backend):
    """
    A backend that is shown images.

    Attributes:
        asked: What it was asked, in order.
    """

    def __init__(self, image_urls: bool) -> None:
        self.capabilities = Capabilities(
            vision=True, image_urls=image_urls, fans_out=True, parameters={"n": "emulated"}
        )
        self.asked: list[Any] = []

    async def start(self) -> None:
        """It is there."""

    async def aclose(self) -> None:
        """It leaves nothing behind."""

    async def generate(self, request: Any) -> Batches:
        """Note the request."""
        self.asked.append(request)
        yield [TextDelta("a cat"), Finish("stop"), Usage(1, 1)]


async def test_in_a_server() -> None:
    """Without `image_hosts` nothing is fetched and base64 is taken; an allowed host that is not public is refused; others get the URL as it is."""

    async def ask(backend: Sees, url: str, *hosts: str, **fields: Any) -> tuple[int, Any]:
        content = [{"type": "image_url", "image_url": {"url": url}}]
        messages = [{"role": "user", "content": content}]
        async with serving(backend, Config(image_hosts=list(hosts))) as app:  # type: ignore[arg-type]
            async with app.post("/v1/chat/completions", messages=messages, **fields) as response:
                return response.status, await response.json()

    status, told = await ask(Sees(False), "http://localhost:9/a.png")
    inside = await ask(Sees(False), "http://localhost:9/a.png", "localhost:9")
    foreign, why = await ask(Sees(False), "http://\u00fc.localhost/a.png", "*.localhost")
    bare, passed = Sees(False), Sees(True)
    taken = await ask(bare, AS_PNG.partition(",")[2], n=2)
    given = await ask(passed, "http://localhost:9/a.png")

    assert (400, "messages[0].content[0].image_url") == (status, told["error"]["param"])
    assert "`image_hosts`" in told["error"]["message"]
    assert (400, "messages[0].content[0].image_url") == (foreign, why["error"]["param"])
    assert 400 == inside[0]
    assert "not public" in inside[1]["error"]["message"]
    assert [200, 200] == [taken[0], given[0]]
    assert [AS_PNG] * 2 == [one.messages[0].content[0].image_url.url for one in bare.asked]
    assert "http://localhost:9/a.png" == passed.asked[0].messages[0].content[0].image_url.url
