"""llama.cpp's own server with the bundled model, in a process of its own, for tests that need the real protocol."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unilect.demo import MODEL

_PROGRAM = Path(__file__).parents[3] / "bench" / "llama_server.py"
CONTEXT = 512


@contextmanager
def llama_server(model: Path = MODEL, ranks: bool = False) -> Iterator[str]:
    """The URL of a running llama-server: two requests at a time, CONTEXT tokens each; `ranks` has it rank documents."""
    process = subprocess.Popen(
        [sys.executable, _PROGRAM, model, "0", "2", str(CONTEXT), "1", *["rank"] * ranks],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()  # told to end, it sometimes waits for a connection that has gone
        process.communicate()
