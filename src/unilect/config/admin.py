"""
The settings of the admin API: the table `[admin]` of a configuration, and the address or the socket that it names.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

from unilect.config.digests import hash_keys
from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.option import Move, Table, option
from unilect.config.store import data_folder
from unilect.runtime.socket_folders import MAX_PATH_BYTES, SHORT, fits

Address: TypeAlias = tuple[str, int]
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", re.ASCII)
_LONGEST_NAME = "65535-4194304.sock"  # a port and a process's id
OFF = "off"


def move_socket(text: str, move: Move) -> str:
    """Change the path of a socket, which has a slash; an address has none."""
    if "/" not in text:
        return text
    path = move(text)
    return path if "/" in path else f"./{path}"


class AdminConfig(Table, frozen=True, kw_only=True):
    """The admin API: the table `[admin]`."""

    listen: str | None = option(
        None,
        "Where the admin API listens: `HOST:PORT`, or the path of a unix socket, which has a slash in it and which only the "
        "server's user may connect to (mode 0600); `off`: nowhere. Default: the unix socket `unilect/run/PORT.sock` in "
        "`$XDG_DATA_HOME` or `~/.local/share`; where that cannot be made, `unilect/PORT.sock` in `$XDG_RUNTIME_DIR`, or "
        "`unilect-UID/PORT.sock` in `$TMPDIR` or `/tmp`. `unilect ps` and the like find it there.",
        path=move_socket,
        example="127.0.0.1:8001",
    )
    api_keys: list[str] = option(
        [],
        "Keys of the admin API, none of which may be in the server's `api_keys`. Required with `HOST:PORT`; a unix socket needs "
        "none. `$NAME` takes a key from the environment.",
        live=True,
        secret="key",
        example=["$ADMIN_KEY"],
    )

    @property
    def is_off(self) -> bool:
        """Return True if there is no admin API, not even at its default socket."""
        return self.listen == OFF

    @property
    def place(self) -> Path | Address | None:
        """
        The path of a unix socket, or a host and a port; None where none is named.

        Raises:
            ConfigError: `listen` is neither.
        """
        if self.listen in (None, OFF):
            return None
        assert self.listen is not None
        if "/" in self.listen:
            if not fits(self.listen):
                raise OptionError(
                    ("admin", "listen"),
                    f"the path of a unix socket has at most {MAX_PATH_BYTES} bytes, and this one has "
                    f"{len(os.fsencode(self.listen))}. Choose a shorter one, such as /run/unilect/admin.sock.",
                )
            return Path(self.listen)
        found = _ADDRESS.fullmatch(self.listen)
        if found is None or int(found[2]) > 65535:
            raise OptionError(
                ("admin", "listen"),
                f"{self.listen[:60]!r} is neither HOST:PORT, such as 127.0.0.1:8001, nor the path of a unix socket, "
                "such as ./admin.sock, nor `off`.",
            )
        return found[1].strip("[]"), int(found[2])


def admin_folders(environment: Mapping[str, str]) -> list[Path]:
    """
    List the folders in which the default socket of a server may be, the best first; none need exist.

    A folder whose path is too long for a unix socket is left out.
    """
    data, runtime = data_folder(environment), environment.get("XDG_RUNTIME_DIR", "")
    temporary = environment.get("TMPDIR", "")
    folders = [] if data is None else [data / "run"]
    folders += [Path(runtime, "unilect")] if runtime.startswith("/") else []
    temporary = temporary if temporary.startswith("/") else SHORT
    folders.append(Path(temporary, f"unilect-{os.getuid()}"))
    return [one for one in folders if fits(one / _LONGEST_NAME)]


def check_admin(
    config: AdminConfig, user_keys: Collection[str], taken: Collection[Address]
) -> None:
    """
    Check that the admin API is on an address of its own, and only for those who have a key of its own.

    Args:
        user_keys: The keys of clients.
        taken: The addresses of the server.

    Raises:
        ConfigError: It is not so.
    """
    found, path = ErrorCollector(), ("admin", "api_keys")
    keys = config.api_keys
    if set(hash_keys(keys)) & set(hash_keys(user_keys)):
        found.at(
            path,
            "one of them is in api_keys, too, so that a client could administer the server. Choose another key.",
        )
    with found:
        place = config.place
        if place is None and keys:
            found.at(path, "has no effect without listen; set listen too, or leave this out.")
        if isinstance(place, tuple):
            if not keys:
                found.at(
                    ("admin", "listen"),
                    "an admin API on HOST:PORT requires a key. Set api_keys in [admin], or name a unix socket: "
                    "`listen = './admin.sock'`.",
                )
            if place[1] and place in taken:
                found.at(
                    ("admin", "listen"),
                    f"{config.listen} is an address of the server. Give the admin API a port of its own.",
                )
    found.raise_all()
