"""The page together with what else a server may be: TLS, several addresses, profiles of dialects, a store that is broken, a thousand models."""

from pathlib import Path
from typing import TYPE_CHECKING

from server.test_admin import Operated, operated
from support.clients.browsers import Visitor, holds, visiting
from support.common.certificates import certificate, needs_openssl

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_COPY = '[models.copy]\nsource = "echo:"\n'
_LISTENERS = """
[[listeners]]
port = 0
dialect = "llamacpp"
[[listeners]]
port = 0
dialect = "chatglm"
done = false
[[listeners]]
port = 0
dialect = "ollama"
on_unknown_model = "default"
"""


async def talk(visitor: Visitor, server: Operated, url: str) -> "Page":
    """The live view at an address, after a chat there."""
    page = await visitor.open(f"{url}/")
    await holds(page, "document.querySelector('select.model option')")
    await page.fill("#composer", "some *words*")
    await page.press("#composer", "Enter")
    await page.wait_for_selector(".message.assistant footer")
    assert "words" == await page.inner_text(".message.assistant em")
    await page.close()
    _, told = await server.ask("GET", "/page")
    page = await visitor.open(f"{url}/#{told['url'].partition('#')[2]}")
    await page.wait_for_selector(".tag.good:text('live')")
    await page.wait_for_selector(".model-card h3:text('copy')")
    return page


@needs_openssl
async def test_tls(browser: "Browser", tmp_path: Path) -> None:
    """Over TLS the page talks and looks on, and the address of `unilect page` is one of https."""
    cert, key = certificate(tmp_path)
    options = f"tls_cert = '{cert}'\ntls_key = '{key}'\n"
    async with (
        operated(tmp_path, _COPY, options) as server,
        visiting(browser, ignore_https_errors=True) as visitor,
    ):
        _, told = await server.ask("GET", "/page")
        assert told["url"].startswith(f"{server.url}/#key=")
        assert server.url.startswith("https://")
        await talk(visitor, server, server.url)


async def test_several_addresses(visitor: Visitor, tmp_path: Path) -> None:
    """At each address, with the profile of whatever dialect, the page talks and looks on."""
    async with operated(tmp_path, _COPY + _LISTENERS, 'dialect = "fastchat"\n') as server:
        _, told = await server.ask("GET", "/server")
        assert 4 == len(set(told["urls"]))
        for url in told["urls"]:
            await (await talk(visitor, server, url)).close()


async def test_a_store_that_cannot_be_read(visitor: Visitor, tmp_path: Path) -> None:
    """A store that is no database is told where it is needed, and the live view goes on."""
    visitor.expected.append("503")
    (tmp_path / "keys.db").write_text("no database at all, but some text " * 50)
    text = f"{_COPY}[page]\ntitle = 'Lab'\n"
    async with operated(tmp_path, text) as server:
        _, told = await server.ask("GET", "/page")
        page = await visitor.open(told["url"])
        await page.wait_for_selector(".tag.good:text('live')")
        await page.wait_for_selector(".model-card h3:text('copy')")
        await page.wait_for_selector(".brand:has-text('Lab')")
        await page.click("nav a[href='#keys']")
        await page.wait_for_selector("[role=alert]:has-text('store')")
        await page.click("nav a[href='#chat']")
        await page.wait_for_selector("[role=alert]:has-text('store')")
        await page.wait_for_load_state("networkidle")


async def test_a_thousand_models(visitor: Visitor, tmp_path: Path) -> None:
    """Of very many models some are shown, those first that something happens to; the others are found by their names."""
    tables = "".join(f'[models.m{number}]\nsource = "echo:"\n' for number in range(1000))
    slow = 'options = { text = "word word word", tokens_per_s = 1.0 }\n'
    async with operated(tmp_path, f'{tables}[models.last]\nsource = "echo:"\n{slow}') as server:
        _, told = await server.ask("GET", "/page")
        page = await visitor.open(told["url"])
        await page.wait_for_selector("text=50 of 1,001 models are shown")
        assert 50 == await page.locator(".model-card").count()
        await page.fill("[aria-label='Find a model']", "M777")
        await page.wait_for_selector("text=1 of 1,001 models are shown")
        assert "m777" == await page.inner_text(".model-card h3")
        await page.fill("[aria-label='Find a model']", "")
        await page.wait_for_selector("text=50 of 1,001 models are shown")
