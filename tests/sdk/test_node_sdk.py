"""The official JavaScript client against a real server of the bundled model on each engine."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from results import KNOWLEDGE, Results, assert_passed, run

import environments
from engine import ENGINES_IN_CI
from serving import Server

SCRIPT = Path(__file__).parent / "node_client.mjs"
pytestmark = environments.may_install
KINDS = "check|knows" if KNOWLEDGE else "check"
CHECKS = re.findall(rf'^(?:{KINDS})\("(\w+)"', SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def results(
    request: pytest.FixtureRequest,
    server_on: Callable[[str], Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    """What the client says about each engine."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(SCRIPT, folder)
    (folder / "node_modules").symlink_to(environments.node_folder() / "node_modules")
    return run([shutil.which("node") or "node", SCRIPT.name], server_on(request.param), cwd=folder)


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    """What the check's name says holds for the JavaScript client."""
    assert_passed(results, check)


def test_every_check_is_run(results: Results) -> None:
    """The checks that the script ran are the checks that the tests know."""
    assert {"version", *CHECKS} == set(results)
