"""
A process that has llama.cpp load files as an engine's child does, and ask each model for some tokens: every file in a fork of its own.

It reads one line of JSON for each file, a child's settings, and writes one: how the fork ended (`code`, negative for a signal), what it said
(`ready`, or `failed` with a reason), the last of its stderr, its seconds, and its largest resident set. One that takes longer than `LONGEST_S` is killed.
"""

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, NoReturn

from unilect.engines.gguf import _child
from unilect.runtime import memory
from unilect.runtime.child_limits import limit_growth

LONGEST_S = 30


def loaded(settings: dict[str, Any]) -> dict[str, Any]:
    """How it went with one file."""
    began, reader = time.monotonic(), 0
    with tempfile.TemporaryFile() as words, tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(words.fileno(), 1)
            os.dup2(words.fileno(), 2)
            _load(
                settings
                | {"socket_path": f"{folder}/engine.sock", "reserved_bytes": 0, "verbose": False},
                writer,
            )
        os.close(writer)
        with os.fdopen(reader) as said:
            text = said.read()
        _, status, usage = os.wait4(pid, 0)
        words.seek(0, os.SEEK_END)
        words.seek(max(0, words.tell() - 500))
        told = json.loads(text) if text else {}
        return told | {
            "code": os.waitstatus_to_exitcode(status),
            "words": words.read().decode(errors="replace"),
            "seconds": time.monotonic() - began,
            "resident_kib": usage.ru_maxrss,
        }


def _load(settings: dict[str, Any], writer: int) -> NoReturn:
    """Load one file, ask for some tokens, and end."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST_S)
    limit_growth(2 * (memory.free_bytes() or 2**32))
    try:
        told: dict[str, Any] = {"ready": _child.serve(settings)}
        body = {"prompt": "one day", "n_predict": 4}
        with suppress(RuntimeError, ValueError):  # a refusal
            told["answered"] = bool(_child._server[0].handle_completions(body))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        told = {"failed": str(error)}
    os.write(writer, json.dumps(told, default=str).encode())
    os._exit(0)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(loaded(json.loads(line))), flush=True)
