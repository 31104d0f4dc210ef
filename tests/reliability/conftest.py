"""Servers in this process."""

from collections.abc import AsyncIterator

import pytest
from inprocess import Site, site

from unilect.config import Config, ModelConfig


@pytest.fixture
async def demo() -> AsyncIterator[Site]:
    """The bundled model, two requests at a time."""
    config = Config(port=0, models={"demo": ModelConfig(parallel=2)}, log_level="warning")
    async with site(config) as running:
        yield running
