"""Tests of unilect.engines.process.loads: a small file of what models took, which several servers share."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from unilect.engines.process import loads
from unilect.engines.process.loads import Load, LoadRecorder, Loads, load_key, resident


def test_a_load_is_kept(tmp_path: Path) -> None:
    """What was measured is known to other servers and later ones: the last size, the largest growth, and how often."""
    first, other = (Loads(tmp_path / "folder" / "loads.json") for _ in range(2))
    assert first.get("a") is None
    first.note_growth("a", 5)
    first.note_reckoned("a", 90)
    assert (90, 0) == ((known := other.get("a")).ready, known.count)
    first.note("a", 100, 1.234)
    other.note("b", 7, 0.5)
    other.note("a", 101, 2.0)
    other.note_growth("a", 30)
    first.note_growth("a", 20)
    first.note_reckoned("a", 90)
    found = Loads(tmp_path / "folder" / "loads.json").get("a")

    assert (101, 30, 2.0, 2) == (found.ready, found.grown, found.load_s, found.count)
    assert 7 == first.get("b").ready


def test_writers_side_by_side(tmp_path: Path) -> None:
    """Writers at the same time lose nothing of each other."""
    file = tmp_path / "loads.json"

    def write(name: str) -> None:
        for number in range(20):
            Loads(file).note(f"{name}{number}", number, 0.1)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = Loads(file)

    assert all(known.get(f"{name}{number}") for name in "abc" for number in range(20))
    assert ["loads.json", "loads.lock"] == sorted(os.listdir(tmp_path))


def test_only_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays small: the least recently loaded go first."""
    monkeypatch.setattr(loads, "_MOST", 3)
    known = Loads(tmp_path / "loads.json")
    for name in "abcd":
        known.note(name, 1, 0.1)

    assert [False, True, True, True] == [known.get(name) is not None for name in "abcd"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a": {"ready": "x"}}', b"\xff" * 300_000, b"[" * 300_000, b'{"a": {"ready": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", b'{"a": {"ready": -1}}', b'{"a": {"ready": 1, "grown": -1}}'])  # fmt: skip
def test_a_file_that_cannot_be_read(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is not ours is told of in one line, and written anew."""
    file = tmp_path / "loads.json"
    file.write_bytes(content)
    known = Loads(file)

    assert known.get("a") is None
    known.note("a", 1, 0.1)
    assert 1 == Loads(file).get("a").ready
    assert ["is not what unilect wrote"] == [
        record.getMessage().split(", ")[2] for record in caplog.records
    ]


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing can be written, that is told once, and nothing is kept; without a folder nothing is told."""
    (tmp_path / "file").write_text("")
    known = Loads(tmp_path / "file" / "loads.json")
    for _ in range(3):
        known.note("a", 1, 0.1)
        Loads(None).note("a", 1, 0.1)

    assert known.get("a") is Loads(None).get("a") is None
    assert 1 == len(caplog.records)


def test_a_lock_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock that somebody keeps is not waited for: nothing is kept, and that is told once."""
    monkeypatch.setattr(loads, "_LOCK_TRIES", 2)
    known = Loads(tmp_path / "loads.json")
    with (tmp_path / "loads.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):
            known.note("a", 1, 0.1)
    assert known.get("a") is None
    known.note("a", 2, 0.1)

    assert 2 == known.get("a").ready
    assert 1 == caplog.text.count("another process keeps its lock")


def test_keys(tmp_path: Path) -> None:
    """Another file, another version of a file, or another setting has another key."""
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text("x")
    keys = [load_key(files[:1], {"context": 1}), load_key(files[1:], {"context": 1})]
    keys += [load_key(files, {"context": 1}), load_key(files[:1], {"context": 2})]
    again = load_key(files[:1], {"context": 1})
    files[0].write_text("xy")
    keys.append(load_key(files[:1], {"context": 1}))

    assert 5 == len(set(keys))
    assert again == keys[0]


def test_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is measured with all of the files that it maps, and with what has come at most; on a GPU it is not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    recorder = LoadRecorder("a", 10**12, lambda said: not said["gpu"])
    recorder.note_ready(os.getpid(), 0.1, {"gpu": True})
    recorder.note_end(os.getpid())
    assert recorder.known is None
    recorder.note_ready(os.getpid(), 0.1, {"gpu": False})

    assert isinstance(recorder.known, Load)
    assert abs(recorder.known.ready - 10**12 - resident(os.getpid()).own) < 50_000_000
    assert (0, 0) == resident(2**22 + 1)
