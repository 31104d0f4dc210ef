"""
Where the official clients live: interpreters with older versions of the Python package, a folder with the JavaScript one.

They are made once, under `.cache/sdk`, and kept. An environment that cannot be made fails the tests in continuous integration
and skips them elsewhere.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "sdk"
REQUIREMENTS = {"1": "openai>=1.109,<2", "2": "openai>=2,<3"}  # 3 is in our own environment
INSTALL_TIMEOUT_S = 300


def python(version: str) -> Path:
    """The interpreter that has this major version of `openai`."""
    if version not in REQUIREMENTS:
        return Path(sys.executable)
    if given := os.environ.get(f"UNILECT_TEST_OPENAI{version}"):
        return Path(given)
    folder = CACHE / f"openai-{version}"
    _make(folder, REQUIREMENTS[version], lambda: _install_python(folder, REQUIREMENTS[version]))
    return folder / "bin" / "python"


def node_folder() -> Path:
    """The folder that has the JavaScript client, and our script beside it, since modules are looked for from there."""
    folder = CACHE / "node"
    lock = (HERE / "package-lock.json").read_text()
    _make(folder, hashlib.sha256(lock.encode()).hexdigest(), lambda: _install_node(folder))
    shutil.copy(HERE / "node_client.mjs", folder)
    return folder


def _make(folder: Path, content: str, make: Callable[[], None]) -> None:
    """Make a folder anew unless it was made to its end with this content."""
    done = folder / "done"
    if done.is_file() and done.read_text() == content:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        make()
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or ""
        reason = f"{folder.name} cannot be made: {error} {output[-1000:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    done.write_text(content)


def _install_python(folder: Path, requirement: str) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    _run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder))
    _run(uv, "pip", "install", "--quiet", "--python", str(folder), requirement, "pydantic")


def _install_node(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / name, folder)
    _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(
        command, cwd=cwd, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
