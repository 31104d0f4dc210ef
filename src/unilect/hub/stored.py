"""
Models on this machine: those in the hub's cache and in our own, which may be removed, and those in the stores of other programs.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (blobs, and the links of snapshots to them)
"""

import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Literal, TypeAlias

from msgspec import Struct

from unilect.config.kinds import FILES
from unilect.core.errors import ConfigError
from unilect.hub import web_files
from unilect.hub.repositories import REPO
from unilect.hub.repository_files import ggufs, is_transformers, parts, projectors
from unilect.hub.transfer import hold

_UNFINISHED = ".incomplete"
_MAX_REF = 200
_SHA256 = re.compile(r"[0-9a-f]{64}$")
#: A model, a part of vision models, or what has come of a download.
Kind: TypeAlias = Literal["gguf", "transformers", "projector", "unfinished"]


class Entry(Struct, frozen=True, kw_only=True):
    """
    A model on this machine, or what has come of one.

    Attributes:
        name: What `unilect serve` takes for it.
        store: Whose folder it is in.
        path: The model: a file, or a folder of transformers.
        files: All of its files, without links, and each once.
        digest: The SHA-256 of a model in one file, where something tells it.
        removes: The files and links that go when it is removed; none for what is another program's.
    """

    name: str
    kind: Kind
    store: str
    path: Path
    files: tuple[Path, ...]
    digest: str = ""
    removes: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return size_of(self.files)


def size_of(files: Iterable[Path]) -> int:
    """Return the bytes of some files, or of what links among them lead to, each counted once; what is gone or no file counts nothing."""
    sizes = dict[tuple[int, int], int]()
    for file in files:
        with suppress(OSError):
            stat = file.stat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_size if S_ISREG(stat.st_mode) else 0
    return sum(sizes.values())


def count_freed(entries: Iterable[Entry]) -> int:
    """Return the bytes that the removal of some models frees: none of a file that has another name elsewhere."""
    sizes, names = dict[tuple[int, int], int](), Counter[tuple[int, int]]()
    for path in _removes(entries):
        with suppress(OSError):
            stat = path.stat(follow_symlinks=False)
            key = stat.st_dev, stat.st_ino
            names[key] += 1
            is_last = S_ISREG(stat.st_mode) and stat.st_nlink <= names[key]
            sizes[key] = stat.st_size if is_last else 0
    return sum(sizes.values())


def _removes(entries: Iterable[Entry]) -> list[Path]:
    return list(dict.fromkeys(path for entry in entries for path in entry.removes))


def is_coming(entry: Entry) -> bool:
    """Return True for what is being fetched at this moment."""
    if entry.kind != "unfinished":
        return False
    stem = re.sub(r"(\.unilect)?\.(incomplete|new)$", "", entry.path.name)
    if entry.store == "hub":
        repo = entry.path.parent.parent
        lock = repo.parent / ".locks" / repo.name / f"{stem}.lock"
    else:
        lock = entry.path.with_name(f".{stem}.lock")
    with hold(lock) as is_ours:
        return not is_ours


def list_own() -> list[Entry]:
    """Return the models in the hub's cache and in our own."""
    return [*_of_hub(), *_of_addresses()]


class _Repo:
    """A repository in the hub's cache."""

    def __init__(self, repo: str, folder: Path) -> None:
        self.repo, self.folder = repo, folder
        self._blobs = defaultdict[Path, set[Path]](set)  # and the links to each
        self._links = defaultdict[str, list[Path]](list)  # of each file, in all revisions
        self._now: Path | None = None

    def add(self, snapshot: Path, files: Iterable[tuple[Path, Path]], is_main: bool) -> None:
        """Take a revision in: its files, as links and blobs."""
        if is_main or self._now is None:
            self._now = snapshot
        for link, blob in files:
            if self.folder in blob.parents:  # a link that leads elsewhere is left alone
                self._blobs[blob].add(link)
                self._links[link.relative_to(snapshot).as_posix()].append(link)

    def entries(self) -> Iterator[Entry]:
        """Yield its models."""
        names = list(self._links)
        models = ggufs(names)
        for model in models:
            wanted = parts(model)
            if all(part in self._links for part in wanted):
                yield self._entry(f"{self.repo}/{model}", "gguf", model, wanted)
        for file in projectors(names):
            yield self._entry(f"{self.repo}/{file}", "projector", file, [file])
        if is_transformers(names):
            name = self.repo if not models else f"hf:{self.repo}"
            others = [name for name in names if not name.lower().endswith(".gguf")]
            yield self._entry(name, "transformers", "config.json", others)

    def _entry(self, name: str, kind: Kind, main: str, names: list[str]) -> Entry:  # fmt: skip
        links = {link for one in names for link in self._links[one]}
        blobs = sorted(blob for blob, others in self._blobs.items() if others <= links)
        path = next((one for one in self._links[main] if self._now in one.parents), self._links[main][0])  # fmt: skip
        target = path.resolve()
        return Entry(
            name=name,
            kind=kind,
            store="hub",
            path=path.parent if kind == "transformers" else path,
            files=tuple(blobs) or (target,),
            digest=target.name if kind != "transformers" and len(parts(main)) == 1 and _SHA256.match(target.name) else "",
            removes=(*sorted(links), *blobs),
        )  # fmt: skip


def _of_hub() -> Iterator[Entry]:
    # the client's own scan leaves a repository out as a whole for one link that leads nowhere
    from huggingface_hub.constants import HF_HUB_CACHE

    rest = list[Entry]()
    cache = Path(HF_HUB_CACHE).resolve()
    for folder in sorted(one for one in cache.glob("models--*") if not one.is_symlink()):
        repo = _Repo(folder.name.removeprefix("models--").replace("--", "/", 1), folder)
        main, linked = _read_ref(folder / "refs/main"), set[Path]()
        revisions = {one: list(_links(one)) for one in folder.glob("snapshots/*")}
        for snapshot in sorted(revisions, key=lambda one: (_last_change(revisions[one]), one), reverse=True):  # fmt: skip
            repo.add(snapshot, revisions[snapshot], snapshot.name == main)
            linked |= {blob for _, blob in revisions[snapshot]}
        yield from repo.entries()
        for file in sorted(folder.glob("blobs/*")):  # also what a removal has left
            if file.resolve() not in linked:
                rest += _find_unfinished(f"{repo.repo}/{file.name[:12]}{_UNFINISHED}", "hub", file)
    yield from rest


def _links(snapshot: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the links of a revision, and the files that they lead to; those that lead nowhere are left out."""
    for folder, _, names in os.walk(snapshot):
        for name in names:
            with suppress(OSError, RuntimeError):
                link = Path(folder, name)
                blob = link.resolve(strict=True)
                if blob.is_file():
                    yield link, blob


def _last_change(links: list[tuple[Path, Path]]) -> float:
    """Return when a revision got its last file."""
    return max((blob.stat().st_mtime for _, blob in links if blob.exists()), default=0.0)


def _read_ref(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_REF).strip()
    except OSError:
        return ""


def _find_unfinished(name: str, store: str, file: Path) -> Iterator[Entry]:
    if file.is_file() and not file.is_symlink():
        yield Entry(name=name, kind="unfinished", store=store, path=file, files=(file,), removes=(file,))  # fmt: skip


def _of_addresses() -> Iterator[Entry]:
    try:
        folder = web_files.folder()
    except ConfigError:
        return
    for file in sorted(folder.glob("*/*")):
        if file.name.endswith((_UNFINISHED, ".new")):
            yield from _find_unfinished(str(file), "unilect", file)
    found = {file: web_files.read_origin(file) for file in sorted(folder.glob("*/*.gguf"))}
    for file, origin in found.items():
        if str(file) not in ggufs([str(file)]):  # a later part
            continue
        files = tuple(Path(part) for part in parts(str(file)))
        notes = [note for part in files for note in web_files.notes(part)]
        yield Entry(
            name=str(file) if origin is None else origin.url,
            kind="gguf",
            store="unilect",
            path=file,
            files=files,
            digest=origin.sha256 if origin is not None and len(files) == 1 else "",
            removes=(*files, *notes),
        )


def find_named(name: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a name: the one that is called so, or has this path, else those of the repository that is."""
    entries = list(entries)
    scheme, _, location = name.partition(":")
    plain = location if scheme in FILES else name
    exact = [one for one in entries if one.name in (name, plain) or name == str(one.path)]
    if exact or not REPO.match(plain):
        return exact
    return [one for one in entries if one.name.removeprefix("hf:").startswith(f"{plain}/")] + [
        one for one in entries if one.name == f"hf:{plain}"
    ]


def list_users(files: Iterable[Path]) -> dict[int, str]:
    """Return the processes of this user that have one of these files mapped, and their command lines."""
    wanted = set[tuple[int, int]]()
    for file in files:
        with suppress(OSError):
            stat = file.stat()
            wanted.add((stat.st_dev, stat.st_ino))
    found = dict[int, str]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if any(_place(line) in wanted for line in (process / "maps").open("rb")):
                words = (process / "cmdline").read_bytes()[:300].split(b"\0")
                found[int(process.name)] = " ".join(word.decode("utf-8", "replace") for word in words).strip()  # fmt: skip
    return found


def _place(line: bytes) -> tuple[int, int] | None:
    """Return the device and the inode of a mapping; None for one of no file."""
    fields = line.split(maxsplit=5)
    if len(fields) < 6 or fields[4] == b"0":
        return None
    major, _, minor = fields[3].partition(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(fields[4])


def remove(entries: Iterable[Entry]) -> int:
    """
    Remove models of ours; what has been removed already is passed over.

    Returns:
        The bytes that were freed.

    Raises:
        ConfigError: The system does not let us.
    """
    freed = 0
    for path in _removes(entries):
        try:
            stat = path.stat(follow_symlinks=False)
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be removed ({error.strerror}). {freed} bytes were freed before it; check who owns it."
            ) from error
        is_last = S_ISREG(stat.st_mode) and stat.st_nlink == 1
        freed += stat.st_size if is_last else 0
        _remove_empty(path)
    return freed


def _remove_empty(path: Path) -> None:
    """Remove the folders that a file leaves empty, within its cache; with the last file of a repository all that is kept of it."""
    for folder in path.parents:
        if folder.name.startswith("models--"):
            locks = folder.parent / ".locks" / folder.name
            if not any([*folder.glob("blobs/*"), *folder.glob("snapshots/*")]):
                with _hold_all(locks.glob("*.lock")) as is_ours:
                    if is_ours:
                        shutil.rmtree(folder, ignore_errors=True)
                        shutil.rmtree(locks, ignore_errors=True)
            return
        is_ours = folder.parent.name == "models" and folder.parent.parent.name == "unilect"
        if is_ours:
            _remove_ours(folder)
            return
        try:
            folder.rmdir()
        except OSError:  # something else is in it
            if folder.name == "snapshots":
                return
        else:
            if folder.parent.name == "snapshots":
                _remove_refs(folder)


def _remove_ours(folder: Path) -> None:
    """Remove a folder of ours with its locks, where nothing else is in it and nobody holds one."""
    locks = list(folder.glob(".*.lock"))
    if not set(folder.iterdir()) <= set(locks):
        return
    with _hold_all(locks) as is_ours, suppress(OSError):
        if is_ours:
            for lock in locks:
                lock.unlink()
            folder.rmdir()


@contextmanager
def _hold_all(locks: Iterable[Path]) -> Iterator[bool]:
    """Hold some locks without waiting; yield False where somebody else has one."""
    with ExitStack() as stack:
        yield all([stack.enter_context(hold(lock)) for lock in locks])


def _remove_refs(snapshot: Path) -> None:
    """Remove the names of a revision that is gone: the hub's client takes a repository with one for broken."""
    for ref in (snapshot.parent.parent / "refs").rglob("*"):
        if ref.is_file() and _read_ref(ref) == snapshot.name:
            with suppress(OSError):
                ref.unlink()
