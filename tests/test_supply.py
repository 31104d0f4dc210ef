"""What is installed beside unilect: few packages, pinned by their hashes, none of a version with a known hole, and nothing that runs at a start."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted(ROOT.glob("requirements*.lock"))
MOST = 16  # packages that unilect itself asks for
#: The first versions without holes that were found.
FLOORS = {
    "aiohttp": (3, 13, 4),  # CVE-2026-22815
    "jinja2": (3, 1, 6),  # CVE-2025-27516
}


def test_few_packages() -> None:
    """Every package that unilect asks for has a lowest version, and there are few."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert len(wanted) <= MOST
    assert [] == [one for one in wanted if ">=" not in one]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks(lock: Path) -> None:
    """Every package of a lock has one version and its hashes, and none has a known hole."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", lock.read_text())
    packages = [entry for entry in entries if "==" in entry.partition("\n")[0]]
    assert len(packages) > 50
    assert [] == [one[:60] for one in packages if "--hash=sha256:" not in one]
    for name, floor in FLOORS.items():
        [found] = [one for one in packages if one.startswith(f"{name}==")]
        version = re.match(rf"{name}==([\d.]+)", found)
        assert version is not None
        assert tuple(map(int, version[1].split("."))) >= floor


def test_installed_by_hashes() -> None:
    """What the scripts install they install by hashes."""
    for script in ("environment", "extras"):
        assert "--require-hashes" in (ROOT / "scripts" / script).read_text()


def test_nothing_runs_at_a_start() -> None:
    """No file of the package is one that Python runs by itself at every start."""
    files = [path.name for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts]

    assert [] == [
        name for name in files if name.endswith(".pth") or name in ("sitecustomize.py", "usercustomize.py")
    ]  # fmt: skip
