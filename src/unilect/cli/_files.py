"""The work of `unilect list`, `show` and `rm`: the models on this machine."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from unilect.cli._screen import say, tell, tell_table
from unilect.config.kinds import FILES
from unilect.core.errors import ConfigError, join_names
from unilect.hub import download as hub
from unilect.hub import stored
from unilect.hub.repository_files import parts
from unilect.hub.stored import Entry
from unilect.hub.stores import list_foreign
from unilect.models import sources

_SAMPLE_BYTES = 65536


def list_files(as_json: bool) -> None:
    """Print the models on this machine, those that are the same once."""
    entries = _list_all()
    rows = _with_copies(entries)
    if as_json:
        tell(json.dumps([_record(entry, copies) for entry, copies in rows]))
        return
    if not rows:
        tell(
            "There are no models in the caches and the stores. `unilect pull org/repo` fetches one.",
            on_stderr=True,
        )
        return
    from rich.filesize import decimal

    table = [
        [
            entry.name,
            entry.kind,
            _quantization(entry) or "-",
            decimal(entry.size),
            ", ".join(dict.fromkeys([entry.store, *(one.store for one in copies)])),
            str(entry.path),
        ]
        for entry, copies in rows
    ]
    tell_table(("NAME", "KIND", "QUANT", "SIZE", "IN", "PATH"), table, right=(3,))
    for entry, copies in rows:
        if copies:
            tell(
                f"{entry.name} is also {join_names([one.name for one in copies])}.", on_stderr=True
            )


def show(name: str, as_json: bool) -> None:
    """
    Print the facts of a model on this machine, from its files.

    Raises:
        ConfigError: It is not here, or its files cannot be read.
    """
    paths = {one.name: one for one in stored.find_named(name, _list_all()) if one.kind != "unfinished"}  # fmt: skip
    records = (
        [_facts(name, path, None)]
        if not paths and (path := _local(name))
        else [_facts(one.name, one.path, one) for one in paths.values()]
    )
    if as_json:
        tell(json.dumps(records if len(records) > 1 else records[0]))
        return
    for number, record in enumerate(records):
        lines = [(key.removesuffix("_bytes").replace("_", " "), _format(key, value)) for key, value in record.items() if value is not None]  # fmt: skip
        width = max(len(key) for key, _ in lines)
        tell("\n" * bool(number) + "\n".join(f"{key:{width}}  {text}" for key, text in lines))


def _local(name: str) -> Path:
    """
    Return the path of a source that is on this machine.

    Raises:
        ConfigError: It is none, or has to be fetched first.
    """
    scheme, location = sources.split(name)
    path = None
    if scheme in FILES:
        path = hub.local_copy(location, folder=FILES[scheme] == "hf")
    if path is not None and not path.exists():
        raise ConfigError(f"{name}: there is no such file or folder. Check the path.")
    if path is None:
        raise ConfigError(f"{name}: is not on this machine; `unilect list` has what is, and `unilect pull {name}` fetches a model.")  # fmt: skip
    return path


def _facts(name: str, path: Path, entry: Entry | None) -> dict[str, object]:
    """
    Return the facts of a model, by what they are called; None where nothing says it.

    Raises:
        ConfigError: Its files are no model.
    """
    from unilect.engines.gguf.file_facts import read_facts
    from unilect.engines.settings import read_checked

    size = (
        entry.size
        if entry is not None
        else stored.size_of(path.rglob("*") if path.is_dir() else map(Path, parts(str(path))))
    )
    about: dict[str, object] = {"name": name, "path": str(path), "size_bytes": size, "sha256": (entry and entry.digest) or None}  # fmt: skip
    if path.is_dir():
        from unilect.engines.transformers.model.folder import read_folder

        folder = read_folder(path)
        says = folder.text_config.get
        return about | {
            "kind": "transformers",
            "family": says("model_type"),
            "parameters": folder.size_bytes // max(1, folder.stored_bytes),
            "quantization": says("dtype") or says("torch_dtype"),
            "context": folder.context,
            "chat_template": "yes" if folder.template else "no",
        }
    facts = read_checked(read_facts, path)
    told = facts.description
    return about | {
        "kind": "GGUF" if facts.kind == "model" else f"GGUF, {facts.kind}",
        "family": told.family,
        "parameters": told.parameters,
        "quantization": told.quantization,
        "context": told.context,
        "chat_template": "yes" if facts.has_template else "no",
        "projector": None if facts.projector is None else str(facts.projector),
    }


def _format(key: str, value: object) -> str:
    from rich.filesize import decimal

    if key == "size_bytes" and isinstance(value, int):
        return f"{decimal(value)} ({value} bytes)"
    return f"{value:,}" if key == "parameters" else str(value)


def remove(names: Sequence[str], yes: bool) -> None:
    """
    Remove models from the caches, once a person at the terminal or `--yes` has confirmed it, and say what that has freed.

    Raises:
        ConfigError: There is no such model, or it is not ours to remove.
    """
    from rich.filesize import decimal

    entries, found = _list_all(), dict[tuple[str, Path], Entry]()
    for name in names:
        found |= {(entry.name, entry.path): entry for entry in _find(name, entries)}
    chosen, shown = found.values(), list(dict.fromkeys(name for name, _ in found))
    for one in filter(stored.is_coming, chosen):
        say(
            f"{one.name} is being fetched by another process, whose download fails by this.",
            "warning",
        )
    for pid, command in stored.list_users(f for one in chosen for f in one.files).items():
        say(
            f"process {pid} has it loaded ({command[:100]}); it goes on, cannot start it again, and the disk space is free once it ends.",
            "warning",
        )
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("--yes: is needed where stdin is no terminal, since nobody can be asked. Nothing was removed.")  # fmt: skip
        click.confirm(
            f"Remove {join_names(shown)}, which frees {decimal(stored.count_freed(chosen))}?",
            abort=True,
            err=True,
        )
    freed = stored.remove(chosen)
    tell(f"Removed {join_names(shown)}: {decimal(freed)} ({freed} bytes) are free.")


def _find(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """
    Return the entries that a name to be removed means.

    Raises:
        ConfigError: There are none, or they are another program's.
    """
    found = stored.find_named(name, entries)
    if not found:
        near = join_names([one.name for one in entries], 10) or "none"
        raise ConfigError(
            f"{name}: is no model in the caches and stores of this machine. There are: {near}."
        )
    for one in found:
        if not one.removes:
            raise ConfigError(
                f"{name}: belongs to {one.store}, and only what unilect or the hub's client has fetched is removed. Remove it with "
                f"{one.store}: it is {one.path}."
            )
    return found


def _list_all() -> list[Entry]:
    return [*stored.list_own(), *list_foreign()]


def _with_copies(entries: Sequence[Entry]) -> list[tuple[Entry, list[Entry]]]:
    """Return the entries, each with those that are the same: of one digest, links to one file, or of equal beginnings and ends."""
    first, rows = dict[object, list[Entry]](), list[tuple[Entry, list[Entry]]]()
    sizes = Counter(entry.size for entry in entries)
    for entry in entries:
        keys = [
            *_marks(entry.path, sizes[entry.size] > 1),
            *([entry.digest] if entry.digest else []),
        ]
        copies = next((first[key] for key in keys if key in first), None)
        if copies is not None:
            copies.append(entry)
        else:
            copies = []
            rows.append((entry, copies))
        for key in keys:
            first.setdefault(key, copies)
    return rows


def _marks(path: Path, sample: bool) -> list[object]:
    """
    Return what two paths have in common that are one file, or most likely of one content.

    Args:
        sample: Look at the content, too: its size, and what it begins and ends with.
    """
    try:
        stat = path.stat()
        if not sample or not path.is_file():
            return [(stat.st_dev, stat.st_ino)]
        with path.open("rb") as file:
            begin = file.read(_SAMPLE_BYTES)
            file.seek(-min(_SAMPLE_BYTES, stat.st_size), os.SEEK_END)
            return [(stat.st_dev, stat.st_ino), (stat.st_size, begin, file.read(_SAMPLE_BYTES))]
    except OSError:
        return []


def _record(entry: Entry, copies: Sequence[Entry]) -> dict[str, object]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "quantization": _quantization(entry),
        "size_bytes": entry.size,
        "store": entry.store,
        "path": str(entry.path),
        "digest": entry.digest or None,
        "copies": [one.name for one in copies],
    }


def _quantization(entry: Entry) -> str | None:
    if entry.kind not in ("gguf", "projector"):
        return None
    from unilect.engines.gguf.file_facts import describe

    try:
        return describe(Path(entry.path)).quantization
    except ValueError:
        return None
