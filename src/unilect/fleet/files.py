"""
Model files for nodes that lack them: what a model's settings name, where a node has it, and how it comes there.

A file is what its size and its SHA-256 say, wherever it lies. It is appended to a partial file in pieces, so that what came before an
interruption stays; it counts once its digest is right. A replica holds a shared lock on what it uses, which the kernel gives back
however the replica ends.
"""

import fcntl
import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

import msgspec
from msgspec import Struct, structs

from unilect.config.model import ModelConfig
from unilect.config.paths import move_paths
from unilect.core.errors import ConfigError
from unilect.hub import repository_files

PIECE_BYTES = 4 * 1024 * 1024
PAUSE_S = 1.0
_LOOK_S = 0.2
_MAX_FILES = 10_000
_SETTLED_NS = 2 * 10**9  # a file that is written to in the same tick of the clock looks as it did
_MARGIN_BYTES = 256 * 1024 * 1024  # of the disk, for others
#: Given the digest of a file, an offset and a number of bytes, returns at most so many of them; a ConnectionError where nobody who has
#: the file answers now.
Pieces: TypeAlias = Callable[[str, int, int], bytes]


class File(Struct, frozen=True):
    """One file: its path in its item's folder, its bytes, and its SHA-256 in hexadecimal digits."""

    name: str
    size: int
    digest: str


class Item(Struct, frozen=True):
    """
    The files that one option names: a file, the files of a model in parts, or a folder.

    Attributes:
        path: Its path on the gateway.
        folder: It is a folder; else `path` is the first of its files.
    """

    path: str
    folder: bool
    files: list[File]

    def base(self, path: Path) -> Path:
        """Return the folder of the files where the item is at a path."""
        return path if self.folder else path.parent


def digest_of(path: Path, notes: Path | None) -> str:
    """
    Return the SHA-256 of a file in hexadecimal digits, computed once for each version of the file.

    Args:
        notes: The folder where all processes of this user note it; None for nowhere.

    Raises:
        ConfigError: The file changes while it is read.
        OSError: It cannot be read.
    """
    before = path.stat()
    version = f"{before.st_size} {before.st_mtime_ns} {before.st_ctime_ns} {before.st_ino}"
    if notes is not None:
        note = notes / "digests" / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
        with suppress(OSError, ValueError):
            of_version, _, digest = note.read_text().partition("\n")
            if of_version == version and len(digest) == 64:
                return digest
    digest = _sha256(path)
    after = path.stat()
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise ConfigError(f"{path}: the file changes while it is read. Wait until it is whole.")
    if notes is not None and time.time_ns() - after.st_ctime_ns > _SETTLED_NS:
        with suppress(OSError):  # it is computed again
            note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = note.with_name(f"{note.name}.{os.getpid()}")
            draft.write_text(f"{version}\n{digest}")
            draft.replace(note)
    return digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_items(config: ModelConfig, notes: Path | None) -> list[Item]:
    """
    List all that a model's settings name and this machine has; names of the hub, which nodes fetch themselves, are left out.

    Args:
        notes: As for `digest_of`.

    Raises:
        ConfigError: It cannot be read, or is no model.
    """
    paths = dict[str, None]()

    def note(path: str) -> str:
        paths[path] = None
        return path

    _move_paths(config, note)
    try:
        return [_item(Path(path), notes) for path in paths if os.path.exists(path)]
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be read ({error.strerror}), and so not be sent to other nodes."
        ) from error


def _item(path: Path, notes: Path | None) -> Item:
    folder = path.is_dir()
    base = path if folder else path.parent
    names = _in_folder(path) if folder else repository_files.parts(path.name)
    files = [
        File(name, (base / name).stat().st_size, digest_of(base / name, notes))
        for name in sorted(names)
    ]
    return Item(str(path), folder, files)


def _in_folder(folder: Path) -> list[str]:
    """List the files of a model's folder that its engine reads, by their paths in it."""
    names = list[str]()
    for path in (*folder.iterdir(), *folder.glob("*/*")):  # the deepest that is read
        if path.is_file():
            names.append(path.relative_to(folder).as_posix())
        if len(names) > _MAX_FILES:
            raise ConfigError(
                f"{folder}: holds more than {_MAX_FILES} files. Name a model's own folder."
            )
    return repository_files.of_folder(names)


def with_absolute_paths(config: ModelConfig) -> ModelConfig:
    """Return a model's settings whose paths do not depend on where a process runs."""

    def resolve(path: str) -> str:
        here = Path(path).expanduser()
        return os.path.abspath(here) if here.exists() else path

    return _move_paths(config, resolve)


def with_places(config: ModelConfig, places: dict[str, str]) -> ModelConfig:
    """Return a model's settings with other paths: those that `Cache.places` returns."""
    return _move_paths(config, lambda path: places.get(path, path))


def _move_paths(config: ModelConfig, move: Callable[[str], str]) -> ModelConfig:
    return structs.replace(config, **move_paths(structs.asdict(config), ModelConfig, move))


class Cache:
    """
    The files that were sent to this machine. What it returns the places of is in use until it is closed, or gone.

    Args:
        folder: Where they are.
        limit_bytes: How much is kept; what is in use stays, also beyond it.
        patience_s: How long nobody may answer who has a file, until it is given up.
    """

    def __init__(self, folder: Path, limit_bytes: int, patience_s: float) -> None:
        self._items = folder / "items"
        self._locks = folder / "locks"
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._notes = folder
        self._used = ExitStack()
        weakref.finalize(self, self._used.close)

    def places(self, items: Sequence[Item], pieces: Pieces) -> dict[str, str]:
        """
        Find each item on this machine: at its own path if the same files are there, else in this cache, where it is in use from now on.
        Fetch those that are missing.

        Returns:
            Paths by the paths of the items.

        Raises:
            ConfigError: It cannot be fetched or kept.
        """
        try:
            return {item.path: str(self._place(item, pieces)) for item in items}
        except OSError as error:
            raise ConfigError(
                f"{error.filename or self._items}: the node cannot keep the model's files ({error.strerror or error})."
            ) from error

    def close(self) -> None:
        """Release what is in use."""
        self._used.close()

    def _place(self, item: Item, pieces: Pieces) -> Path:
        path = Path(item.path)
        if self._is_in(item, item.base(path)):
            return path
        _check_names(item)
        key = key_of(item)
        folder = self._items / key
        lock = self._used.enter_context(self._lock(key))
        fcntl.flock(lock, fcntl.LOCK_SH)
        has_come, until = False, time.monotonic() + self._patience_s
        # whoever makes room may come between two locks
        while not (_is_whole(item, folder) if has_come else self._is_in(item, folder)):
            if self._is_alone(lock):
                if not self._is_in(item, folder):
                    self._fetch(item, folder, pieces)
                has_come = True
            elif time.monotonic() > until:
                raise ConfigError(
                    f"{item.path}: what the node has of it at {folder} is not what was sent, and is in use by a replica. Stop that one first."
                )
            else:
                time.sleep(_LOOK_S)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock.fileno())
        return folder if item.folder else folder / item.files[0].name

    @staticmethod
    def _is_alone(lock: IO[str]) -> bool:
        """
        Return True if an item is now locked for this process alone. If not, its shared lock is lost, so that one of two competitors
        gets it.
        """
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_in(self, item: Item, base: Path) -> bool:
        """Return True if an item's files are in a folder, with the same content."""
        try:
            return _is_whole(item, base) and all(
                digest_of(base / file.name, self._notes) == file.digest for file in item.files
            )
        except (OSError, ConfigError):
            return False

    def _lock(self, key: str) -> IO[str]:
        self._locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (self._locks / key).open("a+")

    def _fetch(self, item: Item, folder: Path, pieces: Pieces) -> None:
        partial = _partial(folder)
        shutil.rmtree(folder, ignore_errors=True)
        partial.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(item, folder.name)
        for file in item.files:
            self._fetch_file(item, file, partial / file.name, pieces)
        partial.rename(folder)

    def _fetch_file(self, item: Item, file: File, path: Path, pieces: Pieces) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as out:
            if (have := out.tell()) > file.size:
                out.truncate(have := 0)
            while have < file.size:
                have += out.write(self._piece(item, file, have, pieces))
            out.flush()
            os.fsync(out.fileno())
        if _sha256(path) != file.digest:
            path.unlink()
            raise ConfigError(
                f"{item.path}: what came of {file.name} is not what the gateway had at its start. Restart the gateway if it was changed."
            )

    def _piece(self, item: Item, file: File, offset: int, pieces: Pieces) -> bytes:
        size = min(PIECE_BYTES, file.size - offset)
        until = time.monotonic() + self._patience_s
        while True:
            try:
                piece = pieces(file.digest, offset, size)
            except ConnectionError as error:
                if time.monotonic() > until:
                    raise ConfigError(
                        f"{item.path}: is not on this node, and no gateway that has it answers ({error}). What has come is kept; start its gateway, or copy the file to this node."
                    ) from error
                time.sleep(PAUSE_S)
                continue
            if not 0 < len(piece) <= size:
                raise ConfigError(
                    f"{item.path}: {file.name} ended after {offset} of {file.size} bytes. Restart the gateway if it was changed."
                )
            return piece

    def _make_room(self, item: Item, key: str) -> None:
        """
        Delete what was used least recently, until there is room.

        Raises:
            ConfigError: The disk is too full.
        """
        others, all_bytes = list[tuple[float, str, int]](), 0
        for other in {path.name.partition(".")[0] for path in self._items.iterdir()} - {key}:
            with self._lock(other) as lock:
                used = os.fstat(lock.fileno()).st_mtime
            size = _size(self._items / other) + _size(_partial(self._items / other))
            others.append((used, other, size))
            all_bytes += size
        wanted = sum(file.size for file in item.files)
        missing = wanted - _size(_partial(self._items / key))
        for _, other, size in sorted(others):
            if all_bytes + wanted <= self._limit_bytes and missing <= self._free():
                return
            if self._drop(other):
                all_bytes -= size
        if missing > (free := self._free()):
            raise ConfigError(
                f"{item.path}: {missing} bytes are to come, and the node's disk has {max(0, free)} left at {self._items}."
            )

    def _free(self) -> int:
        return shutil.disk_usage(self._items).free - _MARGIN_BYTES

    def _drop(self, key: str) -> bool:
        """Delete an item that is not in use; return True if it is deleted."""
        with self._lock(key) as lock:
            if not self._is_alone(lock):
                return False
            for folder in (self._items / key, _partial(self._items / key)):
                shutil.rmtree(folder, ignore_errors=True)
        return True


def key_of(item: Item) -> str:
    """Return the key of an item in the cache: the same for the same files, whatever their folder."""
    content = [(file.name, file.size, file.digest) for file in item.files]
    return hashlib.sha256(msgspec.msgpack.encode((item.folder, content))).hexdigest()


def _check_names(item: Item) -> None:
    """
    Refuse names that lead out of an item's folder.

    Raises:
        ConfigError: There is one.
    """
    for file in item.files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ConfigError(f"{item.path}: {file.name!r} is no name of a file in it.")


def _is_whole(item: Item, folder: Path) -> bool:
    try:
        return all((folder / file.name).stat().st_size == file.size for file in item.files)
    except OSError:
        return False


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _size(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it is being deleted
            sizes += path.stat().st_size
    return sizes
