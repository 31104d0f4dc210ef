"""`unilect top`: the models and requests of the servers, drawn again every second."""

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unilect.cli import _servers as servers
from unilect.cli._admin_client import AdminClient
from unilect.cli._screen import say, tell, visible
from unilect.cli._server_view import (
    model_lines,
    rate_text,
    request_lines,
    size_text,
    state_of,
)

_FRAME_S = 1.0
_TIMEOUT_S = 10.0  # a server that is so long silent does not work
_QUIT = frozenset(b"qQ\x04")


def watch(config: Path | None, server: str | None = None) -> None:
    """Show the servers until `q` or Ctrl-C; once where there is no terminal."""
    frames = _Frames(servers.choose(config, server))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for line in frames.lines():
            tell(line)
        say("this was shown once, since stdin or stdout is no terminal", "info")
        return
    # rich takes 0.1 s to import, which only a person who watches shall pay
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    frame = Text(no_wrap=True, overflow="ellipsis")
    with (
        suppress(KeyboardInterrupt),
        _keys_at_once(),
        Live(frame, console=Console(), screen=True, auto_refresh=False) as live,
    ):
        while True:
            height = shutil.get_terminal_size().lines
            frame.plain = visible("\n".join(_fit(list(frames.lines()), height)))
            live.refresh()
            if _is_quit_within(_FRAME_S):
                return


class _Frames:
    """The frames about some servers, with what their models generate from one to the next."""

    def __init__(self, clients: Sequence[AdminClient]) -> None:
        self._clients = clients
        self._before: dict[tuple[int, str], tuple[float, int]] = {}
        self._pids: set[int] = set()

    def lines(self) -> Iterator[str]:
        """
        Yield the lines of a frame.

        Raises:
            ConfigError: A server does not answer.
        """
        for at, client in enumerate(self._clients):
            told = state_of(client, _TIMEOUT_S)
            if at:
                yield ""
            yield from self._of_server(told)

    def _of_server(self, told: dict[str, Any]) -> Iterator[str]:
        server, models, requests = told["server"], told["models"], told["requests"]
        now, first = time.monotonic(), server["pid"] not in self._pids
        self._pids.add(server["pid"])
        speeds = {one["name"]: self._rate(server["pid"], one, now) for one in models}
        total = "" if first else f", {rate_text(sum(filter(None, speeds.values())))} tokens/s"
        loaded = sum(bool(one["memory_bytes"]) for one in models)
        waiting = sum(one["queued"] for one in models)
        yield (
            f"{server['urls'][0]}  pid {server['pid']}  up {_duration(time.time() - server['started_at'])}  "
            f"{len(models)} models, {loaded} in memory ({_memory_text(told)})  "
            f"{len(requests)} requests, {waiting} queued{total}"
        )
        yield ""
        shown = sorted(
            models, key=lambda one: (-one["requests"], -one["memory_bytes"], one["name"])
        )
        yield from model_lines(shown, lambda model: speeds[model["name"]])
        yield ""
        yield from request_lines(requests)

    def _rate(self, pid: int, model: dict[str, Any], now: float) -> float | None:
        """Return the tokens per second of all answers of a model since the last frame; of one answer of late in the first."""
        made = int(model["completion_tokens"])
        before = self._before.get((pid, model["name"]))
        self._before[pid, model["name"]] = now, made
        if before is None:
            return None if model["tokens_per_s"] is None else float(model["tokens_per_s"])
        return max(0.0, (made - before[1]) / max(now - before[0], 0.001))


def _memory_text(told: dict[str, Any]) -> str:
    """Write what the models take, and of the budget what is promised, and the whole."""
    taken = size_text(_memory(told["models"]))
    if (memory := told.get("memory")) is None:
        return taken
    return f"{taken}, {size_text(memory['promised_bytes'])} promised of {size_text(memory['budget_bytes'])}"


def _memory(models: Sequence[dict[str, Any]]) -> int:
    """Sum up the bytes of the processes of models; some share one."""
    found: dict[int, int] = {}
    for model in models:
        for backend in model["backends"]:
            found |= {one["pid"]: one["memory_bytes"] for one in backend["processes"]}
    return sum(found.values())


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _fit(lines: list[str], height: int) -> list[str]:
    """Return as many lines as a terminal has, the last of which says how many there are beside them."""
    if len(lines) < height:
        return lines
    kept = max(height - 1, 1)
    return [*lines[:kept], f"… {len(lines) - kept} lines more: `unilect ps`"]


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Have the terminal hand keys over as they are pressed, without showing them."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_quit_within(seconds: float) -> bool:
    """Return True once `q` is pressed, or the terminal is gone; False after so long."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), 64)
            if not pressed or not _QUIT.isdisjoint(pressed):
                return True
    return False
