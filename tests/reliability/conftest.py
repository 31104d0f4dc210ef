"""Servers in this process."""

from collections.abc import AsyncIterator

import pytest
from inprocess import Site, site

from engine import ENGINES_IN_CI, SOURCES
from unilect.config import Config, ModelConfig


@pytest.fixture(params=ENGINES_IN_CI)
async def demo(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """The bundled model on each engine, two requests at a time."""
    model = ModelConfig(source=SOURCES[request.param], parallel=2)
    config = Config(port=0, models={"demo": model}, log_level="warning")
    async with site(config) as running:
        yield running
