"""Fixtures that several folders of tests share."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from engine import SOURCES
from serving import KEY, Server, serve

#: Whole foreign servers and libraries, in environments of a gigabyte: CI runs them always, others with UNILECT_PEERS=1.
PEERS = [
    "five_systems/test_fastchat_real.py",
    "sdk/test_client_libraries.py",
    "sdk/test_litellm_proxy.py",
]
collect_ignore = [] if os.environ.get("CI") == "true" or "UNILECT_PEERS" in os.environ else PEERS


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """torch's random numbers are the same in every run, whatever tests came before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(7)


@pytest.fixture(scope="session")
def server_on() -> Iterator[Callable[[str], Server]]:
    """The server of the bundled model on an engine, that wants the key `sk-test`; one for all tests."""
    with ExitStack() as stack:
        yield cache(
            lambda engine: stack.enter_context(serve(f"demo={SOURCES[engine]}", "--api-key", KEY))
        )


@pytest.fixture(scope="session")
def server(server_on: Callable[[str], Server]) -> Server:
    """A server of the bundled model, on whatever engine, that wants the key `sk-test`."""
    return server_on("gguf")
