"""The commands for a running server: they find its admin API, and ask it."""

import json
import os
import signal
import time
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from unilect.cli import _remedies as remedies
from unilect.cli import _servers as servers
from unilect.cli._admin_client import AdminClient
from unilect.cli._screen import say, tell, tell_table
from unilect.cli._server_view import clock, model_lines, request_lines, size_text, state_of
from unilect.config.mistakes import ErrorCollector
from unilect.core.errors import ConfigError

_PROC = Path("/proc")
_TTY = 4  # of the fields behind the name in /proc/PID/stat, proc(5)


def reload(config: Path | None, pid: int | None, server: str | None = None) -> None:
    """Have a running server reload its configuration, by its admin API or, with a process's id, by SIGHUP."""
    if pid is not None:
        _hang_up(pid)
        tell(f"SIGHUP was sent to process {pid}; its log says what has been reloaded, or why not.")
        return
    answer = servers.only(config, server).ask("POST", "/reload")
    tell(f"{answer['file']} reloaded: {answer['told']}")


def stop(config: Path | None, model: str, server: str | None) -> None:
    """Have a running server stop a model, and say what it does now."""
    _tell_model(_change(config, model, "stop", server))


def load(config: Path | None, model: str, server: str | None) -> None:
    """Have a running server start a model, wait until it has, and say what it took."""
    began = time.monotonic()
    answer = _change(config, model, "load", server)
    memory = f", {size_text(answer['memory_bytes'])}" if answer["memory_bytes"] else ""
    tell(f"{answer['name']}: {answer['state']} after {time.monotonic() - began:.1f} s{memory}")


def drain(config: Path | None, model: str, server: str | None) -> None:
    """Have a running server send a model no more requests, and say what it does now."""
    _tell_model(_change(config, model, "drain", server))


def page(config: Path | None, opens: bool, server: str | None) -> None:
    """Print the address of a server's page with a key that steers it, and with `opens` open it in a browser."""
    url = servers.only(config, server).ask("GET", "/page")["url"]
    tell(url)
    if opens and not webbrowser.open(url):
        say("no browser can be opened here; open the address in one", "warning")


def logs(
    config: Path | None, model: str | None, follow: bool, lines: int, server: str | None
) -> None:
    """Print the last lines that the engines of a server wrote, and with `follow` those to come."""
    query = {"lines": str(lines), "follow": str(follow).lower()} | (
        {"model": model} if model else {}
    )
    path = f"/logs?{urlencode(query)}"
    clients = [servers.only(config, server)] if follow else servers.choose(config, server)
    said = False
    for client in clients:
        for line in client.follow(path):
            said = True
            tell(line, flush=True)
    if not said:
        say("no engine has written anything; the server's own log is on its stderr", "info")


def show(config: Path | None, as_json: bool, server: str | None = None) -> None:
    """Print the models and the running requests of a server, or of each where nothing names one of several."""
    all_told = [state_of(client) for client in servers.choose(config, server)]
    if as_json:
        tell(json.dumps(all_told[0] if len(all_told) == 1 else {"servers": all_told}))
        return
    for at, told in enumerate(all_told):
        if len(all_told) > 1:
            tell("\n" * bool(at) + f"{told['server']['urls'][0]}  pid {told['server']['pid']}")
        for line in (*model_lines(told["models"]), "", *request_lines(told["requests"])):
            tell(line)


def explain(config: Path | None, request: str | None, as_json: bool, server: str | None) -> None:
    """Print why a request failed, or why a model was loaded, stopped or not loaded; without an id or a name, the last failures."""
    clients = servers.choose(config, server)
    if request is None:
        found = [one.ask("GET", "/failures") for one in clients]
        failures = sorted((f for one in found for f in one["failures"]), key=lambda f: f["time"])
        if as_json:
            tell(json.dumps({"failures": failures}))
        elif failures:
            _print_failures(failures)
        else:
            tell("No request has failed since the server started.")
        return
    if (told := _events(clients, request)) is not None:
        if as_json:
            tell(json.dumps(told))
        else:
            _print_events(told)
        return
    failure = _failure(clients, request)
    if as_json:
        tell(json.dumps(failure))
        return
    for name, text in _facts(failure):
        tell(f"{name:9} {text}".rstrip())


def _change(config: Path | None, model: str, what: str, server: str | None) -> dict[str, Any]:
    """
    Have a server change a model.

    Returns:
        The model as it is then.

    Raises:
        ConfigError: The server refuses, or does not answer.
    """
    path = f"/models/{quote(model)}/{what}"
    return dict(servers.only(config, server).ask("POST", path))


def _tell_model(model: dict[str, Any]) -> None:
    waits = ": it stops once none runs" if model["requests"] else ""
    tell(f"{model['name']}: {model['state']}, {model['requests']} requests{waits}")


def _events(clients: Sequence[AdminClient], name: str) -> dict[str, Any] | None:
    """Return the events of a model, of the first server that has one of this name, alias or preset; None where none has."""
    for client in clients:
        for model in client.ask("GET", "/models")["models"]:
            if name in (model["name"], *model["aliases"], *model.get("presets", ())):
                return dict(client.ask("GET", f"/models/{quote(model['name'])}/events"))
    return None


def _print_events(told: dict[str, Any]) -> None:
    """Print the events of a model, the last one last."""
    tell(f"{told['model']}: {told['state']}")
    for one in told["events"]:
        reason = one["reason"].removeprefix(f"{told['model']}: ")
        where = "" if one["server"] == told["server"] else f"  ({one['server']})"
        tell(f"  {clock(one['time'])}  {reason}{where}")
    if not told["events"]:
        tell("  Nothing has happened to it since the server started.")
    if told["missing"]:
        say(told["missing"], "warning")


def _failure(clients: Sequence[AdminClient], request_id: str) -> dict[str, Any]:
    """
    Return the failure of a request, of whichever server.

    Raises:
        ConfigError: None of them knows it.
    """
    found = ErrorCollector()
    for client in clients:
        with found:
            return dict(client.ask("GET", f"/failures/{quote(request_id, safe='')}"))
    raise found.errors[0]


def _facts(failure: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines about a failure, each as its label and its text."""
    yield failure["request_id"], f"{failure['method']} {failure['path']}"
    code = " ".join(filter(None, (str(failure["status"]), failure["code"])))
    answering = failure["answering"]
    facts = {
        "ended": f"{clock(failure['time'])}, after {failure['duration_ms'] / 1000:.1f} s",
        "status": code + (f", the answer ended by: {failure['ended']}" if failure["ended"] else ""),
        "reason": failure["reason"],
        "remedy": remedies.of_code(failure["code"]),
        "param": failure["param"],
        "model": failure["model"] + (f", answered by {answering}" if answering not in ("", failure["model"]) else ""),
        "backend": failure["backend"],
        "caller": " ".join(filter(None, (failure["caller"], failure["address"] and f"from {failure['address']}"))),
    }  # fmt: skip
    yield from ((f"  {name}", text) for name, text in facts.items() if text)
    for at, one in enumerate(failure["attempts"]):
        yield "" if at else "  tried", f"{one['model']} at {one['backend']}: {one['reason']}"


def _print_failures(failures: Sequence[dict[str, Any]]) -> None:
    head = ("TIME", "REQUEST", "STATUS", "CODE", "MODEL", "KEY", "FROM", "REASON")
    rows = [
        (
            clock(one["time"]),
            one["request_id"],
            str(one["status"]),
            one["code"] or one["ended"] or "-",
            *(one[name] or "-" for name in ("model", "caller", "address", "reason")),
        )
        for one in failures
    ]
    tell_table(head, rows)


def _hang_up(pid: int) -> None:
    """Send SIGHUP to a server that reloads on it; the command ends where it is none."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise ConfigError(
            f"--pid: there is no process {pid} ({error.strerror}). `unilect ps` shows those of the servers."
        ) from error
    if not any(b"unilect" in word for word in words[:4]) or pid == os.getpid():
        raise ConfigError(
            f"--pid: process {pid} is not unilect. `unilect ps` shows the processes of the servers."
        )
    if stat[_TTY] != "0":
        raise ConfigError(
            f"--pid: process {pid} runs in a terminal, where SIGHUP stops a server. Set `listen` in [admin], and use "
            "`unilect reload --config FILE`."
        )
    named = any(word == b"--config" or word.startswith(b"--config=") for word in words)
    if not named and b"UNILECT_CONFIG" not in _environment(pid):
        raise ConfigError(
            f"--pid: process {pid} has no configuration file, and SIGHUP would stop it."
        )
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ConfigError(
            f"--pid: process {pid} cannot be sent a signal ({error.strerror}). Run this as the user of the server."
        ) from error


def _environment(pid: int) -> set[bytes]:
    """Return the names of the variables of a process; none where it is another user's."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return set()
    return {line.partition(b"=")[0] for line in text.split(b"\0")}
