"""Fixtures for tests with foreign clients and gateways."""

from collections.abc import Iterator

import pytest
from litellm_proxy import Proxy

from support.servers.serving import Server


@pytest.fixture(scope="session")
def litellm_proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """LiteLLM's proxy in front of the server; it may still be starting."""
    proxy = Proxy(server, tmp_path_factory.mktemp("litellm"))
    yield proxy
    proxy.close()
