"""Tests of the pages for people: what a browser and a program get at `/` and at `/docs`, with keys and without."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from unilect.api.backend import Backend, Capabilities
from unilect.config.page import PageConfig
from unilect.config.server import Config
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.server._state import metrics_of
from unilect.server.app import Shared, create_app
from unilect.web import pages

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
SECRET = "sk-page:1"
EVIL = "<script>alert(1)</script>"


class Still(Backend):
    """A backend that is never asked."""

    capabilities = Capabilities(context=512, chat=False)

    async def aclose(self) -> None:
        """Nothing runs."""


@asynccontextmanager
async def served(*names: str, **config: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A server of models with these names, and a client."""
    models = [Model(name, Still()) for name in names]  # type: ignore[arg-type]
    registry = Registry(models)
    app = create_app(Config(**config), Shared(registry, metrics_of(registry)))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as client:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", client
    finally:
        await runner.cleanup()


def basic(user: str, password: str) -> dict[str, str]:
    """The header of a browser whose user has entered a name and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


async def test_a_browser_gets_a_page() -> None:
    """A browser is shown the models, the address and a line for curl, with nothing from elsewhere and no script."""
    async with served("one", EVIL, page=PageConfig(on=False)) as (url, client):
        async with client.get(f"{url}/", headers=BROWSER) as response:
            text, headers = await response.text(), response.headers

    assert "<code>one</code>" in text
    assert "context 512, no chat template, so no chat completions" in text
    assert f"curl {url}/v1/chat/completions" in text
    assert "Authorization" not in text
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=['\"]?([^'\" >]+)", text) == ["docs", "openapi.json", "v1/models", "metrics"]  # fmt: skip
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ("nosniff", "DENY", "no-store") == tuple(
        headers[name] for name in ("X-Content-Type-Options", "X-Frame-Options", "Cache-Control")
    )


async def test_the_style_is_the_one_that_is_allowed() -> None:
    """The policy of a page allows its own style, by its digest, and no other."""
    style = re.search(r"<style>(.*?)</style>", pages.sign_in(), re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()

    assert f"style-src 'sha256-{digest}'" in pages.HEADERS["Content-Security-Policy"]


async def test_a_program_gets_json() -> None:
    """Whatever does not ask for a page gets links as JSON, as does nothing but `POST /` a chat."""
    async with served("one") as (url, client):
        async with client.get(f"{url}/", headers={"Accept": "application/json"}) as response:
            told = await response.json()
        async with client.get(f"{url}/") as response:
            assert told == await response.json()
        async with client.head(f"{url}/") as response:
            assert (200, b"") == (response.status, await response.read())

    assert ("unilect", "/v1/models", "/docs") == (told["name"], told["models"], told["docs"])


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/metrics"])
async def test_a_browser_is_asked_for_the_key(path: str) -> None:
    """With keys a browser is asked for one, sees nothing before, and is let in with the key as password or as name."""
    keys = {"api_keys": ["sk-client"], "metrics_keys": [SECRET]}
    config: dict[str, Any] = keys if path == "/metrics" else {"api_keys": [SECRET]}
    config["page"] = PageConfig(on=False)
    async with served("hidden", **config) as (url, client):
        for headers in ({}, basic("me", "wrong"), {"Authorization": "Basic !"}):
            async with client.get(url + path, headers=BROWSER | headers) as response:
                text = await response.text()
                assert (401, 'Basic realm="unilect", charset="UTF-8"') == (
                    response.status,
                    response.headers["WWW-Authenticate"],
                )
                assert "enter the key as the password" in text
                assert "hidden" not in text
        for headers in (basic("me", SECRET), basic("", SECRET), {"X-API-Key": SECRET}):
            async with client.get(url + path, headers=BROWSER | headers) as response:
                assert 200 == response.status
                assert SECRET not in await response.text()


async def test_a_name_alone_may_be_the_key() -> None:
    """A key that is entered as the user's name, without a password, is taken."""
    async with served(api_keys=["sk-page"]) as (url, client):
        async with client.get(f"{url}/docs", headers=BROWSER | basic("sk-page", "")) as response:
            assert 200 == response.status


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("GET", "/v1/usage"), ("POST", "/"), ("POST", "/v1/chat/completions")],
)
async def test_a_password_opens_pages_only(method: str, path: str) -> None:
    """A browser adds its password to whatever another page makes it ask, so that it is taken for the pages alone."""
    async with served(api_keys=[SECRET]) as (url, client):
        async with client.request(method, url + path, headers=basic("me", SECRET)) as response:
            assert (401, "Bearer") == (response.status, response.headers["WWW-Authenticate"])
            assert "invalid_api_key" == (await response.json())["error"]["code"]


async def test_a_program_without_a_key_gets_json() -> None:
    """A program that asks for a page without a key is told so as anywhere else."""
    async with served(api_keys=[SECRET]) as (url, client):
        async with client.get(f"{url}/docs") as response:
            assert (401, "Bearer") == (response.status, response.headers["WWW-Authenticate"])
            assert "No API key was sent" in (await response.json())["error"]["message"]


async def test_the_docs_tell_of_keys_where_there_are_any() -> None:
    """Which endpoint wants a key is told where the server has keys, and the page at `/` then shows a line that sends one."""
    async with served() as (url, client):
        async with client.get(f"{url}/docs", headers=BROWSER) as response:
            assert "<th>Key" not in await response.text()
    async with served(api_keys=[SECRET], page=PageConfig(on=False)) as (url, client):
        headers = BROWSER | basic("me", SECRET)
        async with client.get(f"{url}/docs", headers=headers) as response:
            assert "<th>Key" in await response.text()
        async with client.get(f"{url}/", headers=headers) as response:
            text = await response.text()

    assert "$UNILECT_API_KEY" in text
    assert "v1/models>" not in text


async def test_a_host_that_is_none() -> None:
    """What a request calls this server is shown where it can be a host's name only."""
    assert "http://h:1/v1" in pages.home("h:1", False, [], False, True)
    assert "https://localhost/v1" in pages.home("x'; rm -rf ~; '", True, [], False, True)
    assert "and 5 more" in pages.home("h", False, [("m", "k", [])] * 205, False, True)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_by_head(path: str) -> None:
    """A load balancer that asks with HEAD, or with a slash at the end, needs no key either."""
    async with served("one", api_keys=[SECRET]) as (url, client):
        async with client.head(url + path) as response:
            assert (200, b"") == (response.status, await response.read())
        async with client.get(f"{url}{path}/") as response:
            assert 200 == response.status


async def test_a_slash_at_the_end() -> None:
    """A slash at the end of a path changes nothing, after a model's name too."""
    async with served("org/one") as (url, client):
        for path in ("/v1/models/", "/v1/models/org/one/", "/models/org/one"):
            async with client.get(url + path) as response:
                assert 200 == response.status
        async with client.get(f"{url}/v1/models/none/") as response:
            assert 404 == response.status
        async with client.post(f"{url}/v1/chat/completions/", json={}) as response:
            assert 400 == response.status
