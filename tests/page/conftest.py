"""
The browser of the page's tests: one for all of a process, and a visitor for each test.

All run on one event loop, which the browser belongs to, and only where heavy tests do.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from support.clients.browsers import Visitor, chromium, visiting
from support.servers.pages import pages

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as heavy ones, of one event loop."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.heavy)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """One browser for all tests of this process."""
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def files() -> AsyncIterator[str]:
    """The URL of the page's files, with no server behind them."""
    async with pages() as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: "Browser") -> AsyncIterator[Visitor]:
    """A visitor with a new profile; a fault that the test did not expect fails it."""
    async with visiting(browser) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def page(visitor: Visitor, files: str) -> "Page":
    """A bare document that may import the page's files: `import("/page/NAME.js")`."""
    return await visitor.open(files)
