"""
The process between a command and `ray start`, so that no process of a node outlives the command, however it ends.

It reads one JSON line: `parent` (a process), `head` (HOST:PORT, or empty), `version` (of unilect), `hand_over_s` (how long Ray may take to
end) and `arguments`. It says `{"failed": "why"}` where the node cannot join, and `{"left": true}` where it was drained. What Ray leaves
behind becomes its child, and is killed. Ray's lines go to its own stdout.

Source: prctl(2) (PR_SET_CHILD_SUBREAPER)
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from unilect.fleet.driver import state
from unilect.runtime.child_limits import die_with

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0
_DYING_S = (
    5.0  # `ray start` ends so long after a raylet that died, and not after one that was drained
)
_END_S = 10.0  # beside what is handed over


def main() -> None:
    """Check, and be a node until SIGTERM."""
    settings = json.loads(sys.stdin.readline())
    die_with(settings["parent"])
    if settings["head"]:
        try:
            state.check_join(settings["head"], settings["version"])
        except state.ClusterError as error:
            print(json.dumps({"failed": str(error)}), flush=True)
            sys.exit(1)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, ending = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        ending.set()
        woken.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGCHLD, lambda *_: woken.set())
    ray = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *settings["arguments"]],
        stdin=subprocess.DEVNULL,
        preexec_fn=partial(die_with, os.getpid()),
    )
    _watch(ray, woken, ending)
    _end(ray, settings["hand_over_s"])
    sys.exit(0 if ending.is_set() else 1)


def _watch(ray: Any, woken: threading.Event, ending: threading.Event) -> None:
    """Return when Ray has ended, is to end, or has no raylet any more."""
    seen_at = 0.0
    while ray.poll() is None and not ending.is_set():
        if any(_name(child) == "raylet" for child in _children(ray.pid)):
            seen_at = time.monotonic()
        elif seen_at and time.monotonic() - seen_at > _DYING_S:
            print(json.dumps({"left": True}), flush=True)
            return
        woken.wait(_LOOK_S)
        woken.clear()


def _end(ray: Any, hand_over_s: float) -> None:
    """End Ray, and all that is left of it."""
    if ray.poll() is None:
        ray.terminate()
        try:
            ray.wait(hand_over_s + _END_S)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()
    while left := _children(os.getpid()):
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(int(child), 0)


def _children(pid: int) -> list[str]:
    """List the processes that all threads of a process have started, or adopted."""
    children = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += thread.read_text().split()
    return children


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
