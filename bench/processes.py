"""
Processes that a bench starts, and what they cost: CPU time and memory of a process and its children, from /proc.

A contestant is started in a session of its own, waited for until it answers, and killed with everything it started. Commands
are pinned to a core with `taskset`, so that a load generator does not take the time that it measures.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CACHE = Path(os.environ.get("UNILECT_BENCH_CACHE", Path.home() / ".cache" / "unilect-bench"))
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
START_TIMEOUT_S = 600.0  # vLLM compiles its model at its first start


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    port: int | None = None,
    core: int | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[int]:
    """
    Run a command while the block runs; yields its process id.

    Args:
        port: Wait until something listens there.
        core: The only core that it may use.
        environment: Set beside the bench's own.
        log: Where its output goes; nowhere by default.

    Raises:
        RuntimeError: It ended, or does not listen in time.
    """
    pinned = [*(["taskset", "-c", str(core)] if core is not None else []), *map(str, command)]
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(
            pinned,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
    try:
        if port is not None:
            wait_for_port(process, port, log)
        yield process.pid
    finally:
        stop(process)


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path | None) -> None:
    """
    Wait until a process listens.

    Raises:
        RuntimeError: It ended, or the time is over; with the end of its log.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    said = log.read_text(errors="replace")[-2000:] if log else "(no log)"
    raise RuntimeError(f"{process.args!r} does not listen on {port}:\n{said}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session; by force after five seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def tree(pid: int) -> list[int]:
    """A process and everything that it started."""
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, thread.read_text().split())
        except OSError:
            continue
    return [pid, *(found for child in children for found in tree(child))]


def command(pid: int) -> str:
    """The command line of a process; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def cpu_s(pid: int, children: bool = True) -> float:
    """User and system time of a process so far, with its children unless told otherwise."""
    ticks = 0
    for one in tree(pid) if children else [pid]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def rss_mb(pid: int, children: bool = True) -> float:
    """Resident memory of a process, with its children unless told otherwise."""
    pages = 0
    for one in tree(pid) if children else [pid]:
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * PAGE_BYTES / 2**20


def settle(pid: int, timeout_s: float = 20.0) -> None:
    """Wait until a process tree has nothing left to do."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = cpu_s(pid)
        time.sleep(0.3)
        if cpu_s(pid) - before <= 0.02:
            return


def post(
    port: int, path: str, body: bytes, key: str = "", timeout_s: float = 120.0
) -> tuple[int, bytes]:
    """Status and body of one POST on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until_ready(port: int, path: str, body: bytes, key: str = "") -> bytes:
    """
    POST until the answer has status 200: some servers listen before they can answer.

    Returns:
        The answer.

    Raises:
        RuntimeError: There is none in time.
    """
    deadline, status, answer = time.monotonic() + START_TIMEOUT_S, 0, b""
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):
            status, answer = post(port, path, body, key)
        if status == 200:
            return answer
        time.sleep(0.2)
    raise RuntimeError(f"port {port} is not ready: status {status} {answer[-500:]!r}")


def environment(name: str, *packages: str, pip: Sequence[str] = ()) -> Path:
    """
    The Python of a virtual environment in the cache, with packages in it; made with uv where it does not exist yet, or was made
    with others.

    Args:
        pip: Packages that pip brings first, from wherever its settings say (torch's small build).

    A contestant gets an environment of its own, so that its dependencies cannot meet ours.
    """
    folder = CACHE / name
    python, done = folder / "bin" / "python", folder / ".complete"
    content = " ".join([*pip, *packages])
    if not done.exists() or done.read_text() != content:
        print(f"making an environment for {name}", file=sys.stderr)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run(["uv", "venv", "-q", "--clear", "--python", version, folder], check=True)
        if pip:
            system = sys.base_prefix + "/bin/python3"
            command = [system, "-m", "pip", "--python", str(python), "install"]
            subprocess.run([*command, "-q", *pip, *packages], check=True)
        else:
            install = ["uv", "pip", "install", "-q", "--python", str(python)]
            subprocess.run([*install, *packages], check=True)
        done.write_text(content)
    return python


def unilect() -> Path:
    """The command beside the Python that runs the bench."""
    return Path(sys.executable).parent / "unilect"
