"""Tests of unilect.store.journal: what a process that was killed has left, whole and torn."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.core.errors import StoreUnavailable
from unilect.store.journal import BACKEND, LOST, Journal, encode_backend, find_abandoned
from unilect.store.records import LedgerRow

ABOUT = LedgerRow(
    id="req_1.a1",
    at=1.5,
    key="key_A",
    owner="lab",
    model="m",
    dialect="openai",
    endpoint="chat.completions",
)
#: Takes slots and is killed. Arguments: the stem, the number of slots, and of writes into each.
KILLED = """
import os, signal, sys
from pathlib import Path
from unilect.store.journal import BACKEND, Journal, encode_backend
from unilect.store.records import LedgerRow
journal = Journal(Path(sys.argv[1]), "child")
slots = [journal.take(LedgerRow(id=f"r{n}", at=float(n), key="key_A", owner="lab", model="m")) for n in range(int(sys.argv[2]))]
for n, slot in enumerate(slots):
    slot.write(BACKEND, encode_backend(f"backend {n}"))
    for count in range(1, int(sys.argv[3]) + 1):
        slot.set_counts(n, 1, count, 2.5, float(count))
slots[0].free()
os.kill(os.getpid(), signal.SIGKILL)
"""


def left(stem: Path) -> list[LedgerRow]:
    """What dead servers have left; it stays."""
    found = find_abandoned(stem)
    rows = [row for one in found for row in one.rows]
    for one in found:
        one.close()
    return rows


def test_a_killed_process(tmp_path: Path) -> None:
    """All requests of a killed process are there with their last counts, but those that had ended; once they are discarded they are gone."""
    stem = tmp_path / "unilect.db"
    done = subprocess.run([sys.executable, "-c", KILLED, stem, "600", "3"], check=False)
    assert -9 == done.returncode

    (found,) = find_abandoned(stem)
    expected = LedgerRow(
        id="r7",
        at=7.0,
        key="key_A",
        owner="lab",
        model="m",
        backend="backend 7",
        prompt=7,
        cached=1,
        completion=3,
        first_token_ms=2.5,
        duration_ms=3.0,
        status=499,
        finish=LOST,
    )
    rows = {row.id: row for row in found.rows}
    assert {f"r{n}" for n in range(1, 600)} == set(rows)
    assert expected == rows["r7"]
    assert [] == find_abandoned(stem)  # another one has it
    found.close()
    (found,) = find_abandoned(stem)
    found.discard()
    assert [] == list(tmp_path.iterdir())


def test_one_that_lives(tmp_path: Path) -> None:
    """A journal that a process still has is nobody else's; it is for its user only, and is removed when all requests have ended."""
    journal = Journal(tmp_path / "a" / "unilect.db", "me")
    slot = journal.take(ABOUT)
    assert [] == find_abandoned(tmp_path / "a" / "unilect.db")
    assert 0o600 == stat.S_IMODE(journal.path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(journal.path.parent.stat().st_mode)

    slot.free()
    journal.close()
    journal.close()
    assert [] == list(journal.path.parent.iterdir())


def test_one_with_requests_stays(tmp_path: Path) -> None:
    """A journal that is closed while a request has no row yet is there for the next server, and no other database's."""
    journal = Journal(tmp_path / "a[1].db", "me")
    journal.take(ABOUT).set_counts(1, 0, 2, -1.0, 3.0)
    journal.close()

    assert [] == find_abandoned(tmp_path / "a.db") == find_abandoned(tmp_path / "a1.db")
    (row,) = left(tmp_path / "a[1].db")
    assert ("req_1.a1", 1, 2, None) == (row.id, row.prompt, row.completion, row.first_token_ms)


def test_slots_are_counted(tmp_path: Path) -> None:
    """A journal knows how many slots are not free, also when it has grown."""
    journal = Journal(tmp_path / "unilect.db", "one")
    assert 0 == journal.used
    slots = [journal.take(ABOUT) for _ in range(300)]
    assert 300 == journal.used
    for number, slot in enumerate(slots, 1):
        slot.free()
        assert 300 - number == journal.used
    journal.close()


def test_a_slot_is_used_again(tmp_path: Path) -> None:
    """The next request in a slot has nothing of the one before."""
    journal = Journal(tmp_path / "u", "me")
    first = journal.take(ABOUT)
    first.write(BACKEND, encode_backend("http://host"))
    first.set_counts(5, 5, 5, 5.0, 5.0)
    first.free()
    journal.take(LedgerRow(id="req_2", at=2.0))
    journal.close()

    assert [LedgerRow(id="req_2", at=2.0, status=499, finish=LOST)] == left(tmp_path / "u")


def test_long_and_strange_texts(tmp_path: Path) -> None:
    """Texts of any length and characters fit into a slot, and a count that is none leaves the one before."""
    journal = Journal(tmp_path / "u", "me")
    names = ("key", "owner", "model", "dialect", "endpoint")
    texts = dict.fromkeys(names, "\U0001f600\ud800\0" * 1000)
    slot = journal.take(LedgerRow(id="i" * 1000, at=1.0, **texts))
    slot.write(BACKEND, encode_backend("\U0001f600" * 1000))
    slot.set_counts(1, 1, 1, 1.0, 1.0)
    slot.set_counts(-1, 0, 2**80, 1.0, 1.0)
    journal.close()

    (row,) = left(tmp_path / "u")
    assert (100, 1, 1) == (len(row.id), row.prompt, row.completion)
    assert row.owner.startswith("\U0001f600?\0")
    assert 480 == len(row.backend.encode())


@given(st.integers(0, 2047), st.binary(min_size=1, max_size=200), st.integers(1, 6))
def test_torn(tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes, writes: int) -> None:
    """Whatever part of a slot is damaged, it is read without an error, and counts are those of one of the last two writes, or none."""
    stem = tmp_path_factory.mktemp("torn") / "u"
    journal = Journal(stem, "me")
    slot = journal.take(ABOUT)
    for count in range(1, writes + 1):
        slot.set_counts(7, 1, count, 1.0, 1.0)
    journal.close()
    with journal.path.open("r+b") as file:
        file.seek(2048 + at)
        file.write(noise[: 2048 - at])

    rows = left(stem)
    assert len(rows) <= 1
    for row in rows:
        assert (row.id, row.at, row.key, row.model) == ("req_1.a1", 1.5, "key_A", "m")
        assert (row.prompt, row.completion) in [(7, writes), (7, writes - 1), (0, 0)]


def test_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is no journal of this version stays and is told; an empty one is of a process that died when it made it."""
    (tmp_path / "u.running-x").write_bytes(b"something else" * 1000)
    (tmp_path / "u.running-y").write_bytes(b"")

    (found,) = find_abandoned(tmp_path / "u")
    assert ("u.running-y", []) == (found.path.name, found.rows)
    found.discard()
    assert "u.running-x: is no journal" in caplog.text
    assert ["u.running-x"] == os.listdir(tmp_path)


def test_no_room(tmp_path: Path) -> None:
    """Where a journal cannot be made, or not be made larger, the error says why and nothing is left."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable) as raised:
        Journal(tmp_path / "file" / "u", "me")
    assert "File exists" in raised.value.for_operator

    code = """
import resource, signal, sys
from pathlib import Path
from unilect.core.errors import StoreUnavailable
from unilect.store.journal import Journal
from unilect.store.records import LedgerRow
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600 * 1024, 600 * 1024))
journal = Journal(Path(sys.argv[1]), "child")
taken = [journal.take(LedgerRow(id=str(n), at=0.0)) for n in range(255)]
try:
    journal.take(LedgerRow(id="more", at=0.0))
except StoreUnavailable as error:
    print(error.for_operator)
taken.pop().free()
journal.take(LedgerRow(id="again", at=0.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 600 * 1024))
try:
    Journal(Path(sys.argv[1]), "other")
except StoreUnavailable as error:
    print(error.for_operator)
"""
    stem = tmp_path / "u"
    done = subprocess.run([sys.executable, "-c", code, stem], capture_output=True, text=True)
    assert ("", 2) == (done.stderr, done.stdout.count("File too large"))
    assert ["file", "u.running-child"] == sorted(os.listdir(tmp_path))
    assert 255 == len(left(stem))
