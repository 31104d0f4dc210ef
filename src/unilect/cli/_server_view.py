"""The lines that show a running server to its operator: its models, their troubles, and the requests in them."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unilect.cli._admin_client import AdminClient
from unilect.cli._screen import table

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


def state_of(client: AdminClient, timeout_s: float | None = None) -> dict[str, Any]:
    """
    Collect the answers of the admin API about the server, its models and its requests.

    Raises:
        ConfigError: It does not answer.
    """
    return {
        "server": client.ask("GET", "/server", timeout_s),
        **client.ask("GET", "/models", timeout_s),
        **client.ask("GET", "/requests", timeout_s),
    }


def model_lines(
    models: Sequence[dict[str, Any]],
    speed: Callable[[dict[str, Any]], float | None] = lambda model: model["tokens_per_s"],
) -> Iterator[str]:
    """
    Yield the lines about models.

    Args:
        speed: Tells the tokens per second of one; None for nothing.
    """
    yield from table(_MODELS, [_model_row(one, speed(one)) for one in models])
    for model in models:
        yield from (f"{preset}: a preset of {model['name']}" for preset in model["presets"])
        yield from _troubles(model)


def request_lines(requests: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines about requests."""
    yield from table(_REQUESTS, [_request_row(one) for one in requests])


def size_text(size: int) -> str:
    """Write a number of bytes; a dash for none."""
    if not size:
        return "-"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def rate_text(speed: float | None) -> str:
    """Write tokens per second; a dash for what is not known."""
    return "-" if speed is None else f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"


def clock(seconds: float) -> str:
    """Write a time, with its day where that is not today."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def _model_row(model: dict[str, Any], speed: float | None) -> tuple[str, ...]:
    slots = model["slots"]
    return (
        model["name"],
        model["state"],
        size_text(model["memory_bytes"]),
        model["device"].removeprefix("the ") or "-",
        str(model["context"] or "-"),
        "-" if slots is None else f"{model['slots_used']}/{slots}",
        str(model["queued"]),
        rate_text(speed),
        ", ".join(backend["source"] for backend in model["backends"]),
    )


def _troubles(model: dict[str, Any]) -> Iterator[str]:
    """Yield the troubles of a model and of each of its backends, a line each."""
    name, since = model["name"], model["since"]
    if model["state"] == "loading" and since is not None:
        yield f"{name}: loading for {time.time() - since:.0f} s"
    if model.get("waits_for"):
        yield str(model["waits_for"])
    for backend in model["backends"]:
        if backend["reason"] is None:
            continue
        what = "out" if backend["out"] else "failed"
        look = backend["next_look_in_s"]
        after = "tried with the next request" if look is None else f"next look in {look:.0f} s"
        where = f" {backend['source']}" if len(model["backends"]) > 1 else ""
        yield f"{name}:{where} {what}: {backend['reason'].rstrip('.')}, since {clock(backend['since'])}, {after}"


def _request_row(request: dict[str, Any]) -> tuple[str, ...]:
    return (
        request["id"],
        *(request[name] or "-" for name in ("caller", "address", "model", "endpoint")),
        request["state"],
        f"{request['age_s']:.1f} s",
        str(request["completion_tokens"]),
    )
