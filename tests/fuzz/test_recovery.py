"""An engine that is killed: requests at that very moment are answered by the next one, and nothing else is harmed."""

import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest
from attack import AT_ONCE, Attacker, Request

from support.backends.engine import ENGINES_IN_CI, SOURCES
from support.servers.serving import KEY, Server, serve


def short(name: object) -> Request:
    """A request like no other: one that is alone in an engine as it crashes is refused from then on, and only that one."""
    return Request("/v1/completions", b'{"prompt": "a%s", "max_tokens": 1}' % str(name).encode())


@pytest.fixture(params=ENGINES_IN_CI)
def victim(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own on each engine: it is killed on purpose."""
    with serve(f"demo={SOURCES[request.param]}", "--api-key", KEY) as server:
        yield server


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_requests_at_the_moment_of_death(victim: Server, number: signal.Signals) -> None:
    """Requests that meet a dying engine, and all later ones, are answered; the server's folder is left alone."""
    files = sorted(victim.log.parent.iterdir())
    [engine] = psutil.Process(victim.pid).children()
    with Attacker(victim, timeout_s=60) as attacker:  # an engine has to load
        killer = threading.Timer(0.01, os.kill, (engine.pid, number))
        killer.start()
        # an answer that had begun cannot be begun again, and says so
        assert {200, 502} >= {
            reply.status for reply in attacker.send([short(n) for n in range(80)])
        }
        killer.join()
        engine.wait(60)
        assert [200] == [reply.status for reply in attacker.send([short("between")])]
        [again] = psutil.Process(victim.pid).children()
        os.kill(again.pid, signal.SIGTERM)
        again.wait(60)
        assert {200} == {
            reply.status for reply in attacker.send([short(f"later {n}") for n in range(AT_ONCE)])
        }
    assert files == sorted(victim.log.parent.iterdir())
