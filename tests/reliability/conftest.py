"""Servers in this process."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inprocess import Site, site, until

from support.backends.engine import ENGINES_IN_CI, SOURCES
from unilect.config.server import Config, ModelConfig


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def demo_site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """The bundled model on each engine, two requests at a time."""
    model = ModelConfig(source=SOURCES[request.param], parallel=2)
    config = Config(port=0, models={"demo": model}, log_level="warning")
    async with site(config) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def demo(demo_site: Site) -> Site:
    """The server once nothing is left in it of what earlier tests asked."""
    await demo_site.until_busy(0)
    await until(demo_site.is_idle)
    return demo_site
