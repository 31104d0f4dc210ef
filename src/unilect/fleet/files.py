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
from unilect.hub import download as hub

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
        """The folder of the files where the item is at a path."""
        return path if self.folder else path.parent


class Digests:
    """
    The SHA-256 of files, computed once for each version of a file.

    Args:
        folder: Where they are noted, for all processes of this user; None for nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def of(self, path: Path) -> str:
        """
        The digest of a file, in hexadecimal digits.

        Raises:
            ConfigError: It changes while it is read.
            OSError: It cannot be read.
        """
        before = path.stat()
        version = f"{before.st_size} {before.st_mtime_ns} {before.st_ctime_ns} {before.st_ino}"
        note = self._note(path)
        if note is not None:
            with suppress(OSError, ValueError):
                noted, _, digest = note.read_text().partition("\n")
                if noted == version and len(digest) == 64:
                    return digest
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = path.stat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise ConfigError(f"{path}: the file changes while it is read. Wait until it is whole.")
        if note is not None and time.time_ns() - after.st_ctime_ns > _SETTLED_NS:
            with suppress(OSError):  # it is computed again
                note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                draft = note.with_name(f"{note.name}.{os.getpid()}")
                draft.write_text(f"{version}\n{digest}")
                draft.replace(note)
        return digest

    def _note(self, path: Path) -> Path | None:
        if self._folder is None:
            return None
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
        return self._folder / "digests" / name


def named_by(config: ModelConfig, digests: Digests) -> list[Item]:
    """
    All that a model's settings name and this machine has; names of the hub, which nodes fetch themselves, are left out.

    Raises:
        ConfigError: It cannot be read, or is no model.
    """
    paths = list[str]()

    def note(path: str) -> str:
        if os.path.exists(path) and path not in paths:
            paths.append(path)
        return path

    move_paths(structs.asdict(config), ModelConfig, note)
    try:
        return [_item(Path(path), digests) for path in paths]
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be read ({error.strerror}), and so not be sent to other nodes."
        ) from error


def _item(path: Path, digests: Digests) -> Item:
    folder = path.is_dir()
    base = path if folder else path.parent
    names = _in_folder(path) if folder else hub.parts(path.name)
    files = [
        File(name, (base / name).stat().st_size, digests.of(base / name)) for name in sorted(names)
    ]
    return Item(str(path), folder, files)


def _in_folder(folder: Path) -> list[str]:
    """The files of a model's folder that its engine reads, by their paths in it."""
    names = list[str]()
    for path in (*folder.iterdir(), *folder.glob("*/*")):  # the deepest that is read
        if path.is_file():
            names.append(path.relative_to(folder).as_posix())
        if len(names) > _MAX_FILES:
            raise ConfigError(
                f"{folder}: holds more than {_MAX_FILES} files. Name a model's own folder."
            )
    return hub.of_folder(names)


def absolute(config: ModelConfig) -> ModelConfig:
    """A model's settings whose paths do not depend on where a process runs."""

    def resolved(path: str) -> str:
        here = Path(path).expanduser()
        return os.path.abspath(here) if here.exists() else path

    return structs.replace(config, **move_paths(structs.asdict(config), ModelConfig, resolved))


def placed(config: ModelConfig, places: dict[str, str]) -> ModelConfig:
    """A model's settings with other paths: those that `Cache.places` tells."""
    values = move_paths(structs.asdict(config), ModelConfig, lambda path: places.get(path, path))
    return structs.replace(config, **values)


class Cache:
    """
    The files that were sent to this machine. What it tells the places of is in use until it is closed, or gone.

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
        self._digests = Digests(folder)
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
        """Nothing is in use any longer."""
        self._used.close()

    def _place(self, item: Item, pieces: Pieces) -> Path:
        path = Path(item.path)
        if self._is_at(item, path):
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

    def _is_at(self, item: Item, path: Path) -> bool:
        """Return True if an item is at a path, with the same content."""
        return self._is_in(item, item.base(path))

    def _is_in(self, item: Item, base: Path) -> bool:
        try:
            return _is_whole(item, base) and all(
                self._digests.of(base / file.name) == file.digest for file in item.files
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
                wanted = min(PIECE_BYTES, file.size - have)
                piece = self._piece(item, file, have, wanted, pieces)
                out.write(piece)
                have += len(piece)
            out.flush()
            os.fsync(out.fileno())
        with path.open("rb") as come:
            right = hashlib.file_digest(come, "sha256").hexdigest() == file.digest
        if not right:
            path.unlink()
            raise ConfigError(
                f"{item.path}: what came of {file.name} is not what the gateway had at its start. Restart the gateway if it was changed."
            )

    def _piece(self, item: Item, file: File, offset: int, size: int, pieces: Pieces) -> bytes:
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
