"""A server for hostile requests, and what must be true of it after each test."""

from collections.abc import Iterator

import psutil
import pytest
from attack import Attacker, Request
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
    with serve("--api-key", KEY, *FLAGS) as server:
        with Attacker(server) as attacker:
            [reply] = attacker.send([Request("/v1/embeddings", b'{"input": "a"}')])
            assert reply.status == 200, reply
        yield server


@pytest.fixture(scope="session")
def attacker(target: Server) -> Iterator[Attacker]:
    """Sends requests to the target."""
    with Attacker(target) as attacker:
        yield attacker


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
