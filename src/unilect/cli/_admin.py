"""The commands for a running server: they find its admin API, and ask it."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unilect.cli import _remedies as remedies
from unilect.cli import _servers as servers
from unilect.cli._admin_client import AdminClient
from unilect.cli._screen import tell, tell_table
from unilect.config.mistakes import ErrorCollector
from unilect.core.errors import ConfigError

_PROC = Path("/proc")
_TTY = 4  # of the fields behind the name in /proc/PID/stat, proc(5)
_MODELS = [
    "MODEL",
    "STATE",
    "MEMORY",
    "DEVICE",
    "CONTEXT",
    "SLOTS",
    "QUEUE",
    "TOKENS/S",
    "BACKENDS",
]
_REQUESTS = ("REQUEST", "KEY", "FROM", "MODEL", "ENDPOINT", "STATE", "AGE", "TOKENS")


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
    answer = servers.only(config, server).ask("POST", f"/models/{quote(model)}/stop")
    tell(f"{answer['name']}: {answer['state']}, {answer['requests']} requests")


def show(config: Path | None, as_json: bool, server: str | None = None) -> None:
    """Print the models and the running requests of a server, or of each where nothing names one of several."""
    all_told = [_state(client) for client in servers.choose(config, server)]
    if as_json:
        tell(json.dumps(all_told[0] if len(all_told) == 1 else {"servers": all_told}))
        return
    for at, told in enumerate(all_told):
        if len(all_told) > 1:
            tell("\n" * bool(at) + f"{told['server']['urls'][0]}  pid {told['server']['pid']}")
        _print_server(told)


def explain(config: Path | None, request: str | None, as_json: bool, server: str | None) -> None:
    """Print why a request failed; without an id, the last failures."""
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
    failure = _failure(clients, request)
    if as_json:
        tell(json.dumps(failure))
        return
    for name, text in _facts(failure):
        tell(f"{name:9} {text}".rstrip())


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
        "ended": f"{_clock(failure['time'])}, after {failure['duration_ms'] / 1000:.1f} s",
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
            _clock(one["time"]),
            one["request_id"],
            str(one["status"]),
            one["code"] or one["ended"] or "-",
            *(one[name] or "-" for name in ("model", "caller", "address", "reason")),
        )
        for one in failures
    ]
    tell_table(head, rows)


def _state(client: AdminClient) -> dict[str, Any]:
    """
    Collect the answers of the admin API about the server, its models and its requests.

    Raises:
        ConfigError: It does not answer.
    """
    return {
        "server": client.ask("GET", "/server"),
        **client.ask("GET", "/models"),
        **client.ask("GET", "/requests"),
    }


def _print_server(told: dict[str, Any]) -> None:
    """Print what a server tells of itself."""
    tell_table(_MODELS, [_model_row(one) for one in told["models"]])
    for model in told["models"]:
        for preset in model.get("presets", ()):
            tell(f"{preset}: a preset of {model['name']}")
        for line in _troubles(model):
            tell(line)
    tell()
    tell_table(_REQUESTS, [_request_row(one) for one in told["requests"]])


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    slots, speed = model["slots"], model["tokens_per_s"]
    return (
        model["name"],
        model["state"],
        _size(model["memory_bytes"]),
        model["device"].removeprefix("the ") or "-",
        str(model["context"] or "-"),
        "-" if slots is None else f"{model['slots_used']}/{slots}",
        str(model["queued"]),
        "-" if speed is None else f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}",
        ", ".join(backend["source"] for backend in model["backends"]),
    )


def _troubles(model: dict[str, Any]) -> Iterator[str]:
    """Yield the troubles of a model and of each of its backends, a line each."""
    name, since = model["name"], model["since"]
    if model["state"] == "loading" and since is not None:
        yield f"{name}: loading for {time.time() - since:.0f} s"
    for backend in model["backends"]:
        if backend["reason"] is None:
            continue
        what = "out" if backend["out"] else "failed"
        look = backend["next_look_in_s"]
        after = "tried with the next request" if look is None else f"next look in {look:.0f} s"
        where = f" {backend['source']}" if len(model["backends"]) > 1 else ""
        yield f"{name}:{where} {what}: {backend['reason'].rstrip('.')}, since {_clock(backend['since'])}, {after}"


def _request_row(request: dict[str, Any]) -> tuple[str, ...]:
    return (
        request["id"],
        *(request[name] or "-" for name in ("caller", "address", "model", "endpoint")),
        request["state"],
        f"{request['age_s']:.1f} s",
        str(request["completion_tokens"]),
    )


def _size(size: int) -> str:
    if not size:
        return "-"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _clock(seconds: float) -> str:
    """Write a time, with its day where that is not today."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


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
