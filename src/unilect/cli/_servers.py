"""The running servers of this user, found by the default sockets of their admin APIs, and the one that a command is about."""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from getpass import getpass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from unilect.cli._admin_client import AdminClient
from unilect.config import load as config_load
from unilect.config.admin import admin_folders
from unilect.config.digests import is_digest
from unilect.config.server import Config, process_environment
from unilect.config.store import location
from unilect.core.errors import ConfigError

_TIMEOUT_S = 5.0  # for a server that was stopped by a signal, or does something else for long


class Server(NamedTuple):
    """
    A running server.

    Attributes:
        client: Asks its admin API.
        pid: Its process.
        urls: Of its addresses, its own first.
        config: The path of its configuration file, where it has one.
        store: The location of its store, as `config.store.location` names it.
        keys: It asks clients for keys.
        started_at: In seconds since 1970.
    """

    client: AdminClient
    pid: int
    urls: Sequence[str]
    config: str | None
    store: str
    keys: bool
    started_at: float

    def __str__(self) -> str:
        return f"{self.urls[0]} (pid {self.pid}, {self.config or 'without a configuration file'})"

    @property
    def ports(self) -> list[int | None]:
        """The ports of its addresses."""
        return [urlsplit(url).port for url in self.urls]


def running(environment: Mapping[str, str]) -> tuple[list[Server], list[str]]:
    """
    Find the running servers of this user that have the default socket.

    Returns:
        The servers, by their ports, and a sentence for each that does not answer.
    """
    found, silent = list[Server](), list[str]()
    for folder in dict.fromkeys(admin_folders(environment)):
        for path in sorted(folder.glob("*.sock")) if _is_own(folder) else ():
            try:
                found.append(describe(AdminClient(path)))
            except ConfigError as error:
                if not isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
                    silent.append(str(error))
    return sorted(found, key=lambda one: one.ports[0] or 0), silent


def of_store(settings: Config, environment: Mapping[str, str]) -> tuple[list[Server], list[str]]:
    """
    Find the running servers of this user that have the store of a configuration.

    Returns:
        As `running`. A server whose admin API has another place is found by the configuration that names it.
    """
    found, silent = running(environment)
    place, keys = settings.admin.place, _plain(settings)
    if place is not None and (keys or isinstance(place, Path)):
        with suppress(ConfigError):  # it may not run
            found.append(describe(AdminClient(place, keys, settings.tls_cert)))
    where = location(settings.store, environment)
    return [one for one in found if one.store == where], silent


def describe(client: AdminClient) -> Server:
    """
    Ask a server what it is.

    Raises:
        ConfigError: It does not answer.
    """
    told: dict[str, Any] = client.ask("GET", "/server", _TIMEOUT_S)
    del told["version"]
    return Server(client, **told)


def choose(config: Path | None, server: str | None) -> list[AdminClient]:
    """
    Find the servers that a command may be about.

    Args:
        config: Their configuration file; that of UNILECT_CONFIG where this is None.
        server: The port, the URL, the process or the socket of one.

    Returns:
        One at least; several only where nothing names one.

    Raises:
        ConfigError: There is none.
    """
    if server is not None:
        return [_find(server)]
    file = config_load.origin_of(config).file
    if file is None:
        found, silent = running(process_environment())
        if not found:
            raise ConfigError(
                " ".join(silent) or f"no server of this user runs {_LOOKED}. {_choice([])}"
            )
        return [one.client for one in found]
    settings, _ = config_load.read(config)  # what is wrong in it the server will say
    if settings.admin.is_off:
        raise ConfigError(
            f"{file} has `listen = 'off'` in [admin], so its server cannot be asked. Take that out of the file, and restart the server."
        )
    place = settings.admin.place
    if place is not None:
        return [AdminClient(place, _keys(settings), settings.tls_cert)]
    found, _ = running(process_environment())
    own = [one.client for one in found if one.config == str(file.absolute())]
    if not own:
        raise ConfigError(f"no server of this user runs with {file} {_LOOKED}. {_choice(found)}")
    return own


def only(config: Path | None, server: str | None) -> AdminClient:
    """
    Find the only server that a command may change, as `choose`.

    Raises:
        ConfigError: There is none, or there are several.
    """
    clients = choose(config, server)
    if len(clients) > 1:
        raise ConfigError(
            f"{len(clients)} servers run. {_choice([describe(one) for one in clients])}"
        )
    return clients[0]


_LOOKED = "with the default socket of its admin API (docs/operation.md)"


def _choice(servers: Sequence[Server]) -> str:
    """Say what to do where no server, or not one of several, is named."""
    if not servers:
        return "Start one with `unilect serve`, or name its socket with --server."
    return f"Name one with --server PORT: {'; '.join(map(str, servers))}."


def _find(server: str) -> AdminClient:
    """
    Find the server of a port, a URL, a process or a socket.

    Raises:
        ConfigError: There is none, or there are several.
    """
    if "/" in server and "://" not in server:
        return AdminClient(Path(server))
    found, _ = running(process_environment())
    if server.isdecimal():
        number = int(server)
        fits = [one for one in found if number in (one.pid, *one.ports)]
    else:
        root = server.rstrip("/").removesuffix("/v1").replace("//localhost:", "//127.0.0.1:")
        fits = [one for one in found if root in one.urls]
    if len(fits) != 1:
        why = "several servers run" if fits else "no server of this user runs"
        raise ConfigError(
            f"--server: {why} with {server[:100]} {_LOOKED}. {_choice(fits or found)}"
        )
    return fits[0].client


def _keys(settings: Config) -> list[str]:
    """Return the keys of the admin API; one is asked for where the configuration has digests only."""
    asks = settings.admin.api_keys
    return _plain(settings) or ([getpass("A key of the admin API: ")] if asks else [])


def _plain(settings: Config) -> list[str]:
    """Return the keys of the admin API that the configuration itself has."""
    return [key for key in settings.admin.api_keys if not is_digest(key)]


def _is_own(folder: Path) -> bool:
    """Return True if a folder is this user's: anybody may make one among temporary files."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
