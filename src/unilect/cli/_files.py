"""The work of `unilect list` and `unilect rm`: the models on this machine."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from unilect.cli._screen import say, tell, tell_table
from unilect.core.errors import ConfigError, join_names
from unilect.hub import stored
from unilect.hub.stored import Entry
from unilect.hub.stores import list_foreign

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


def remove(names: Sequence[str], yes: bool) -> None:
    """
    Remove models from the caches, once a person at the terminal or `--yes` has confirmed it, and say what that has freed.

    Raises:
        ConfigError: There is no such model, or it is not ours to remove.
    """
    from rich.filesize import decimal

    entries, chosen = _list_all(), dict[str, Entry]()
    for name in names:
        for entry in _find(name, entries):
            chosen[entry.name] = entry
    goes = stored.size_of(path for one in chosen.values() for path in one.removes)
    for pid, command in stored.list_users(f for one in chosen.values() for f in one.files).items():
        say(
            f"process {pid} has it loaded ({command[:100]}); it goes on, cannot start it again, and the disk space is free once it ends.",
            "warning",
        )
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("--yes: is needed where stdin is no terminal, since nobody can be asked. Nothing was removed.")  # fmt: skip
        click.confirm(
            f"Remove {join_names(chosen)}, which frees {decimal(goes)}?", abort=True, err=True
        )
    freed = stored.remove(chosen.values())
    tell(f"Removed {join_names(chosen)}: {decimal(freed)} ({freed} bytes) are free.")


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
    if entry.kind != "gguf":
        return None
    from unilect.engines.gguf.file_facts import describe

    try:
        return describe(Path(entry.path)).quantization
    except ValueError:
        return None
