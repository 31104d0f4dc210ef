"""
The helper process: reads jobs from stdin, one JSON line each, does each with limits, and answers on stdout, one JSON line each.

An answer is `{"done": value}`, or `{"refused": why}`; with `"last": true` the process has grown too large and is to be replaced.
What a job needs of memory, stack and time is bounded, so that it ends here what would end an engine; the stacks are smaller than
those of the engines, so that what passes here passes there.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

STACK_BYTES = 1024 * 1024
MEMORY_BYTES = 512 * 1024 * 1024  # for one job, beside what a fresh process has
_KEPT_BYTES = 128 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_ATTRIBUTE_BYTES = 128  # more than any system's pthread_attr_t has


def main() -> None:
    """Serve until stdin ends."""
    parent, standing = int(sys.argv[1]), sys.argv[2]
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    _die_with(parent)
    _go_first()
    _small_stacks()
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(words, standing))
    worker.start()
    worker.join()


def _serve(words: Any, standing: str) -> None:
    try:
        from unilect.constraints import _jobs

        jobs = _jobs.Jobs(standing)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(json.dumps({"failed": str(error)[:300]}), file=words, flush=True)
        return
    size = _limit_memory()
    print(json.dumps({"ready": True}), file=words, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        said = jobs.do(job["job"], job["arguments"])
        if (_data_bytes() or 0) > (size or 0) + _KEPT_BYTES:
            said["last"] = True
        print(json.dumps(said), file=words, flush=True)
    os._exit(0)  # llama.cpp's threads are not waited for


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the parent dies, also if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _go_first() -> None:
    """Where memory runs out, this process is the one to go, and it leaves no core."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _small_stacks() -> None:
    """Give the threads of libraries small stacks, too; a bound of the process would come too late for them."""
    library = ctypes.CDLL(None)
    if hasattr(library, "pthread_setattr_default_np"):
        attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
        library.pthread_attr_init(attribute)
        library.pthread_attr_setstacksize(attribute, ctypes.c_size_t(STACK_BYTES))
        library.pthread_setattr_default_np(attribute)


def _limit_memory() -> int | None:
    """Bound what jobs may take beside what the process has now."""
    size = _data_bytes()
    if size is not None:
        most = size + MEMORY_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return size


def _data_bytes() -> int | None:
    """What RLIMIT_DATA counts; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
