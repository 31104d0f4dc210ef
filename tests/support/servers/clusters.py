"""
Real clusters, for tests: `unilect fleet start` and `unilect fleet join` as processes of their own, with ports and data of their own.

Several nodes on one machine have loopback addresses of their own (127.0.0.0/8); beyond 127.0.0.1 Ray listens on all addresses.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROW = 9
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
#: What one node of a test offers: it holds echo engines only.
SMALL = ("--resources", "cpu=1")


def need_ray() -> None:
    """Skip a module of tests where Ray is not installed; never where everything has to be tested."""
    if os.environ.get("CI") == "true":
        import ray  # noqa: F401
    pytest.importorskip("ray", reason="needs the extra fleet")


def free_row() -> int:
    """The first of a row of ports that nobody has."""
    for first in random.sample(range(20100, 32000, ROW), 200):
        with ExitStack() as held:
            try:
                for port in range(first, first + ROW):
                    held.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")


def need_serve() -> None:
    """Skip a module as `need_ray` does, and have Ray Serve imported: it warns of itself, which is an error in tests."""
    need_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.serve  # noqa: F401


@dataclass(frozen=True)
class Command:
    """
    A command that runs.

    Attributes:
        process: Of the command.
        log: The file that all its output goes to.
    """

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()

    def tree(self) -> list[psutil.Process]:
        """Its process, and all below it."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(STOP_TIMEOUT_S)


def environment(home: Path) -> dict[str, str]:
    """Of a command whose user's data is in this folder."""
    ours = {n: v for n, v in os.environ.items() if not n.startswith(("UNILECT_", "RAY_"))}
    return ours | {"HOME": str(home), "XDG_DATA_HOME": str(home), "OMP_NUM_THREADS": "1"}


@contextmanager
def running(
    home: Path, *words: str, until: str, env: Mapping[str, str] | None = None
) -> Iterator[Command]:
    """
    Run `unilect fleet ...` within the block.

    Args:
        until: It has started when it has printed this.

    Raises:
        RuntimeError: It did not start; the message holds its output.
    """
    log = home / f"{words[0]}-{random.randrange(10**6)}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "unilect", "fleet", *words],
            cwd=home,
            env=environment(home) | dict(env or {}),
            stdout=out,
            stderr=out,
        )
    command = Command(process, log)
    try:
        over = time.monotonic() + START_TIMEOUT_S
        while until not in command.text:
            if process.poll() is not None or time.monotonic() > over:
                raise RuntimeError(f"it did not start: {command.text}")
            time.sleep(0.05)
        yield command
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def said(home: Path, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code and the output of a command that ends."""
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "fleet", *words],
        cwd=home,
        env=environment(home) | dict(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


def status(home: Path, *words: str) -> Any:
    """What `unilect fleet status --json` prints."""
    code, text = said(home, "status", "--json", *words)
    assert code == 0, text
    return json.loads(text)
