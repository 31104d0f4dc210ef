"""_plan.py: `unilect plan` for a ledger with rows, and models that are here."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from support.common.commands import Commands
from support.common.ledger_rows import row
from unilect.cli import _plan
from unilect.demo import MODEL
from unilect.store.database import Database
from unilect.store.ledger import Ledger

plan = Commands(_plan)
CONFIG = f"""
[store]
url = "sqlite:///{{url}}"
[models.a]
source = "{MODEL}"
[models.b]
source = "{MODEL}"
context = 512
[models.preset]
base = "b"
[models.far]
source = "http://127.0.0.1:9/v1"
"""


async def fill(url: str, models: str) -> None:
    """Write a request to each of these models, one a minute, with one that was refused and one of long ago."""
    ledger, now = Ledger(Database(url)), time.time()
    rows = [
        row(at=now - 9000 + 60 * at, model=name, status=200, duration_ms=1000)
        for at, name in enumerate(models.split())
    ]
    rows += [row(at=now - 10, model="a", status=429), row(at=now - 90 * 86_400, model="b", status=200)]  # fmt: skip
    await ledger.write(rows)
    await ledger.aclose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with a ledger."""
    path = tmp_path / "unilect.toml"
    path.write_text(CONFIG.format(url=tmp_path / "store.db"))
    return path


def test_plan(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loads in each memory are told for each model, with presets as their base; a model elsewhere is left out, and named."""
    asyncio.run(fill(f"sqlite:///{file.parent / 'store.db'}", "a b a preset far a"))
    plan.show(file, ["64GiB"], "30d", True)
    needs = json.loads(capsys.readouterr().out)["models"]
    largest = max(one["needs_bytes"] or 0 for one in needs.values())
    plan.show(file, ["64GiB", str(largest)], "30d", True)
    wide, narrow = json.loads(capsys.readouterr().out)["memories"]
    plan.show(file, [], "30d", False)
    told = capsys.readouterr().out

    assert {"a": 3, "b": 2, "far": 1} == {name: one["requests"] for name, one in needs.items()}
    assert ({"a": 1, "b": 1}, {"a": 3, "b": 2}) == (wide["loads"], narrow["loads"])
    assert needs["far"]["needs_bytes"] is None
    assert ["MODEL", "NEEDS", "REQUESTS"] == told.split()[:3]
    assert "far: 1 requests are left out" in told


def test_a_pinned_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pinned model has its place in each memory, also where nobody asked for it: the others exchange what is left."""
    asyncio.run(fill(f"sqlite:///{file.parent / 'store.db'}", "b preset b"))
    file.write_text(file.read_text().replace("[models.b]", "pin = true\n[models.b]"))
    plan.show(file, ["64GiB"], "30d", True)
    (memory,) = json.loads(capsys.readouterr().out)["memories"]

    assert {"a": 1, "b": 1} == memory["loads"]


@pytest.mark.parametrize(
    ("memory", "since", "told"),
    [
        ("much", "30d", "--memory: 'much' is no size"),
        ("1GB", "x", "--since: "),
        ("1GB", "30d", "the ledger has no requests of that time"),
    ],
)
def test_mistakes(
    file: Path, capsys: pytest.CaptureFixture[str], memory: str, since: str, told: str
) -> None:
    """What cannot be told is refused with the reason."""
    with pytest.raises(SystemExit, match="1"):
        plan.show(file, [memory], since, False)
    assert told in capsys.readouterr().err
