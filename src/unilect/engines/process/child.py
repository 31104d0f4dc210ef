"""
The child's side of `child_process`: reads the settings, reports ready or failed, serves until SIGTERM. Its imports are minimal.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from unilect.runtime import memory
from unilect.runtime.child_limits import die_with, go_first, ignore_user_signals, limit_growth

#: The memory that a child may take after it has loaded, beside what it says itself: requests, answers, compiled grammars.
MARGIN_BYTES = 768 * memory.MIB


def run(
    serve: Callable[[dict[str, Any]], dict[str, Any]], at_end: Callable[[], None] | None = None
) -> NoReturn:
    """
    Serve until SIGTERM, then end at once.

    Args:
        serve: Given the settings, begins to serve in threads of its own and returns what to say when ready; `grows_bytes`
            of it is what the process may still take, beside MARGIN_BYTES. A ValueError or OSError that it raises is the
            reason for a failure, a TooLargeError for one that stays.
        at_end: For what brings processes of its own, which must not inherit limits and blocked signals: what ends them.
    """
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for a word
    settings = json.loads(sys.stdin.readline())
    if at_end is None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    die_with(settings["parent"])
    ignore_user_signals()
    go_first()
    free = memory.free_bytes()
    if free is not None and at_end is None:
        limit_growth(2 * free)  # safetensors maps weights so that they count, beside their copies
    try:
        ready = serve(settings)
    except (ValueError, OSError, ImportError) as error:
        stays = {"too_large": True} if isinstance(error, memory.TooLargeError) else {}
        _say(words, {"failed": str(error)} | stays)
        if at_end is not None:
            at_end()
        clean_up(Path(settings["socket_path"]))
        os._exit(1)
    grows_bytes, over = ready.pop("grows_bytes", 0), threading.Event()
    if at_end is None:
        _limit(grows_bytes)
    else:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
    _say(words, {"ready": ready or {"ok": True}})
    if at_end is None:
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    else:
        over.wait()
        at_end()
    clean_up(Path(settings["socket_path"]))
    # llama.cpp's destructor waits for running requests, 59 s have been seen; the kernel frees everything at once.
    os._exit(0)


def _say(words: TextIO, what: dict[str, Any]) -> None:
    """Say something to the parent; one that has died meanwhile hears nothing, and its signal ends this process in order."""
    with suppress(OSError):
        print(json.dumps(what), file=words, flush=True)


def _limit(grows_bytes: int) -> None:
    """Limit what is allocated from now on, to what is there at most."""
    free = memory.free_bytes()
    wanted = grows_bytes + MARGIN_BYTES
    limit_growth(wanted if free is None else min(wanted, free))


def clean_up(socket: Path) -> None:
    """Remove the socket and its folder, and never anything else: a folder that holds more stays."""
    with suppress(OSError):
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()
