"""Keys of a configuration: a server keeps their digests, and a file that holds keys for everybody to read is told of."""

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from unilect.config.digests import hash_keys, is_digest, is_variable
from unilect.config.file import read_file
from unilect.config.mistakes import OptionPath, join_path
from unilect.config.option import Option, Table, map_texts
from unilect.config.server import Config
from unilect.core.errors import ConfigError

T = TypeVar("T", bound=Table)


def with_digests(table: T) -> T:
    """Return a configuration as a server keeps it: its lists of keys as digests."""
    changed: dict[str, Any] = {}
    for name, option in type(table).declared.items():
        value = getattr(table, name)
        if isinstance(value, Table):
            changed[name] = with_digests(value)
        elif option.secret == "key" and isinstance(value, list):
            changed[name] = hash_keys(value)
    return structs.replace(table, **changed)


def plain_keys(values: Mapping[str, Any]) -> list[str]:
    """
    Return the options of a TOML file that hold a key itself: neither its digest nor `$NAME`.

    Args:
        values: The file's, whatever is wrong with them.
    """
    found = list[str]()

    def note(option: Option, text: str, path: OptionPath) -> str:
        if option.secret == "key" and text and not is_digest(text) and not is_variable(text):
            found.append(join_path(path))
        return text

    map_texts(values, Config, note)
    return list(dict.fromkeys(found))


def open_keys(file: Path | None) -> Iterator[str]:
    """Yield a warning of keys in a file that every user of this machine can read; a group may be that of the server."""
    if file is None:
        return
    try:
        mode = file.stat().st_mode
        options = plain_keys(read_file(file)) if mode & stat.S_IROTH else []
    except (OSError, ConfigError):  # which is told elsewhere
        return
    if options:
        yield (
            f"{file}: every user of this machine can read the keys in {', '.join(options)} (mode {mode & 0o777:04o}). "
            "Forbid it (chmod o-r), or write `$NAME` for a key out of the environment, or for a key of clients its digest "
            "(`unilect keys digest`)."
        )
