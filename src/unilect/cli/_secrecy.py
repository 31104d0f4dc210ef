"""Keys of a configuration: a server keeps their digests, and a file that holds keys for everybody to read is told of."""

import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from unilect.config.digests import KEY_LISTS, hashed, plain_keys
from unilect.config.file import read_file
from unilect.config.server import Config
from unilect.errors import ConfigError


def with_digests(settings: Config) -> Config:
    """A configuration as a server keeps it: its keys by their digests."""
    admin = structs.replace(settings.admin, api_keys=hashed(settings.admin.api_keys))
    lists = {name: hashed(getattr(settings, name)) for name in KEY_LISTS}
    return structs.replace(settings, **lists, admin=admin)


def open_keys(file: Path | None) -> Iterator[str]:
    """Warnings of keys in a file that every user of this machine can read; a group may be that of the server."""
    if file is None:
        return
    try:
        mode = file.stat().st_mode
        options = list(plain_keys(read_file(file))) if mode & stat.S_IROTH else []
    except (OSError, ConfigError):  # which is told elsewhere
        return
    if options:
        yield (
            f"{file}: every user of this machine can read the keys in {', '.join(options)} (mode {mode & 0o777:04o}). "
            "Forbid it (chmod o-r), or write `$NAME` for a key out of the environment, or for a key of clients its digest "
            "(`unilect keys digest`)."
        )
