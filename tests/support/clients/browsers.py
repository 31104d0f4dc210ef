"""A browser for tests: Debian's Chromium, driven by Playwright, and a visitor who notes all that goes wrong."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request

_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_NOTE_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => noteViolation(
  `${event.effectiveDirective} stopped ${event.blockedURI || "code"} ${event.sample} (${event.sourceFile}:${event.lineNumber})`))
"""
#: Schemes of what is asked of no server.
_INSIDE = {"about", "blob", "data"}


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """A browser with a new profile until the block ends; the test is skipped where there is none, and fails in continuous integration."""
    program = shutil.which("chromium")
    if program is None or find_spec("playwright") is None:
        message = (
            "needs Debian's package chromium, and playwright (`uv pip install --group browser`)"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=_ARGS)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Visitor:
    """
    One profile of a browser, with storage of its own, and what went wrong in it.

    Attributes:
        origins: Those that pages were opened of; a request to any other is a fault.
        faults: Violations of the policy, errors of the console, errors that no script caught, requests to other origins.
        expected: Regular expressions of faults that the test means to cause.
    """

    context: "BrowserContext"
    origins: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    async def watch(self) -> None:
        """Note faults from now on."""
        await self.context.expose_function("noteViolation", self._note)
        await self.context.add_init_script(_NOTE_VIOLATIONS)
        self.context.on("request", self._look_at_request)
        self.context.on("console", self._look_at_console)
        self.context.on("weberror", lambda error: self._note(str(error.error)))

    async def open(self, url: str) -> "Page":
        """A new tab at this address."""
        self.origins.add(_origin(url))
        page = await self.context.new_page()
        await page.goto(url)
        return page

    def _look_at_request(self, request: "Request") -> None:
        if urlsplit(request.url).scheme not in _INSIDE and _origin(request.url) not in self.origins:
            self._note(f"asked {request.url}")

    def _look_at_console(self, message: "ConsoleMessage") -> None:
        if message.type == "error":
            self._note(f"{message.text} ({message.location.get('url', '')})")

    def _note(self, fault: str) -> None:
        if not any(re.search(expected, fault) for expected in self.expected):
            self.faults.append(fault)


@asynccontextmanager
async def visiting(browser: "Browser", **options: Any) -> AsyncIterator[Visitor]:
    """A visitor until the block ends, who has met no fault; the options are Playwright's (`color_scheme="dark"`)."""
    context = await browser.new_context(**options)
    try:
        visitor = Visitor(context)
        await visitor.watch()
        yield visitor
        assert [] == visitor.faults, visitor.faults
    finally:
        await context.close()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def holds(page: "Page", expression: str, deadline_s: float = 30.0) -> None:
    """
    Wait until an expression is true in the page: Playwright's own waiting needs `eval`, which the page's policy forbids.

    Raises:
        TimeoutError: It is not in time.
    """
    async with asyncio.timeout(deadline_s):
        while not await page.evaluate(f"Boolean({expression})"):
            await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
