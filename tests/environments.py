"""
Where foreign software lives that tests talk to: Python environments with packages that ours must not have, a folder with the
JavaScript client.

They are made once, under `.cache/environments` (or `UNILECT_TEST_CACHE`, which several working trees can share), and kept.
An environment that cannot be made fails the tests in continuous integration and skips them elsewhere.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SDK = ROOT / "tests" / "sdk"
CACHE = Path(os.environ.get("UNILECT_TEST_CACHE") or ROOT / ".cache") / "environments"
INSTALL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Recipe:
    """
    How an environment is made.

    Attributes:
        steps: What each `install` gets, in order: requirements and flags.
        pip: Install with pip and not with uv, which ignores the places for wheels that pip is configured with.
        variables: Added to the environment of the installs, for packages that are built from source.
        timeout_s: The longest time for one step.
    """

    steps: tuple[tuple[str, ...], ...]
    pip: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = INSTALL_TIMEOUT_S


OPENAI = {  # major version 3 is in our own environment
    "0": Recipe((("openai==0.28.1", "numpy", "setuptools<80"),)),
    "1": Recipe((("openai>=1.109,<2", "pydantic"),)),
    "2": Recipe((("openai>=2,<3", "pydantic"),)),
}


def openai_python(version: str) -> Path:
    """The interpreter that has this major version of `openai`; `UNILECT_TEST_OPENAI1` and so on name another."""
    if version not in OPENAI:
        return Path(sys.executable)
    if given := os.environ.get(f"UNILECT_TEST_OPENAI{version}"):
        return Path(given)
    return python(f"openai-{version}", OPENAI[version])


def python(name: str, recipe: Recipe) -> Path:
    """The interpreter of the environment of this name, made by its recipe where it is not there or was made by another."""
    folder = CACHE / name
    _make(folder, repr(recipe), lambda: _install_python(folder, recipe))
    return folder / "bin" / "python"


def node_folder() -> Path:
    """The folder that has the JavaScript client, and our script beside it, since modules are looked for from there."""
    folder = CACHE / "node"
    lock = (SDK / "package-lock.json").read_text()
    _make(folder, hashlib.sha256(lock.encode()).hexdigest(), lambda: _install_node(folder))
    shutil.copy(SDK / "node_client.mjs", folder)
    return folder


def _make(folder: Path, content: str, make: Callable[[], None]) -> None:
    """Make a folder anew unless it was made to its end with this content; another process that makes it is waited for."""
    done = folder / "done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
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


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_python(folder: Path, recipe: Recipe) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")
    python = str(folder / "bin" / "python")
    if recipe.pip:
        _run(sys.executable, "-m", "venv", str(folder))
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    else:
        _run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder))
        install = (uv, "pip", "install", "--quiet", "--python", python)
    for step in recipe.steps:
        _run(*install, *step, variables=recipe.variables, timeout_s=recipe.timeout_s)


def _install_node(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(SDK / name, folder)
    _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)


def _run(
    *command: str,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = INSTALL_TIMEOUT_S,
) -> None:
    subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | dict(variables or {}),
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
