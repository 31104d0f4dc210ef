"""The live view and the keys, in a real browser, against a real server."""

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.test_admin import Operated, operated
from server.test_live import ONE_OF_TWO, hold_loads
from support.clients.browsers import Visitor, holds
from support.servers.prefixed import prefixed
from unilect.demo import MODEL

if TYPE_CHECKING:
    from playwright.async_api import Page

_SLOW = (
    '[models.slow]\nsource = "echo:"\noptions = { text = "word word word", tokens_per_s = 1.0 }\n'
)
_TWO = f'{_SLOW}[models.a]\nsource = "echo:a"\n'


async def opened(visitor: Visitor, server: Operated, view: str = "live") -> "Page":
    """A view, with the key that `unilect page` gives."""
    _, told = await server.ask("GET", "/page")
    place = told["url"].partition("#")[2]
    page = await visitor.open(f"{server.url}/#{place}")
    if view != "live":
        await page.click(f"nav a[href='#{view}']")
    return page


async def test_requests_are_seen_and_ended(visitor: Visitor, tmp_path: Path) -> None:
    """A request that runs is seen with its phase and its tokens, and Cancel ends it; the failure and its cause are listed."""
    async with operated(tmp_path, _TWO) as server:
        page = await opened(visitor, server)
        chat = asyncio.create_task(server.chat("slow"))
        await page.wait_for_selector("td:text('answering')")
        assert "slow" in await page.inner_text("tr:has(td:text('answering'))")
        await page.click("main button:text-is('Cancel')")
        status, _ = await chat
        await page.wait_for_selector("text=No request runs.")
        await page.wait_for_selector(
            "td:has-text('An operator of this server has ended the request.')"
        )

    assert 403 == status
    assert "#key" not in page.url


async def test_plots_move(visitor: Visitor, tmp_path: Path) -> None:
    """What clients do shows in the numbers and the plots, with nothing asked for again."""
    async with operated(tmp_path, _TWO) as server:
        page = await opened(visitor, server)
        await page.wait_for_selector(".tag.good:text('live')")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        before = await page.evaluate(
            "[...document.querySelectorAll('.plot-line[d]')].map((one) => one.getAttribute('d')).join()"
        )
        for _ in range(5):
            await server.chat("a")
        await holds(
            page,
            "[...document.querySelectorAll('.tile strong')].slice(0, 2).every((one) => Number(one.textContent) > 0)",
        )
        after = await page.evaluate(
            "[...document.querySelectorAll('.plot-line[d]')].map((one) => one.getAttribute('d')).join()"
        )

    assert before != after
    assert [] == asked


async def test_a_model_is_steered(visitor: Visitor, tmp_path: Path) -> None:
    """A model is stopped and loaded from the page, and it says why it was."""
    text = f'[models.small]\nsource = "{MODEL}"\ncontext = 256\n'
    async with operated(tmp_path, text) as server:
        page = await opened(visitor, server)
        await page.wait_for_selector(".tag:text('ready')")
        await page.click(".model-card button:text-is('Stop')")
        await page.wait_for_selector(".tag:text('stopped')")
        await page.click(".model-card button:text-is('Load')")
        await page.wait_for_selector(".tag:text('ready')")
        await page.click(".model-card button:text-is('Why')")
        events = await page.inner_text(".events")

    assert "loaded" in events
    assert "stopped" in events


async def test_a_load_is_seen(
    visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's card shows if it fits, how far its load is, and then for whom it would leave, also to who reads by ear, and nothing is asked for."""
    from axe_playwright_python.async_playwright import Axe

    async with operated(tmp_path, ONE_OF_TWO, 'memory = "100MiB"\n') as server:
        page = await opened(visitor, server)
        one, two = (f".model-card:has(h3:text-is('{name}'))" for name in ("one", "two"))
        await page.click(f"{one} >> button:text-is('Stop')")
        await page.wait_for_selector(f"{one} >> .tag:text-is('fits')")
        begun, go_on = hold_loads(monkeypatch)
        assert "It needs 84 MB, 105 MB are free" in await page.inner_text(one)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.method))
        await page.click(f"{one} >> button:text-is('Load')")
        await begun.wait()
        await page.wait_for_selector(f"{one} >> progress[value]")
        assert "loading: " in await page.inner_text(one)
        found = await Axe().run(page)
        go_on.set()
        await page.wait_for_selector(f"{one} >> .tag:text('ready')")
        await page.wait_for_selector(f"{two} >> text=one would leave for it.")

    assert ["POST"] == asked
    assert [] == [rule["id"] for rule in found.response["violations"]]


async def test_an_engine_dies(visitor: Visitor, tmp_path: Path) -> None:
    """An engine that is killed is seen to be gone and to come back, with another process."""
    text = f'[models.small]\nsource = "{MODEL}"\ncontext = 256\n'
    async with operated(tmp_path, text) as server:
        page = await opened(visitor, server)
        await page.wait_for_selector("text=/pid \\d+/")
        _, told = await server.ask("GET", "/models")
        (process,) = told["models"][0]["backends"][0]["processes"]
        os.kill(process["pid"], signal.SIGKILL)
        await holds(
            page,
            f"!document.querySelector('.backends').textContent.includes('pid {process['pid']}')",
        )
        await page.wait_for_selector("text=/pid \\d+, started 2 times/")


async def test_one_stream_for_all_tabs(visitor: Visitor, tmp_path: Path) -> None:
    """A second tab sees the same without a second stream; it goes on when the first one is closed."""
    async with operated(tmp_path, _TWO) as server:
        streams = server.listener._steering._live
        first = await opened(visitor, server)
        await first.wait_for_selector(".tag.good:text('live')")
        second = await visitor.open(f"{server.url}/#live")
        await second.wait_for_selector(".tag.good:text('live')")
        assert 1 == streams._readers
        await first.close()
        await second.wait_for_selector(".tag.good:text('live')")
        chat = asyncio.create_task(server.chat("slow"))
        await second.wait_for_selector("td:text('answering')")
        assert 1 == streams._readers
        await second.click("main button:text-is('Cancel')")
        await chat


async def test_keys(visitor: Visitor, tmp_path: Path) -> None:
    """A key is made, limited and revoked, and what it used is told by key and model."""
    visitor.expected.append("501|429|401")
    text = f"{_TWO}[store]\nurl = 'sqlite:///keys.db'\nledger = 'best_effort'\n"
    async with operated(tmp_path, text) as server:
        page = await opened(visitor, server, "keys")
        await page.click("text=Make a key")
        await page.fill("[name=name]", "ann")
        await page.fill("[name=requests_per_minute]", "2")
        await page.check("[name=require]")
        await page.click("button:text('Make the key')")
        secret = await page.inner_text(".notice code")
        headers = {"Authorization": f"Bearer {secret}"}
        statuses = [(await server.chat("a", headers=headers))[0] for _ in range(3)]
        await page.click("tbody >> text=Limits")
        await page.fill("tbody [name=requests_per_minute]", "50")
        await page.click("tbody >> text=Set")
        await page.wait_for_selector("td:has-text('50 requests per minute')")
        await page.click("tbody >> text=Revoke")
        await page.wait_for_selector(".tag:text('revoked')")
        await page.reload()
        await page.wait_for_selector("section td:text('ann')")

    assert [200, 200, 429] == statuses


async def test_who_has_no_key_sees_nothing(visitor: Visitor, tmp_path: Path) -> None:
    """Without the operator's key the views say how to get in; a wrong key is told."""
    visitor.expected.append("401")
    async with operated(tmp_path, _TWO) as server:
        page = await visitor.open(f"{server.url}/#live")
        await page.click("button:text-is('Enter a key')")
        await page.fill("#key-input", "sk-wrong-key")
        await page.click("text=Use it")
        await page.wait_for_selector("dialog[open] [role=alert]")

        assert "slow" not in await page.inner_text("main")


async def test_below_a_path(visitor: Visitor, tmp_path: Path) -> None:
    """Behind a proxy that serves it below a path, the page finds its files and its server."""
    async with operated(tmp_path, _TWO) as server, prefixed(server.url) as url:
        page = await visitor.open(url)
        await holds(page, "document.querySelectorAll('select.model option').length === 2")
        await page.select_option("select.model", "a")
        await page.fill("#composer", "Hello")
        await page.press("#composer", "Enter")
        await page.wait_for_selector(".message.assistant footer")
