"""A server for hostile requests, and what must be true of it after each test."""

import asyncio
from collections.abc import Iterator

import psutil
import pytest
from attack import Attacker
from hypothesis import HealthCheck, Phase, settings

from serving import KEY, Server, serve

# A short context bounds every answer, whatever a request asks for.
FLAGS = ("--context", "256", "--parallel", "4", "--log-level", "warning")

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def target() -> Iterator[Server]:
    """The server that is attacked. Both of its engines run from the beginning, so that a new one is a dead one."""
    with serve("--api-key", KEY, *FLAGS) as server, asyncio.Runner() as runner:
        attacker = Attacker(server, runner)
        attacker.send("/v1/embeddings", [b'{"input": "a"}'])
        yield server


@pytest.fixture(scope="session")
def attacker(target: Server) -> Iterator[Attacker]:
    """Sends requests to the target."""
    with asyncio.Runner() as runner:
        yield Attacker(target, runner)


@pytest.fixture(autouse=True)
def _unharmed(target: Server) -> Iterator[None]:
    """After every test the server and its engines are the processes that they were, and have failed at nothing."""
    before, logged = _processes(target), len(target.log.read_text())
    yield
    log = target.log.read_text()[logged:]
    assert before == _processes(target), log[-4000:]
    assert "Traceback" not in log, log[-4000:]


def _processes(server: Server) -> set[int]:
    process = psutil.Process(server.pid)
    return {server.pid, *(child.pid for child in process.children(recursive=True))}
