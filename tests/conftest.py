"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest

from serving import KEY, Server, serve


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of the bundled model that wants the key `sk-test`."""
    with serve("--api-key", KEY) as running:
        yield running
