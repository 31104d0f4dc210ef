"""The output of `unilect ps`: the models of a server, why some do not answer, and the requests that run."""

import time
from collections.abc import Iterator
from typing import Any

from unilect.cli._screen import tell, tell_table

_MODELS = (
    "MODEL",
    "STATE",
    "MEMORY",
    "DEVICE",
    "CONTEXT",
    "SLOTS",
    "QUEUE",
    "TOKENS/S",
    "BACKENDS",
)
_REQUESTS = ("REQUEST", "KEY", "FROM", "MODEL", "ENDPOINT", "STATE", "AGE", "TOKENS")


def print_server(told: dict[str, Any]) -> None:
    """Print what a server tells of itself."""
    tell_table(_MODELS, [_model(one) for one in told["models"]])
    for model in told["models"]:
        for line in _troubles(model):
            tell(line)
    tell()
    tell_table(_REQUESTS, [_request(one) for one in told["requests"]])


def _model(model: dict[str, Any]) -> tuple[str, ...]:
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
        yield f"{name}:{where} {what}: {backend['reason'].rstrip('.')}, since {clock(backend['since'])}, {after}"


def _request(request: dict[str, Any]) -> tuple[str, ...]:
    return (
        request["id"],
        request["caller"] or "-",
        request["address"] or "-",
        request["model"] or "-",
        request["endpoint"] or "-",
        request["state"],
        f"{request['age_s']:.1f} s",
        str(request["completion_tokens"]),
    )


def _size(size: int) -> str:
    if not size:
        return "-"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def clock(seconds: float) -> str:
    """Write a time, with its day where that is not today."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)
