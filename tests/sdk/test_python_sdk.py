"""The official Python client, in each of its major versions, against a real server of the bundled model."""

from pathlib import Path

import pytest
import python_client
from results import KNOWLEDGE, Results, assert_passed, run

import environments
from serving import Server

SCRIPT = Path(python_client.__file__)
CHECKS = [name for name in python_client.CHECKS if KNOWLEDGE or name not in python_client.KNOWLEDGE]


@pytest.fixture(scope="module", params=["3", "2", "1"])
def results(request: pytest.FixtureRequest, server: Server) -> Results:
    """What one version of the client says."""
    python = environments.openai_python(request.param)
    found = run([str(python), "-W", "error", str(SCRIPT)], server)
    assert found["version"][1].startswith(f"{request.param}."), found["version"]
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    """What the check's docstring says is true for this version of the client."""
    assert_passed(results, check)
