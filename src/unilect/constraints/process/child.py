"""
The helper process: reads jobs from stdin, one JSON line each, runs them with limits, and writes answers to stdout, one JSON line each.

An answer is `{"done": value}`, `{"refused": why}` or, of an error that is no refusal, `{"flaw": traceback}`; with `"last": true` the process
has grown too large and must be replaced.
Memory, stack and time of a job are limited, so that a constraint ends this process instead of an engine. The stacks are smaller than
those of the engines, so that a constraint that passes here passes there.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import traceback
from typing import Any

from unilect.runtime.child_limits import (
    data_bytes,
    die_with,
    go_first,
    ignore_user_signals,
    limit_growth,
)

STACK_BYTES = 1024 * 1024
MEMORY_BYTES = 512 * 1024 * 1024  # for one job, beside what a fresh process has
_KEPT_BYTES = 128 * 1024 * 1024
_ATTRIBUTE_BYTES = 128  # more than any system's pthread_attr_t has


def main() -> None:
    """Serve until stdin ends."""
    parent, standing = int(sys.argv[1]), sys.argv[2]
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    die_with(parent, signal.SIGKILL)
    ignore_user_signals()
    go_first()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _small_stacks()
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(words, standing))
    worker.start()
    worker.join()


def _serve(words: Any, standing: str) -> None:
    try:
        from unilect.constraints.process import jobs as _jobs

        jobs = _jobs.Jobs(standing)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(json.dumps({"failed": str(error)[:300]}), file=words, flush=True)
        return
    size = data_bytes() or 0
    limit_growth(MEMORY_BYTES, for_good=True)
    print(json.dumps({"ready": True}), file=words, flush=True)
    for line in sys.stdin:
        try:
            job = json.loads(line)
            said = jobs.do(job["job"], job["arguments"])
            said["last"] = "last" in said or (data_bytes() or 0) > size + _KEPT_BYTES
            written = json.dumps(said)
        except BaseException as error:  # noqa: BLE001 - a library's panic is no Exception
            written = json.dumps(_flaw(error))
        print(written, file=words, flush=True)
    os._exit(0)  # llama.cpp's threads are not waited for


def _flaw(error: BaseException) -> dict[str, Any]:
    """Return an answer that tells where an error came from, without its message, which may have a client's text."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    said = {"flaw": f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}"}
    if not isinstance(error, Exception):
        said["refused"] = "the library that compiles it has failed on it. Change it."
    return said


def _small_stacks() -> None:
    """Give the threads of libraries small stacks, too; a limit of the process would come too late for them."""
    library = ctypes.CDLL(None)
    if hasattr(library, "pthread_setattr_default_np"):
        attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
        library.pthread_attr_init(attribute)
        library.pthread_attr_setstacksize(attribute, ctypes.c_size_t(STACK_BYTES))
        library.pthread_setattr_default_np(attribute)


if __name__ == "__main__":
    main()
