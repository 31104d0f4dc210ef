"""
A loss of power: what was confirmed is there afterwards, and the database is sound.

`UNILECT_TEST_POWER=5000` loses power so many times, instead of the number below, and prints what was seen.
"""

import asyncio
import os
import random
import sqlite3
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from support.common import power
from support.common.power import Disk, Event
from unilect.store.database import Database
from unilect.store.responses import ResponseStore

LOSSES = int(os.environ.get("UNILECT_TEST_POWER", "150"))
TRANSACTIONS = 60
CHILD = str(Path(__file__).with_name("power_child.py"))


class Seen(NamedTuple):
    """
    What was found after losses of power.

    Attributes:
        lost: Rows that were confirmed and are not there.
        broken: Databases that are not sound, or cannot be opened.
        confirmed: The most rows that were confirmed before a loss.
        checkpoints: How often the log was folded into the file.
    """

    lost: int
    broken: int
    confirmed: int
    checkpoints: int


def recorded(tmp_path: Path, synchronous: str) -> list[Event]:
    """What the child did."""
    folder = tmp_path / "store"
    folder.mkdir()
    command = [sys.executable, CHILD, str(folder / "x.db"), str(TRANSACTIONS), synchronous]
    return power.recorded(command, folder, tmp_path / "trace")


def lose(events: list[Event], folder: Path, losses: int) -> Seen:
    """Lose power after events that are chosen at random, and at the first and the last of the confirmed ones."""
    said = [at for at, event in enumerate(events) if event.what == "say"]
    dice = random.Random(7)
    places = sorted({said[0], said[-1], *(dice.randrange(len(events)) for _ in range(losses - 2))})
    disk, confirmed, at = Disk(), list[str](), 0
    lost = broken = 0
    for place in places:
        for event in events[at : place + 1]:
            disk.take(event)
            if event.what == "say":
                confirmed += event.data.decode().split()
        at = place + 1
        found = after(disk, folder / str(place), dice)
        broken += found is None
        lost += len(set(confirmed) - (found or set()))
    writes = [event.path for event in events if event.what == "write"]
    checkpoints = sum(
        one.endswith("x.db") and not before.endswith("x.db") for before, one in pairwise(writes)
    )
    return Seen(lost, broken, len(confirmed), checkpoints)


def after(disk: Disk, folder: Path, dice: random.Random) -> set[str] | None:
    """The ids that are in a database after a loss of power; None of one that is not sound."""
    folder.mkdir()
    disk.write(folder, dice)
    path = folder / "x.db"
    if not path.exists():
        return set()
    connection = sqlite3.connect(path)
    try:
        if [("ok",)] != connection.execute("PRAGMA integrity_check").fetchall():
            return None
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        ids = set[str]()
        for table in {"ledger", "responses"} & tables:
            ids |= {id for (id,) in connection.execute(f"SELECT id FROM {table}")}
        return ids
    except sqlite3.DatabaseError:
        return None
    finally:
        connection.close()
        for file in folder.iterdir():
            file.unlink()


@pytest.mark.timeout(0 if "UNILECT_TEST_POWER" in os.environ else 180)
def test_a_loss_of_power(tmp_path: Path) -> None:
    """Wherever power is lost, and whatever of the last writes reached the disk, all that was confirmed is there, and the file is sound."""
    seen = lose(recorded(tmp_path, "FULL"), tmp_path, LOSSES)
    if "UNILECT_TEST_POWER" in os.environ:
        print(f"\n{LOSSES} losses: {seen}")

    assert (0, 0) == seen[:2]
    assert seen.confirmed > TRANSACTIONS
    assert seen.checkpoints >= 2


def test_the_disk_of_the_test(tmp_path: Path) -> None:
    """A database that does not wait for the disk loses confirmed rows on the disk of this test, so the test above could fail."""
    assert lose(recorded(tmp_path, "NORMAL"), tmp_path, 40).lost > 0


async def test_the_server_goes_on(tmp_path: Path) -> None:
    """After a loss of power at the last confirmation the store opens the file, has what was confirmed, and takes more."""
    events = recorded(tmp_path, "FULL")
    last = max(at for at, event in enumerate(events) if event.what == "say")
    disk = Disk()
    for event in events[: last + 1]:
        disk.take(event)
    (tmp_path / "after").mkdir()
    disk.write(tmp_path / "after", random.Random(3))
    said = [word for event in events[: last + 1] if event.what == "say" for word in event.data.decode().split()]  # fmt: skip
    stored = [one for one in said if one.startswith("resp")]
    database = Database(f"sqlite:///{tmp_path / 'after' / 'x.db'}")
    answers = ResponseStore(database)
    found = await asyncio.gather(*(answers.get("me", id) for id in stored))
    await answers.aclose()
    await database.aclose()

    assert stored
    assert stored == [one.id for one in found if one is not None]


async def test_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that are made for a database are on the disk before anything is confirmed: a loss of power takes none away."""
    waited: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        waited.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "new" / "folder" / "x.db"
    database = Database(f"sqlite:///{path}", is_default=True)
    await database.write(lambda connection: None)
    await database.aclose()

    assert path.exists()
    assert [str(tmp_path), str(tmp_path / "new")] == waited
