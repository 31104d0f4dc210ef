"""An engine that is killed: requests at that very moment are answered by the next one, and nothing else is harmed."""

import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest
from attack import AT_ONCE, Attacker, Request

from serving import KEY, Server, serve

REQUEST = Request("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')


@pytest.fixture
def target() -> Iterator[Server]:
    """A server of its own: its engine is killed on purpose."""
    with serve("--api-key", KEY) as server:
        yield server


@pytest.fixture
def _unharmed() -> None:
    """It is harmed here."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_requests_at_the_moment_of_death(target: Server, number: signal.Signals) -> None:
    """Requests that meet a dying engine, and all later ones, are answered; the server's folder is left alone."""
    files = sorted(target.log.parent.iterdir())
    [engine] = psutil.Process(target.pid).children()
    with Attacker(target) as attacker:
        threading.Timer(0.01, os.kill, (engine.pid, number)).start()
        # an answer that had begun cannot be begun again, and says so
        assert {200, 502} >= {reply.status for reply in attacker.send([REQUEST] * 80)}
        [again] = psutil.Process(target.pid).children()
        os.kill(again.pid, signal.SIGTERM)
        again.wait(10)
        assert {200} == {reply.status for reply in attacker.send([REQUEST] * AT_ONCE)}
    assert files == sorted(target.log.parent.iterdir())
