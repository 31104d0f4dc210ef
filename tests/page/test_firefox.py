"""The page in another browser, Firefox: a first visit, what is kept, hostile texts, and the stream that all tabs read."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from page.test_hostile import TEXTS, export
from server.test_admin import operated
from support.clients.firefox import Firefox, firefox
from support.common.waiting import until

_STORY = """
[models.story]
source = "echo:"
options = { text = "Once upon a *time*. word word word", tokens_per_s = 20.0 }
"""
_ANSWER = "document.querySelector('.message.assistant')"
_LIVE = "document.querySelector('.tag.good')?.textContent === 'live'"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one(tmp_path_factory: Any) -> AsyncIterator[Firefox]:
    """One browser for all tests here; each has a server, and with it an origin, of its own."""
    async with firefox(tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def browser(one: Firefox) -> AsyncIterator[Firefox]:
    """The browser, in which nothing has gone wrong at the end."""
    yield one
    faults, one.faults[:] = one.faults[:], []
    assert [] == faults, faults


async def test_a_first_visit(browser: Firefox, tmp_path: Path) -> None:
    """Who opens the address, writes and presses Enter reads an answer as it comes, and finds it again after a reload."""
    async with operated(tmp_path, _STORY) as server:
        tab = await browser.open(f"{server.url}/")
        await tab.holds("document.activeElement?.id === 'composer'")
        await tab.holds("document.querySelector('select.model option')")
        await tab.type("Tell me a story")
        await tab.holds(
            f"{_ANSWER}?.textContent.includes('Once') && document.querySelector('.stop')"
        )
        await tab.holds(f"{_ANSWER}.querySelector('footer')")
        await tab.reload()
        await tab.holds(f"{_ANSWER}?.querySelector('em')?.textContent === 'time'")

        assert ["Tell me a story"] == await tab.evaluate(
            "[...document.querySelectorAll('.history li a')].map((one) => one.textContent)"
        )


async def test_a_page_that_is_left_slowly(browser: Firefox, tmp_path: Path) -> None:
    """An answer that Firefox breaks off because its page is about to be left, which the next one takes long to replace, is no failure."""
    with socket.create_server(("127.0.0.1", 0)) as far:  # which takes connections, and answers none
        address = f"http://127.0.0.1:{far.getsockname()[1]}/"
        async with operated(tmp_path, _STORY) as server:
            tab = await browser.open(f"{server.url}/")
            await tab.holds("document.querySelector('select.model option')")
            await tab.type("Tell me a story")
            await tab.holds(f"{_ANSWER}?.textContent.includes('Once')")
            await tab.evaluate(f"setTimeout(() => (location.href = '{address}'))")
            await tab.holds(f"{_ANSWER}.textContent.includes('The page was left while this came.')")


async def test_hostile_answers(browser: Firefox, tmp_path: Path) -> None:
    """Texts that would run something, in each place of a conversation, run nothing and load nothing."""
    (tmp_path / "hostile.json").write_text(export(TEXTS))
    async with operated(tmp_path, _STORY) as server:
        tab = await browser.open(f"{server.url}/")
        await tab.holds("document.querySelector('select.model option')")
        await tab.choose_file("input[type=file][accept*=json]", tmp_path / "hostile.json")
        await tab.holds("document.querySelector('.history li a')")
        await tab.evaluate("document.querySelector('.history li a').click()")
        await tab.holds(f"document.querySelectorAll('.message').length === {2 * len(TEXTS)}")
        await tab.holds("document.querySelector('.message.assistant:last-child div')?.textContent")
        links = await tab.evaluate(
            "[...document.querySelectorAll('main a[href]')].map((one) => one.protocol)"
        )

        assert {"http:", "https:", "mailto:"} >= set(links)
        assert not await tab.evaluate("'ran' in window")
        assert 0 == await tab.evaluate(
            "document.querySelectorAll('main :is(script, iframe, object, embed, form form, style, link, base, meta)').length"
        )


async def test_what_the_policy_forbids(browser: Firefox, tmp_path: Path) -> None:
    """A script within the document does not run, nor is an image of another host loaded; both are faults."""
    async with operated(tmp_path, _STORY) as server:
        tab = await browser.open(f"{server.url}/")
        await tab.evaluate("""(() => {
          const script = document.createElement("script");
          try { script.append("window.ran = 1"); document.body.append(script); } catch { /* trusted types */ }
          document.body.append(Object.assign(new Image(), { src: "http://127.0.0.2:9/x.png" }));
        })()""")
        await until(lambda: any("img-src" in one for one in browser.faults))
        assert not await tab.evaluate("'ran' in window")
        assert any("script-src" in one or "rusted" in one for one in browser.faults)
        browser.faults.clear()


async def test_one_stream_for_all_tabs(browser: Firefox, tmp_path: Path) -> None:
    """The operator sees the server live in two tabs, which read one stream of events."""
    async with operated(tmp_path, _STORY) as server:
        streams = server.listener._steering._live
        _, told = await server.ask("GET", "/page")
        first = await browser.open(f"{server.url}/#{told['url'].partition('#')[2]}")
        await first.holds(_LIVE)
        await first.holds("document.querySelectorAll('.plot-svg').length === 4")
        second = await browser.open(f"{server.url}/#live")
        await second.holds(_LIVE)

        assert 1 == streams._readers
