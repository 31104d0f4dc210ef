"""The official JavaScript client, in each of its major versions, against a real server of the bundled model on each engine."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from results import KNOWLEDGE, Results, assert_passed, run

from support.backends.engine import ENGINES_IN_CI
from support.common import environments
from support.servers.serving import Server

SCRIPT = Path(__file__).parent / "node_client.mjs"
pytestmark = [pytest.mark.heavy, environments.may_install]
KINDS = "check|knows" if KNOWLEDGE else "check"
CHECKS = re.findall(rf'^(?:{KINDS})\("(\w+)"', SCRIPT.read_text(), re.MULTILINE)


#: Its major version -> the folder of its package.json, and the package there. Version 5 reads schemas of an older zod.
PACKAGES = {"7": ("", "openai"), "6": ("", "openai6"), "5": ("openai5", "openai")}


@pytest.fixture(scope="module", params=PACKAGES)
def version(request: pytest.FixtureRequest) -> str:
    """Each major version."""
    return str(request.param)


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def results(
    request: pytest.FixtureRequest,
    version: str,
    server_on: Callable[[str], Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    """What one major version of the client says about each engine."""
    there, package = PACKAGES[version]
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(SCRIPT, folder)
    (folder / "node_modules").symlink_to(environments.node_folder(there) / "node_modules")
    node = shutil.which("node") or "node"
    found = run([node, SCRIPT.name, package], server_on(request.param), cwd=folder)
    assert found["version"][1].startswith(f"{version}."), found["version"]
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    """What the check's name says holds for this version of the JavaScript client."""
    assert_passed(results, check)


def test_every_check_is_run(results: Results) -> None:
    """The checks that the script ran are the checks that the tests know."""
    assert {"version", *CHECKS} == set(results)
