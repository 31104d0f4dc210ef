"""Databases for the tests of the store: each test has new ones."""

from collections.abc import AsyncIterator, Callable

import pytest

from support.common.clock import Clock
from support.servers.postgresql import POSTGRESQL
from unilect.store.database import Database


@pytest.fixture(params=["sqlite", "memory", POSTGRESQL])
async def database(
    request: pytest.FixtureRequest, new_url: Callable[[str], str]
) -> AsyncIterator[Database]:
    """A new database, of each kind."""
    made = Database(new_url(request.param))
    yield made
    await made.aclose()


@pytest.fixture
def clock() -> Clock:
    """The time of the store."""
    return Clock()
