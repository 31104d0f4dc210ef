"""Anthropic's official clients, the newest and an older one of each language, against a server of the bundled model on each engine."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from results import Results, assert_passed, run

from support.backends.engine import ENGINES_IN_CI
from support.common import environments
from support.servers.serving import Server

FOLDER = Path(__file__).parent
PYTHON, NODE = FOLDER / "anthropic_client.py", FOLDER / "anthropic_client.mjs"
pytestmark = [pytest.mark.heavy, environments.may_install]
PYTHON_CHECKS = re.findall(r"^@check\ndef (\w+)", PYTHON.read_text(), re.MULTILINE)
NODE_CHECKS = re.findall(r'^check\("([\w ]+)"', NODE.read_text(), re.MULTILINE)
#: The package in node_modules -> its major version.
PACKAGES = {"@anthropic-ai/sdk": "1.", "anthropic-sdk-old": "0."}


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def server(request: pytest.FixtureRequest, server_on: Callable[[str], Server]) -> Server:
    """A server on each engine."""
    return server_on(request.param)


@pytest.fixture(scope="module", params=environments.ANTHROPIC)
def python_results(request: pytest.FixtureRequest, server: Server) -> Results:
    """What one major version of the Python client says about one engine."""
    python = environments.anthropic_python(request.param)
    found = run([str(python), "-W", "error", str(PYTHON)], server)
    assert found["version"][1].startswith(f"{request.param}."), found["version"]
    return found


@pytest.fixture(scope="module", params=PACKAGES)
def node_results(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    """What one major version of the JavaScript client says about one engine."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(NODE, folder)
    modules = environments.node_folder("anthropic") / "node_modules"
    (folder / "node_modules").symlink_to(modules)
    node = shutil.which("node") or "node"
    found = run([node, NODE.name, request.param], server, cwd=folder)
    assert found["version"][1].startswith(PACKAGES[request.param]), found["version"]
    return found


@pytest.mark.parametrize("check", PYTHON_CHECKS)
def test_python(python_results: Results, check: str) -> None:
    """What the check's docstring says is true for this version of the Python client."""
    assert_passed(python_results, check)


@pytest.mark.parametrize("check", NODE_CHECKS)
def test_node(node_results: Results, check: str) -> None:
    """What the check's name says holds for this version of the JavaScript client."""
    assert_passed(node_results, check)


def test_every_check_is_run(python_results: Results, node_results: Results) -> None:
    """The checks that the scripts ran are the checks that the tests know."""
    assert {"version", *PYTHON_CHECKS} == set(python_results)
    assert {"version", *NODE_CHECKS} == set(node_results)
