"""Databases for the tests of the store: each test has new ones."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from clock import Clock
from postgresql import PostgreSQL, postgresql
from unilect.store.database import Database

#: A real server is for CI.
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.heavy)


@pytest.fixture(scope="session")
def server_of_postgresql() -> Iterator[PostgreSQL]:
    """One PostgreSQL server for all tests."""
    with postgresql() as server:
        yield server


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A new database's URL, by its kind."""

    def new(kind: str) -> str:
        if kind == "postgresql":
            return request.getfixturevalue("server_of_postgresql").new_database()
        return "sqlite://" if kind == "memory" else f"sqlite:///{tmp_path / 'unilect.db'}"

    return new


@pytest.fixture(params=["sqlite", POSTGRESQL])
def url(request: pytest.FixtureRequest, new_url: Callable[[str], str]) -> str:
    """The URL of a new database that several processes can use, of each kind."""
    return new_url(request.param)


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
