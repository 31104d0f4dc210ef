"""Clients whose network vanishes: no FIN, no RST, no answer to anything."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import SERVER_ADDRESS, namespaces, why_not

from support.common.certificates import certificate, needs_openssl

CI = os.environ.get("CI") == "true"
CLIENTS = 25  # that stream, and as many that wait
PROGRAM = str(Path(__file__).parent / "half_open.py")
# a fifth of the server's own times; those are tried in CI, where the twenty seconds that they take cost nobody's patience
QUICK = json.dumps({"keep_alive_s": [2, 1, 1], "vanished_s": 2.5, "sweep_s": 0.2})
LATEST_S = 20.0
STARTS_S = 60.0


@contextmanager
def running(command: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """A process until the block ends; it ends with its stdin."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(process: "subprocess.Popen[str]", wanted: Callable[[str], bool], limit_s: float) -> str:
    """Read lines up to the one that is wanted; a process that has not said it in time is ended."""
    assert process.stdout is not None
    late = threading.Timer(limit_s, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if wanted(line.strip()):
                return line.strip()
    finally:
        late.cancel()
    raise AssertionError(f"not within {limit_s} s")


@pytest.mark.heavy
@needs_openssl
def test_clients_that_vanish(tmp_path: Path) -> None:
    """When the network of 25 clients who stream and 25 who wait is cut, all of their requests end within 20 s, with TLS too."""
    reason = why_not()
    if reason and not CI:
        pytest.skip(reason)
    with ThreadPoolExecutor(2) as executor:  # they only wait, for the server's timeouts
        for ended in [executor.submit(vanish, tmp_path, tls) for tls in (False, True)]:
            ended.result()


def vanish(tmp_path: Path, tls: bool) -> None:
    """Fail unless the requests of clients that vanish end, at a server of their own."""
    cert = certificate(tmp_path) if tls else ("", "")
    limits = "" if CI else QUICK
    server_command = [sys.executable, PROGRAM, "server", SERVER_ADDRESS, *cert, limits]
    with namespaces() as nets, running(nets.command(nets.server, server_command)) as server:
        url = until(server, lambda line: line.startswith("http"), STARTS_S)
        asking = [sys.executable, PROGRAM, "clients", url, str(CLIENTS)]
        with running(nets.command(nets.client, asking)) as clients:
            until(clients, lambda line: line == "asked", STARTS_S)
            until(server, lambda line: line == f"busy {2 * CLIENTS}", STARTS_S)

            nets.cut()
            until(server, lambda line: line == "busy 0", LATEST_S)
