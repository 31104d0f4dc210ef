"""What the commands for a running server do: they find its admin API by the configuration, and ask it."""

import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Sequence
from getpass import getpass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from unilect.cli._commands import fail
from unilect.config import load as config_load
from unilect.config.digests import is_digest
from unilect.config.server import Config, is_loopback
from unilect.errors import ConfigError

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PROC = Path("/proc")
_TTY = 4  # of the fields behind the name in /proc/PID/stat, proc(5)


def reload(config: Path | None, pid: int | None) -> None:
    """Have a running server reload its configuration, by its admin API or, with a process's id, by SIGHUP."""
    if pid is not None:
        _hang_up(pid)
        print(f"SIGHUP was sent to process {pid}; its log says what has been reloaded, or why not.")
        return
    settings, place = _found(config, "or name the process with --pid")
    answer = _asked(settings, place, "POST", "/reload")
    print(f"{answer['file']} reloaded: {answer['told']}")


def show(config: Path | None, as_json: bool) -> None:
    """Print the models and the running requests of a server."""
    settings, place = _found(config, "which `unilect ps` asks")
    told = _asked(settings, place, "GET", "/models") | _asked(settings, place, "GET", "/requests")
    if as_json:
        print(json.dumps(told))
        return
    models = [
        (one["name"], one["state"], str(one["requests"]), ", ".join(b["source"] for b in one["backends"]))
        for one in told["models"]
    ]  # fmt: skip
    print_table(("MODEL", "STATE", "REQUESTS", "BACKENDS"), models)
    print()
    requests = [
        (
            one["id"],
            one["caller"] or "-",
            one["model"] or "-",
            one["endpoint"] or "-",
            one["state"],
            f"{one['age_s']:.1f} s",
            str(one["completion_tokens"]),
        )
        for one in told["requests"]
    ]
    print_table(("REQUEST", "KEY", "MODEL", "ENDPOINT", "STATE", "AGE", "TOKENS"), requests)


def _found(config: Path | None, instead: str) -> tuple[Config, Path | tuple[str, int]]:
    """The configuration, as far as it can be read, and where its admin API is; else the command ends."""
    try:
        settings, _ = config_load.read(config)  # what is wrong in it the server will say
        place = settings.admin.place
    except ConfigError as error:
        fail(str(error))
    if place is None:
        fail(
            "there is no admin API in this configuration; set `listen` in its table [admin] (and restart the server once), "
            f"{instead}. --config, or UNILECT_CONFIG, names the file."
        )
    return settings, place


class _UnixConnection(HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class _TlsConnection(HTTPSConnection):
    """
    A connection to the server of this configuration: it is known by its certificate, which names what clients call it. On loopback it needs
    none, as without TLS: a renewed certificate is read by the reload that is asked for.
    """

    def __init__(self, host: str, port: int, file: str) -> None:
        self._certificate = None if is_loopback(host) else _certificate(file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__(host, port, context=context)

    def connect(self) -> None:
        """Connect; nothing is sent to a server that has another certificate."""
        super().connect()
        if self._certificate not in (None, self.sock.getpeercert(binary_form=True)):
            fail(
                f"the server at {self.host}:{self.port} has another certificate than the file `tls_cert`; where it still has an "
                "older one, run `unilect reload --pid PID` or restart it."
            )


def _certificate(file: str) -> bytes:
    """The server's certificate, the first in a file; the command ends where there is none."""
    try:
        found = _CERTIFICATE.search(Path(file).read_text("utf-8", "replace"))
        return ssl.PEM_cert_to_DER_cert(found[0] if found else "")
    except OSError as error:
        fail(f"tls_cert: {file} cannot be read ({error.strerror}). Name a file in PEM.")
    except ValueError:
        fail(f"tls_cert: {file} has no certificate. Name a file in PEM.")


def _connection(settings: Config, place: Path | tuple[str, int]) -> HTTPConnection:
    if isinstance(place, Path):
        return _UnixConnection(place)
    host, port = place
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if settings.tls_cert is None:
        return HTTPConnection(host, port)  # without a timeout: a reload may load a model
    return _TlsConnection(host, port, settings.tls_cert)


def _keys(settings: Config) -> list[str]:
    """The keys of the admin API; one is asked for where the configuration has digests only."""
    keys = settings.admin.api_keys
    plain = [key for key in keys if not is_digest(key)]
    return plain or ([getpass("A key of the admin API: ")] if keys else [])


def _asked(settings: Config, place: Path | tuple[str, int], method: str, path: str) -> Any:
    """What the admin API answers; where it cannot, the command ends with the reason."""
    keys, connection = _keys(settings), _connection(settings, place)
    where = str(place) if isinstance(place, Path) else f"{place[0]}:{place[1]}"
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            fail(f"the server at {where} refused this: {answer['error']['message']}")
    except (OSError, HTTPException) as error:
        fail(f"no server answers at {where} ({error}). Is it running, with this configuration?")
    except (ValueError, KeyError, TypeError):
        fail(f"what answers at {where} is not unilect's admin API.")
    finally:
        connection.close()
    return answer


def _hang_up(pid: int) -> None:
    """Send SIGHUP to a server that reloads on it; the command ends where it is none."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        fail(f"--pid: there is no process {pid} ({error.strerror}).")
    if not any(b"unilect" in word for word in words[:4]) or pid == os.getpid():
        fail(f"--pid: process {pid} is not unilect.")
    if stat[_TTY] != "0":
        fail(
            f"--pid: process {pid} runs in a terminal, where SIGHUP stops a server. Set `listen` in [admin], and use "
            "`unilect reload --config FILE`."
        )
    named = any(word == b"--config" or word.startswith(b"--config=") for word in words)
    if not named and b"UNILECT_CONFIG" not in _environment(pid):
        fail(f"--pid: process {pid} has no configuration file, and SIGHUP would stop it.")
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        fail(f"--pid: process {pid} cannot be sent a signal ({error.strerror}).")


def _environment(pid: int) -> set[bytes]:
    """The names of the variables of a process; none where it is another user's."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return set()
    return {line.partition(b"=")[0] for line in text.split(b"\0")}


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns as wide as they need to be."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
