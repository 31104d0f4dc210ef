"""The official Python client, in each of its major versions, against a real server of the bundled model on each engine."""

from collections.abc import Callable
from pathlib import Path

import pytest
import python_client
from results import KNOWLEDGE, Results, assert_passed, run

from support.backends.engine import ENGINES_IN_CI
from support.common import environments
from support.servers.serving import Server

SCRIPT = Path(python_client.__file__)
pytestmark = environments.may_install
CHECKS = [name for name in python_client.CHECKS if KNOWLEDGE or name not in python_client.KNOWLEDGE]
#: major versions of the client, each with the engines behind the server; the newest needs no environment of its own
CASES = [
    pytest.param(
        (version, engine.values[0]),
        marks=[*engine.marks, *([] if version == "3" else [pytest.mark.heavy])],
        id=f"{version}-{engine.values[0]}",
    )
    for version in ("3", "2", "1")
    for engine in ENGINES_IN_CI
]


@pytest.fixture(scope="module", params=CASES)
def results(request: pytest.FixtureRequest, server_on: Callable[[str], Server]) -> Results:
    """What one version of the client says about one engine."""
    version, engine = request.param
    python = environments.openai_python(version)
    found = run([str(python), "-W", "error", str(SCRIPT)], server_on(engine))
    assert found["version"][1].startswith(f"{version}."), found["version"]
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    """What the check's docstring says is true for this version of the client."""
    assert_passed(results, check)
