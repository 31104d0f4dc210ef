"""The official clients against a server whose model is two replicas: their checks are those that a local model passes."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from results import Results, run

from support.common import environments
from support.servers.serving import KEY, Server, serve

SCRIPTS = environments.SDK
pytestmark = [pytest.mark.heavy, environments.may_install, pytest.mark.timeout(300)]
_TABLE = f"""
api_keys = ["{KEY}"]
[models.demo]
source = "demo:"
replicas = 2
resources = {{ cpu = 0.5 }}
"""
#: The newest of each: how its script is run in a folder with its packages.
PYTHON: dict[str, Callable[[], Path]] = {
    "python_client.py": lambda: Path(sys.executable),
    "anthropic_client.py": lambda: environments.anthropic_python("2"),
}
NODE = {"node_client.mjs": ("", "openai"), "anthropic_client.mjs": ("anthropic", "@anthropic-ai/sdk"), "ollama_client.mjs": ("", "")}  # fmt: skip


@pytest.fixture(scope="module")
def replicated() -> Iterator[Server]:
    """The server."""
    with serve(config=_TABLE) as server:
        yield server


@pytest.mark.parametrize("script", PYTHON)
def test_python(replicated: Server, script: str) -> None:
    """What the docstrings of a Python client's checks say is true for replicas, too."""
    python = PYTHON[script]()
    all_passed(run([str(python), "-W", "error", str(SCRIPTS / script)], replicated))


@pytest.mark.parametrize("script", NODE)
def test_node(replicated: Server, script: str, tmp_path: Path) -> None:
    """What the names of a JavaScript client's checks say holds for replicas, too."""
    folder, package = NODE[script]
    shutil.copy(SCRIPTS / script, tmp_path)
    (tmp_path / "node_modules").symlink_to(environments.node_folder(folder) / "node_modules")
    command = [shutil.which("node") or "node", script, *([package] if package else [])]
    all_passed(run(command, replicated, cwd=tmp_path))


def all_passed(results: Results) -> None:
    """Fail with the checks that have not passed."""
    assert len(results) > 5
    assert {} == {name: detail for name, (passed, detail) in results.items() if not passed}
