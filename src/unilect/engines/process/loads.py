"""
The memory that models took when they were loaded before, kept in a small file for the next time.

Several servers share the file: each change is made under a lock, and takes its place at once. Where it cannot be read or written, nothing
is known and nothing is kept.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unilect.config.server import process_environment
from unilect.config.store import data_folder
from unilect.runtime.child_limits import field_of
from unilect.runtime.memory import resident

log = logging.getLogger("unilect")
_MOST = 500  # the least recently loaded go first
_MOST_BYTES = 1_000_000
_LOCK_TRIES, _LOCK_AGAIN_S = 50, 0.01  # others hold it for a moment only
_Size = Annotated[int, msgspec.Meta(ge=0)]


class Load(Struct, frozen=True, omit_defaults=True):
    """
    The loads of one model with the same files, settings and library.

    Attributes:
        ready: Bytes that it took once loaded, with the files that it maps.
        grown: The most that came while it answered.
        load_s: Seconds of the last load.
        count: How often it was measured; 0 where a library has reckoned it.
        at: When it was last written, in seconds since 1970.
    """

    ready: _Size
    grown: _Size = 0
    load_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    count: _Size = 0
    at: float = 0.0


class Loads:
    """
    The loads that a file keeps.

    Args:
        path: The file, which need not exist; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Load] = {}
        self._read_at: tuple[int, int] | None = None  # time and size of what was read
        self._told = False

    def get(self, key: str) -> Load | None:
        """Return what is known of a load; None for nothing."""
        self._refresh()
        return self._known.get(key)

    def note(self, key: str, ready: int, load_s: float) -> None:
        """Record a load."""
        known = self.get(key) or Load(0)
        self._put(key, replace(known, ready=ready, load_s=round(load_s, 2), count=known.count + 1))

    def note_reckoned(self, key: str, ready: int) -> None:
        """Record what a library reckons; a load that was measured stays."""
        if self.get(key) is None:
            self._put(key, Load(ready))

    def note_growth(self, key: str, grown: int) -> None:
        """Record what came while it answered, where that is more than ever."""
        known = self.get(key)
        if known is not None and grown > known.grown:
            self._put(key, replace(known, grown=grown))

    def _put(self, key: str, load: Load) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("a") as lock:
                _lock(lock.fileno())
                self._refresh()
                self._known = {key: replace(load, at=time.time())} | {
                    other: one for other, one in self._known.items() if other != key
                }
                latest = sorted(self._known.items(), key=lambda item: -item[1].at)[:_MOST]
                beside = self._path.with_suffix(f".{os.getpid()}")
                beside.write_bytes(msgspec.json.format(msgspec.json.encode(dict(latest))))
                beside.replace(self._path)
        except OSError as error:
            self._complain(f"cannot be written: {error.strerror or error}")

    def _refresh(self) -> None:
        """Read the file where it has changed."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                if self._read_at != (state.st_mtime_ns, state.st_ino):
                    self._read_at = state.st_mtime_ns, state.st_ino
                    self._known = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, Load])
        except FileNotFoundError:
            self._known = {}
        except OSError as error:
            self._complain(f"cannot be read: {error.strerror or error}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._known = {}
            self._complain("is not what unilect wrote, and is written anew")

    def _complain(self, what: str) -> None:
        """Say it once."""
        if not self._told:
            self._told = True
            log.warning("%s, which keeps what models take of memory, %s", self._path, what)


class LoadRecorder:
    """
    Measures the process of one model, each time that it is loaded and stopped.

    Args:
        key: As of `load_key`.
        mapped: Bytes of files that it maps, and that count whether they are in memory just now or not.
        counts: Given what the process said when it became ready, returns True where the machine's memory is all that it takes.
    """

    def __init__(self, key: str, mapped: int, counts: Callable[[dict[str, Any]], bool]) -> None:
        self.key, self._mapped, self._counts = key, mapped, counts
        self._ready = 0

    @property
    def known(self) -> Load | None:
        """The loads that are known; None for none."""
        return user_loads().get(self.key)

    def note_reckoned(self, ready: int) -> None:
        """Keep what a library reckons."""
        user_loads().note_reckoned(self.key, ready)

    def note_ready(self, pid: int, load_s: float, said: dict[str, Any]) -> None:
        """Measure and keep what it takes now that it is loaded."""
        taken = resident(pid)
        self._ready = 0
        if taken.own and self._counts(said):
            self._ready = taken.own + max(taken.mapped, self._mapped)
            user_loads().note(self.key, self._ready, load_s)

    def note_end(self, pid: int) -> None:
        """Keep what has come since, at most, before it is stopped."""
        peak = (field_of(Path(f"/proc/{pid}/status"), "VmHWM:") or 0) * 1024
        if self._ready:
            user_loads().note_growth(self.key, peak - self._ready)


def load_key(paths: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """
    Return the key of a load: of the same files, as far as their names, sizes and times tell, with the same settings.

    Args:
        settings: All that changes what it takes, with the version of its library.
    """
    files = [(str(path.resolve()), *_stamp(path)) for path in paths]
    told = msgspec.json.encode([files, dict(settings)], order="sorted")
    return hashlib.sha256(told).hexdigest()[:32]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _lock(file: int) -> None:
    """
    Take the lock of an open file.

    Raises:
        OSError: Somebody else has held it for half a second.
    """
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_AGAIN_S)
    raise OSError(None, "another process keeps its lock")


def user_loads() -> Loads:
    """Return the loads that all processes of this user keep together."""
    return _in_folder(data_folder(process_environment()))


@cache
def _in_folder(folder: Path | None) -> Loads:
    return Loads(None if folder is None else folder / "loads.json")
