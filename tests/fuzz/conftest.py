"""Servers for hostile requests, and what must be true of them after each test."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from attack import Attacker, Target, attacked
from hypothesis import HealthCheck, Phase, settings

from support.backends.engine import ENGINES, ENGINES_IN_CI
from support.servers.serving import Server

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
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """The servers that are attacked, by engine: those that have been wanted so far."""
    with ExitStack() as stack:

        class Targets(dict[str, Target]):
            def __missing__(self, engine: str) -> Target:
                folder = tmp_path_factory.mktemp("attacked")
                self[engine] = stack.enter_context(attacked(engine, folder))
                return self[engine]

        yield Targets()


@pytest.fixture(scope="session", params=ENGINES if "UNILECT_FUZZ" in os.environ else ENGINES_IN_CI)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine for attacks that reach it: each."""
    return str(request.param)


@pytest.fixture(scope="session")
def target(targets: dict[str, Target], engine: str) -> Target:
    """The server on an engine."""
    return targets[engine]


@pytest.fixture(scope="session")
def attacker(target: Target) -> Attacker:
    """Sends requests to the server on an engine."""
    return target.attacker


@pytest.fixture(scope="session")
def server(targets: dict[str, Target]) -> Server:
    """The server for attacks that reach no engine."""
    return targets["gguf"].server


@pytest.fixture(autouse=True)
def _unharmed(targets: dict[str, Target]) -> Iterator[None]:
    """After every test no server has been harmed."""
    yield
    for target in targets.values():
        target.look()
