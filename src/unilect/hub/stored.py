"""
Models on this machine: those in the hub's cache and in our own, which may be removed, and those in the stores of other programs.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (blobs, and the links of snapshots to them)
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Literal, TypeAlias

from msgspec import Struct

from unilect.core.errors import ConfigError
from unilect.hub import web_files
from unilect.hub.repository_files import ggufs, is_transformers, parts, projectors

_UNFINISHED = ".incomplete"
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
    """Return the bytes of some files, each counted once; those that are gone count nothing."""
    sizes = dict[tuple[int, int], int]()
    for file in files:
        with suppress(OSError):
            stat = file.stat(follow_symlinks=False)
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


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
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, OSError, ValueError):
        return
    for one in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if one.repo_type != "model":
            continue
        repo = _Repo(one.repo_id, one.repo_path)
        for revision in sorted(one.revisions, key=lambda found: found.last_modified, reverse=True):
            files = [(file.file_path, file.blob_path) for file in revision.files]
            repo.add(revision.snapshot_path, files, "main" in revision.refs)
        yield from repo.entries()
    for file in sorted(Path(HF_HUB_CACHE).glob(f"models--*/blobs/*{_UNFINISHED}")):
        repo_id = file.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        yield from _find_unfinished(f"{repo_id}/{file.name[:12]}{_UNFINISHED}", "hub", file)


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
    found = {file: origin for file in sorted(folder.glob("*/*.gguf")) if (origin := web_files.read_origin(file))}  # fmt: skip
    for file in found:
        if str(file) not in ggufs([str(file)]):  # a later part
            continue
        files = tuple(Path(part) for part in parts(str(file)))
        notes = [note for part in files for note in web_files.notes(part)]
        yield Entry(
            name=found[file].url,
            kind="gguf",
            store="unilect",
            path=file,
            files=files,
            digest=found[file].sha256 if len(files) == 1 else "",
            removes=(*files, *notes),
        )


def find_named(name: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a name: the one that is called so, else those of the repository that is, or of the path."""
    entries = list(entries)
    plain = name.removeprefix("gguf:").removeprefix("hf:")
    exact = [one for one in entries if one.name in (name, plain) or name == str(one.path)]
    return exact or [
        one for one in entries if one.name.removeprefix("hf:").startswith(f"{plain}/")
    ] + [one for one in entries if one.name == f"hf:{plain}"]


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
    for path in dict.fromkeys(path for entry in entries for path in entry.removes):
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
            if not any([*folder.glob("blobs/*"), *folder.glob("snapshots/*")]):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(folder.parent / ".locks" / folder.name, ignore_errors=True)
            return
        is_ours = folder.parent.name == "models" and folder.parent.parent.name == "unilect"
        try:
            for lock in folder.glob(".*.lock") if is_ours else ():
                lock.unlink()
            folder.rmdir()
        except OSError:  # something else is in it
            if is_ours or folder.name == "snapshots":
                return
        if is_ours:
            return
