"""Ollama's official clients, and LangChain's classes for it, against a real server of the bundled model on each engine."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from results import Results, assert_passed, run

from support.backends.engine import ENGINES_IN_CI
from support.common import environments
from support.common.environments import Recipe
from support.servers.serving import Server

pytestmark = [pytest.mark.heavy, environments.may_install]
HERE = Path(__file__).parent
PYTHON = {
    "ollama_client": Recipe(("ollama==0.6.3",)),
    "langchain_ollama_client": Recipe(("langchain-ollama==1.1.0",)),
}
NODE = "ollama_client.mjs"


def checks(script: str) -> list[str]:
    """The names of a script's checks."""
    if script == NODE:
        return re.findall(r'^check\("(\w+)"', (HERE / script).read_text(), re.MULTILINE)
    return re.findall(r"^@check\ndef (\w+)", (HERE / f"{script}.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def results(
    request: pytest.FixtureRequest,
    server_on: Callable[[str], Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Results]:
    """What a script says about an engine; each runs once."""
    server, known = server_on(request.param), dict[str, Results]()

    def said(script: str) -> Results:
        if script not in known:
            known[script] = _ran(script, server, tmp_path_factory)
            assert {"version", *checks(script)} == set(known[script])
        return known[script]

    return said


def _ran(script: str, server: Server, folders: pytest.TempPathFactory) -> Results:
    if script != NODE:
        python = environments.python(script, PYTHON[script])
        return run([str(python), "-W", "error", str(HERE / f"{script}.py")], server)
    folder = folders.mktemp("ollama")
    shutil.copy(HERE / NODE, folder)
    (folder / "node_modules").symlink_to(environments.node_folder() / "node_modules")
    return run([shutil.which("node") or "node", NODE], server, cwd=folder)


@pytest.mark.parametrize(
    ("script", "check"), [(script, check) for script in (*PYTHON, NODE) for check in checks(script)]
)
def test_check(results: Callable[[str], Results], script: str, check: str) -> None:
    """What the check's docstring or name says is true for this client."""
    assert_passed(results(script), check)
