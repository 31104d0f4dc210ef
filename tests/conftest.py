"""Fixtures that several folders of tests share."""

import os
from collections.abc import Iterator

import pytest

from serving import KEY, Server, serve

#: Whole foreign servers and libraries, in environments of a gigabyte: CI runs them always, others with UNILECT_PEERS=1.
PEERS = [
    "five_systems/test_fastchat_real.py",
    "sdk/test_client_libraries.py",
    "sdk/test_litellm_proxy.py",
]
collect_ignore = [] if os.environ.get("CI") == "true" or "UNILECT_PEERS" in os.environ else PEERS


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of the bundled model that wants the key `sk-test`."""
    with serve("--api-key", KEY) as running:
        yield running
