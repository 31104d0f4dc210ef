"""
A loss of power, as a disk sees it: what a process has written since it last waited for the disk is there, or not, or in pieces.

`strace` records what a process writes to its files and when it waits for the disk; `Disk` is what may be on a disk after any of these events.
Of what was not waited for each sector of 512 bytes is there or not, at random, also where a later one is; a new file is there for certain,
and a removed one gone, once its folder was waited for. SQLite's `-shm` is memory that it maps, and is made anew.

Source: https://www.sqlite.org/atomiccommit.html, fsync(2)
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SECTOR = 512
_CALLS = "openat,pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat,rename,renameat,renameat2"
_CALL = re.compile(r"^\d+\s+(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)$")
_UNFINISHED = " <unfinished ...>"
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True)
class Event:
    """
    What a process did.

    Attributes:
        what: `create`, `write`, `truncate`, `remove`, `wait` and `sync` (begin and end of a wait for the disk), or `say` (to its stdout).
        path: Of the file, or of the folder that is waited for.
        at: Where is written, or the new size.
        data: What.
    """

    what: str
    path: str
    at: int = 0
    data: bytes = b""


@dataclass
class _File:
    """
    A file on the disk.

    Attributes:
        safe: What is there for certain.
        loose: What was done since.
        waited: How much of that is waited for.
        is_named: Its name is there for certain.
        is_gone: It was removed, which its folder was not waited for.
    """

    safe: bytearray = field(default_factory=bytearray)
    loose: list[Event] = field(default_factory=list)
    waited: int = 0
    is_named: bool = False
    is_gone: bool = False


class Disk:
    """What may be on a disk, up to some event."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def take(self, event: Event) -> None:
        """Something was done."""
        if event.what == "create":
            one = self._files.setdefault(event.path, _File())
            if one.is_gone:
                self._files[event.path] = _File()
        elif event.what in ("write", "truncate"):
            self._files[event.path].loose.append(event)
        elif event.what == "remove":
            if event.path in self._files:
                self._files[event.path].is_gone = True
        elif event.what == "wait":
            if event.path in self._files:
                self._files[event.path].waited = len(self._files[event.path].loose)
        elif event.what == "sync":
            self._sync(event.path)

    def _sync(self, path: str) -> None:
        if path in self._files:
            one = self._files[path]
            for each in one.loose[: one.waited]:
                _apply(one.safe, each)
            one.loose, one.waited = one.loose[one.waited :], 0
        for name, one in list(self._files.items()):
            if str(Path(name).parent) == path:
                one.is_named = True
                if one.is_gone:
                    del self._files[name]

    def write(self, folder: Path, dice: random.Random) -> None:
        """Make the files as they may be after a loss of power now, in a folder that is in place of the one that was written."""
        luck = dice.choice((0.0, 0.5, 0.9, 1.0))  # of each sector to be there
        for path, one in self._files.items():
            if path.endswith("-shm") or (not one.is_named and dice.random() > luck):
                continue
            if one.is_gone and dice.random() < 0.5:
                continue
            data = bytearray(one.safe)
            for event in one.loose:
                for part in _torn(event):
                    if dice.random() < luck:
                        _apply(data, part)
            (folder / Path(path).name).write_bytes(data)


def _apply(data: bytearray, event: Event) -> None:
    if event.what == "truncate":
        data[:] = data[: event.at].ljust(event.at, b"\0")
        return
    if len(data) < event.at:
        data.extend(bytes(event.at - len(data)))
    data[event.at : event.at + len(event.data)] = event.data


def _torn(event: Event) -> Iterator[Event]:
    """What was written, by the sectors of the disk."""
    if event.what == "truncate":
        yield event
        return
    at, end = event.at, event.at + len(event.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield Event("write", event.path, at, event.data[at - event.at : until - event.at])
        at = until


def recorded(command: Sequence[str], folder: Path, trace: Path) -> list[Event]:
    """
    Run a process to its end, and return what it did with the files of a folder, and what it said.

    The test is skipped where there is no strace, or none may be used; in continuous integration it fails.
    """
    strace = shutil.which("strace")
    line = [strace or "", "-f", "-y", "-xx", "-s", "4000000", "-e", f"trace={_CALLS}", "-o", str(trace)]  # fmt: skip
    run = subprocess.run([*line, *command], capture_output=True, text=True) if strace else None
    if run is None or "ptrace" in run.stderr:
        reason = f"strace (Debian's package) is needed: {run.stderr[-200:] if run else 'not found'}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    assert 0 == run.returncode, run.stderr[-2000:]
    with trace.open() as lines:
        return list(_events(lines, str(folder)))


def _events(lines: Iterable[str], folder: str) -> Iterator[Event]:
    """The events of a trace. A write counts from its begin, and a new file at its end; a wait is of what was written before its begin."""
    for call, rest, begins, ends in _calls(lines):
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _HEX.findall(rest)]
        if call == "write":
            if begins and rest.startswith("1<"):
                yield Event("say", "", 0, texts[-1])
            continue
        path = next((text.decode() for text in texts if text.decode(errors="replace").startswith(folder)), "")  # fmt: skip
        if not path:
            continue
        if call in ("fsync", "fdatasync"):
            if begins:
                yield Event("wait", path)
            if ends and " = 0" in rest:
                yield Event("sync", path)
        elif call == "openat":
            if ends and "O_CREAT" in rest and " = -1" not in rest:
                yield Event("create", path)
        elif begins:
            yield _write(call, path, texts, rest)


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str, bool, bool]]:
    """Each call, its arguments and result as far as they are known, and whether it begins and ends here; one that is cut in two comes twice."""
    begun: dict[str, str] = {}  # by thread
    for line in lines:
        match = _CALL.match(line)
        if match is None:
            continue
        thread, (call, middle, rest) = line.split(None, 1)[0], match.groups()
        begins = middle == "("
        if not begins:
            rest = begun.pop(thread) + rest
        ends = not rest.endswith(_UNFINISHED)
        if not ends:
            rest = begun[thread] = rest.removesuffix(_UNFINISHED)
        yield call, rest, begins, ends


def _write(call: str, path: str, texts: list[bytes], rest: str) -> Event:
    """What changes a file."""
    if call == "pwrite64":
        numbers = re.search(r'", (\d+), (\d+)', rest)
        assert numbers is not None, rest[-80:]
        assert len(texts[1]) == int(numbers[1])
        return Event("write", path, int(numbers[2]), texts[1])
    if call == "ftruncate":
        size = re.search(r", (\d+)", rest)
        assert size is not None
        return Event("truncate", path, int(size[1]))
    assert call == "unlink", f"the disk of the test does not know {call}"
    return Event("remove", path)
