"""The commands for a running server: they find its admin API, and ask it."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unilect.cli import _servers as servers
from unilect.cli._admin_client import AdminClient
from unilect.cli._commands import fail, or_exit

_PROC = Path("/proc")
_TTY = 4  # of the fields behind the name in /proc/PID/stat, proc(5)


def reload(config: Path | None, pid: int | None, server: str | None = None) -> None:
    """Have a running server reload its configuration, by its admin API or, with a process's id, by SIGHUP."""
    if pid is not None:
        _hang_up(pid)
        print(f"SIGHUP was sent to process {pid}; its log says what has been reloaded, or why not.")
        return
    answer = or_exit(lambda: servers.only(config, server).ask("POST", "/reload"))
    print(f"{answer['file']} reloaded: {answer['told']}")


def show(config: Path | None, as_json: bool, server: str | None = None) -> None:
    """Print the models and the running requests of a server, or of each where nothing names one of several."""
    all_told = or_exit(lambda: [_state(client) for client in servers.choose(config, server)])
    if as_json:
        print(json.dumps(all_told[0] if len(all_told) == 1 else {"servers": all_told}))
        return
    for at, told in enumerate(all_told):
        if len(all_told) > 1:
            print("\n" * bool(at) + f"{told['server']['urls'][0]}  pid {told['server']['pid']}")
        _print_server(told)


def _state(client: AdminClient) -> dict[str, Any]:
    """
    What a server tells of itself, its models and its requests.

    Raises:
        ConfigError: It does not answer.
    """
    return {
        "server": client.ask("GET", "/server"),
        **client.ask("GET", "/models"),
        **client.ask("GET", "/requests"),
    }


def _print_server(told: dict[str, Any]) -> None:
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
