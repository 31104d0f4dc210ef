"""The lines of clients on the page, in a real browser, against a real server: they are those of `unilect connect`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from server.test_admin import operated
from support.clients.browsers import Visitor, holds
from support.servers.prefixed import prefixed
from unilect.config.server import Config
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.server._state import metrics_of
from unilect.server.app import Shared, create_app
from unilect.testing.echo import Echo
from unilect.web.connect.clients import CLIENTS
from unilect.web.connect.lines import PLACEHOLDER, Server
from unilect.web.connect.lines import Model as Described

if TYPE_CHECKING:
    from playwright.async_api import Page

_MODELS = '[models.a]\nsource = "echo:a"\n[models.b]\nsource = "echo:b"\n'
#: No configuration has such names; what shows them shall not have to know that.
_NAMES = [
    "<img src=x onerror=window.ran=1>",
    "</script><script>window.ran=1</script>",
    "javascript:window.ran=1",
    "'; touch x; '",
    "a\u202eb\u0007",
    "x/y?z#w%41 é",
]


@asynccontextmanager
async def named(*names: str) -> AsyncIterator[str]:
    """The address of a server of models with these names, which no configuration has to allow, until the block ends."""
    registry = Registry([Model(name, Echo()) for name in names])
    runner = web.AppRunner(create_app(Config(), Shared(registry, metrics_of(registry))))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _blocks(page: "Page", client: str) -> list[str]:
    """The lines that the page shows for a client, without its command."""
    await page.click(f"nav.chips a[href='#connect/{client}']")
    await page.wait_for_selector(f"h2:text-is('{CLIENTS[client].title}')")
    return [text or "" for text in await page.locator("section pre").all_text_contents()][:-1]


def _expected(client: str, url: str, *models: str, key: bool = False) -> list[str]:
    server = Server(url, tuple(Described(name) for name in models), key)
    return [one.text for one in CLIENTS[client].lines(server, {}).blocks]


async def test_each_client(visitor: Visitor, tmp_path: Path) -> None:
    """Each client's lines are those of the command, for the address that the browser uses, which may be below a path."""
    async with operated(tmp_path, _MODELS) as server, prefixed(server.url) as url:
        for root in (f"{server.url}/", url):
            page = await visitor.open(f"{root}#connect")
            for client in CLIENTS:
                shown = await _blocks(page, client)
                assert _expected(client, f"{root}v1", "a", "b") == shown

        command = await page.locator("section pre").last.text_content()
        assert f"unilect connect {client} --url {url}v1" == command


async def test_another_model(visitor: Visitor, tmp_path: Path) -> None:
    """The lines begin with the model that is chosen, and Copy has them as they are shown."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    async with operated(tmp_path, _MODELS) as server:
        page = await visitor.open(f"{server.url}/#connect/codex")
        await page.select_option("#connect-model", "b")
        await page.wait_for_selector("pre:has-text('model = \"b\"')")
        await page.click(".heading button >> nth=0")
        copied = await page.evaluate("navigator.clipboard.readText()")
        shown = await _blocks(page, "codex")

    assert _expected("codex", f"{server.url}/v1", "b", "a") == shown
    assert copied == shown[0]


async def test_with_keys(visitor: Visitor, tmp_path: Path) -> None:
    """A server with keys tells its models to who has one, and the lines have a place for the key instead of it."""
    visitor.expected.append("401")
    async with operated(tmp_path, _MODELS, "api_keys = ['sk-the-clients']\n") as server:
        page = await visitor.open(f"{server.url}/#connect/vscode")
        await page.wait_for_selector("dialog[open]")
        assert 0 == await page.locator("nav.chips").count()
        await page.fill("#key-input", "sk-the-clients")
        await page.click("text=Use it")
        shown = await _blocks(page, "vscode")

    assert _expected("vscode", f"{server.url}/v1", "a", "b", key=True) == shown
    assert PLACEHOLDER in shown[0]
    assert "sk-the-clients" not in "".join(shown)


@pytest.mark.parametrize("view", ["connect", "api"])
async def test_hostile_names(visitor: Visitor, view: str) -> None:
    """Names of models that would run something are shown and asked for as the texts that they are."""
    async with named(*_NAMES) as url:
        page = await visitor.open(f"{url}/#{view}")
        await (_all_lines(page) if view == "connect" else _all_answers(page))
        bad = await page.evaluate(
            "document.querySelectorAll('main :is(script, img, iframe)').length"
        )
        assert not await page.evaluate("'ran' in window")

    assert 0 == bad


async def _all_lines(page: "Page") -> None:
    for name in _NAMES:
        await page.select_option("#connect-model", name)
        await page.click("nav.chips a[href='#connect/openwebui']")
        await holds(page, f"document.querySelector('#connect-model').value === {json.dumps(name)}")
    for client in CLIENTS:
        await _blocks(page, client)
    assert "\u202e" not in await page.inner_text("main")


async def _all_answers(page: "Page") -> None:
    await page.click(".operation summary >> nth=0")
    for name in _NAMES:
        await page.select_option(".fields select", name)
        await page.wait_for_selector(".operation .tag.bad")
        body = json.loads(await page.input_value(".try textarea"))
        assert name == body["model"]
        await page.click("button:text-is('Send')")
        await holds(
            page, "document.querySelector('.answer strong').textContent.startsWith('200 OK after')"
        )


async def test_no_model_chats(visitor: Visitor, tmp_path: Path) -> None:
    """A server whose models are out says so, and shows no client's lines."""
    text = '[models.far]\nsource = "http://127.0.0.1:9/v1"\nmodel = "far"\n'
    visitor.expected.append("50[0-9]")
    async with operated(tmp_path, text) as server:
        while (await server.ask("GET", "/models"))[1]["models"][0]["state"] != "out":
            await server.chat("far")
        page = await visitor.open(f"{server.url}/#connect")
        await page.wait_for_selector("text=No model of this server chats now.")
        assert 0 == await page.locator("nav.chips a").count()
