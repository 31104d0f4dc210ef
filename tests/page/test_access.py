"""Every view, looked at by axe-core in light and in dark, wide and narrow; and by keyboard alone."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from server.test_admin import Operated, operated
from support.clients.browsers import Visitor, holds, visiting

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_MODELS = '[models.a]\nsource = "echo:"\n[models.b]\nsource = "echo:b"\naliases = ["b2"]\n'
_TEXT = (
    "## Words\n\n- one\n- *two*\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server(tmp_path_factory: Any) -> AsyncIterator[Operated]:
    """A server with a key, usage and a failure."""
    text = f"{_MODELS}[store]\nurl = 'sqlite:///keys.db'\nledger = 'best_effort'\n"
    async with operated(tmp_path_factory.mktemp("access"), text) as one:
        await one.ask("POST", "/keys", {"name": "ann", "limits": {"requests_per_minute": 5}})
        await one.chat("b")
        await one.chat("b", params={"x": "1"})
        yield one


async def _opened(visitor: Visitor, server: Operated, view: str) -> "Page":
    """A view with all in it that can be unfolded."""
    _, told = await server.ask("GET", "/page")
    page = await visitor.open(f"{server.url}/#{told['url'].partition('#')[2]}")
    await page.wait_for_selector(".model-card")
    await page.click(f"nav a[href='#{view}']")
    if view == "chat":
        await page.fill("#composer", _TEXT)
        await page.press("#composer", "Enter")
        await page.wait_for_selector(".message.assistant footer")
        await page.click("button:text-is('Settings')")
        await page.wait_for_selector(".panel .field")
    if view == "live":
        await page.click("summary:text-is('Follow')")
        await page.click(".model-card button:text-is('Why') >> nth=0")
    if view == "keys":
        await page.click("text=Make a key")
        await page.wait_for_selector("td:has-text('ann')")
    if view == "connect":
        await page.click("text=Codex")
        await page.wait_for_selector("h2:text-is('Codex')")
    if view == "api":
        await page.click(".operation summary >> nth=0")
        await page.wait_for_selector(".operation .tag.bad")
        await page.click("button:text-is('Send')")
        await page.wait_for_selector(".answer dl")
    await page.wait_for_selector("main:not([aria-busy]) h1, .panel h2")
    return page


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["chat", "live", "keys", "connect", "api"])
async def test_axe(
    browser: "Browser", server: Operated, view: str, scheme: str, width: int
) -> None:
    """No view hinders those who read by ear, by keyboard or with little contrast, or is wider than the screen."""
    from axe_playwright_python.async_playwright import Axe

    size = {"width": width, "height": 800}
    async with visiting(browser, color_scheme=scheme, viewport=size) as visitor:
        page = await _opened(visitor, server, view)
        found = await Axe().run(page)
        wide = await page.evaluate("document.documentElement.scrollWidth")

    assert [] == [
        (one["id"], [node["html"][:200] for node in one["nodes"]][:3])
        for one in found.response["violations"]
    ]
    assert wide <= width


async def test_keyboard_alone(visitor: Visitor, server: Operated) -> None:
    """Who has no pointer asks, and reaches every button of the answer and every view."""
    page = await visitor.open(f"{server.url}/")
    await page.wait_for_selector("#composer:focus")
    await holds(page, "document.querySelectorAll('select.model option').length === 2")
    await page.keyboard.type("Hello")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".message.assistant footer")
    reached = set()
    for _ in range(60):
        await page.keyboard.press("Tab")
        reached.add(await page.evaluate("document.activeElement.textContent.trim().slice(0, 30)"))

    assert {
        "Copy",
        "Again",
        "Raw",
        "Delete",
        "Settings",
        "Code",
        "Live",
        "API",
        "New conversation",
    } <= reached


async def test_light_or_dark(visitor: Visitor, server: Operated) -> None:
    """The colours that a person chooses stay over a reload, whatever the system has."""
    page = await visitor.open(f"{server.url}/")
    before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.click("[aria-label='Colours: auto']")
    await page.click("[aria-label='Colours: light']")
    await page.reload()
    await page.wait_for_selector("[aria-label='Colours: dark']")

    assert before != await page.evaluate("getComputedStyle(document.body).backgroundColor")
