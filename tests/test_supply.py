"""
What is installed beside unilect: few packages, pinned by their hashes, none of a version with a known hole, and nothing that runs at a start.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.common import environments

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted(ROOT.glob("requirements*.lock"))
MOST = 16  # packages that unilect itself asks for
#: The first versions without holes that were found; a package of these that is in no lock is none of ours.
FLOORS = {
    "aiohttp": (3, 13, 4),  # CVE-2026-22815
    "certifi": (2024, 7, 4),  # CVE-2024-39689
    "h11": (0, 16, 0),  # CVE-2025-43859
    "idna": (3, 7),  # CVE-2024-3651
    "jinja2": (3, 1, 6),  # CVE-2025-27516
    "protobuf": (6, 31, 1),  # CVE-2025-4565
    "pygments": (2, 15, 1),  # CVE-2022-40896
    "pyyaml": (5, 4),  # CVE-2020-14343
    "redis": (4, 5, 4),  # CVE-2023-28859
    "requests": (2, 32, 4),  # CVE-2024-47081
    "starlette": (0, 49, 1),  # CVE-2025-62727
    "tqdm": (4, 66, 3),  # CVE-2024-34062
    "transformers": (4, 53, 0),  # CVE-2025-5197
    "urllib3": (2, 5, 0),  # CVE-2025-50181
    "werkzeug": (3, 0, 6),  # CVE-2024-49767
}
CYCLONEDX = environments.Recipe(("cyclonedx-python-lib[json-validation]==11.12.0",))
#: Validates what it reads, as CycloneDX's own library does.
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


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
    for one in packages:
        name, _, rest = one.partition("==")
        found = re.match(r"[\d.]*\d", rest)
        assert found is not None
        assert tuple(map(int, found[0].split("."))) >= FLOORS.get(name, ()), name


@pytest.fixture(scope="module")
def sbom() -> str:
    """The bill of materials, as `scripts/sbom.py` writes it."""
    return written_bill()


def written_bill() -> str:
    """What `scripts/sbom.py` writes."""
    command = [sys.executable, str(ROOT / "scripts" / "sbom.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_bill_of_materials(sbom: str) -> None:
    """It has every version that the locks pin, each with all of its hashes, and is the same each time."""
    told = json.loads(sbom)
    pinned: dict[str, set[str]] = {}
    for lock in LOCKS:
        for line in lock.read_text().splitlines():
            if begin := re.match(r"([a-z0-9][a-z0-9-]*)(?:\[.*\])?==([^ ]+)", line):
                name = f"pkg:pypi/{begin[1]}@{begin[2]}"
            for hashed in re.findall("sha256:([0-9a-f]{64})", line):
                pinned.setdefault(name, set()).add(hashed)

    components = told["components"]
    assert pinned == {
        one["purl"]: {each["content"] for each in one["hashes"]} for one in components
    }
    assert len(pinned) == len(components) > 100
    assert sbom == written_bill()


def test_what_the_bill_of_materials_says_is_needed(sbom: str) -> None:
    """What the installed packages say that unilect needs is `required` there, and each need is an edge of its graph."""
    told = json.loads(sbom)
    scopes = {one["name"]: one["scope"] for one in told["components"]}
    names = {one["bom-ref"]: one["name"] for one in told["components"]}
    edges = {
        (names.get(one["ref"], "unilect"), names[on])
        for one in told["dependencies"]
        for on in one["dependsOn"]
    }
    seen, new = set[str](), {"unilect"}
    while new:
        seen |= new
        needs = {(name, each) for name in new for each in needed_by(name)}
        assert needs <= edges
        new = {each for _, each in needs} - seen

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(one).name for one in wanted} < seen
    assert {"frozenlist", "markupsafe", "yarl"} < seen  # which only others need
    assert {"required"} == {scopes[name] for name in seen - {"unilect"}}
    assert {"pytest": "excluded", "psycopg": "optional"}.items() <= scopes.items()


def needed_by(name: str) -> set[str]:
    """What an installed package says that it needs here."""
    found = set[str]()
    for text in requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed = re.sub(r"[-_.]+", "-", requirement.name).lower()
            try:
                version(needed)
            except PackageNotFoundError:
                pytest.fail(f"{name} needs {needed}, which is not installed")
            found.add(needed)
    return found


@pytest.mark.heavy
@environments.may_install
def test_the_form_of_the_bill_of_materials(sbom: str) -> None:
    """CycloneDX's own validator takes it, and refuses it where a field is wrong."""
    python = environments.python("cyclonedx", CYCLONEDX)

    def validated(text: str) -> Any:
        command = [python, "-c", VALIDATE]
        return subprocess.run(command, input=text, capture_output=True, text=True).stdout.strip()

    assert "None" == validated(sbom)
    assert "None" != validated(sbom.replace('"scope": "required"', '"scope": "needed"', 1))


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
