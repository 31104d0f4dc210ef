"""The tools that hold the files in deploy/ against their formats: where they are, and how they are run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
_CACHE = os.environ.get("UNILECT_TEST_CACHE") or Path(
    os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "unilect"
)


def tool(name: str) -> str:
    """The path of a tool: of this environment, of .ci/tools, or of the system; the test is skipped where there is none."""
    folders = [str(Path(sys.executable).parent), str(Path(_CACHE, "tools")), os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not installed; .ci/tools unpacks promtool and docker-compose")
    return found


def checked(name: str, *args: str | Path, cwd: Path = DEPLOY, text: str = "") -> str:
    """What a tool says to arguments and to a text on its stdin; the test fails, with that, where it finds a mistake."""
    done = subprocess.run(
        [tool(name), *map(str, args)],
        cwd=cwd,
        env=os.environ | {"PYTHON": sys.executable},
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert 0 == done.returncode, done.stdout
    return done.stdout
