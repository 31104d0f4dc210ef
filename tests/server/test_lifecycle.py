"""server.py, as processes: signals, a stderr that nobody reads, and the files that a process may open."""

import asyncio
import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from support.backends.loopback import served

STARTS_S = 60.0
CHUNK = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Upstream:
    """
    A model on another server, which streams one word and waits for a test to let it finish.

    Attributes:
        finish: Set when it may.
    """

    def __init__(self) -> None:
        self.finish = threading.Event()

    async def models(self, request: web.Request) -> web.StreamResponse:
        """Tell which model this is."""
        return web.json_response({"object": "list", "data": [{"id": "theirs", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Stream."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(CHUNK).encode() + b"\n\n")
        while not self.finish.is_set():
            await asyncio.sleep(0.01)
        await response.write(b"data: " + json.dumps(END).encode() + b"\n\ndata: [DONE]\n\n")
        return response


@pytest.fixture
def upstream() -> Iterator[tuple[Upstream, str]]:
    """A model elsewhere, and its URL."""
    model = Upstream()
    routes = web.post("/v1/chat/completions", model.chat), web.get("/v1/models", model.models)
    with served(*routes) as port:
        yield model, f"http://127.0.0.1:{port}/v1"
        model.finish.set()


@contextmanager
def started(url: str, *flags: str, **how: Any) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """`unilect serve` for the model at a URL, and its port; it heeds signals, also where the tests run with some ignored (nohup)."""
    command = [sys.executable, "-m", "unilect", "serve", f"m={url}", "--port", "0", *flags]
    how = {"preexec_fn": heed_signals} | how
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **how)
    late = threading.Timer(STARTS_S, process.kill)
    late.start()
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        found = re.search(r":(\d+)/v1", line)
        assert found is not None, line
        yield process, int(found.group(1))
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def heed_signals() -> None:
    """Signals do what they do by default."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def asked(
    port: int, method: str = "GET", path: str = "/healthz", body: bytes = b""
) -> socket.socket:
    """A connection on which a request was sent."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=STARTS_S)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def rest(sock: socket.socket, until: bytes | None = None) -> bytes:
    """What comes, up to a text or the end."""
    data = b""
    while until is None or until not in data:
        more = sock.recv(65536)
        if not more:
            assert until is None, data
            break
        data += more
    return data


def streaming(port: int) -> socket.socket:
    """A connection on which a stream has begun."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True})
    sock = asked(port, "POST", "/v1/chat/completions", body.encode())
    try:
        rest(sock, b"word ")
    except BaseException:
        sock.close()
        raise
    return sock


@pytest.mark.heavy
def test_half_sent_bodies(upstream: tuple[Upstream, str]) -> None:
    """Of thirty clients who send a large body but for its end, those beyond the budget are told to come again, and memory is bounded."""
    size = 15 * 2**20
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size + 1}\r\n\r\n"
    with started(upstream[1]) as (process, port), ExitStack() as stack:
        before = psutil.Process(process.pid).memory_info().rss
        clients = []
        for _ in range(30):
            sock = socket.create_connection(("127.0.0.1", port), timeout=STARTS_S)
            clients.append(stack.enter_context(sock))
            with suppress(OSError):  # refused before it was all sent
                sock.sendall(head.encode() + b"x" * size)
        answered, _, _ = select.select(clients, [], [], STARTS_S)
        assert answered
        told = rest(answered[-1], b"\r\n\r\n")
        grown = psutil.Process(process.pid).memory_info().rss - before
        with asked(port) as sock:
            healthy = rest(sock)

    assert told.startswith(b"HTTP/1.1 429 ")  # all of them are one caller
    assert b"Retry-After" in told
    assert grown < 300 * 2**20
    assert healthy.startswith(b"HTTP/1.1 200 ")


@pytest.mark.heavy
def test_many_silent_connections(upstream: tuple[Upstream, str], tmp_path: Path) -> None:
    """With 1,024 open files, 1,100 connections that send nothing lock nobody out, and what happened is logged."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    log = tmp_path / "log"
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        stderr = stack.enter_context(log.open("wb"))
        process, port = stack.enter_context(
            started(upstream[1], stderr=stderr, preexec_fn=few_files)
        )
        for _ in range(1100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with asked(port) as sock:
            assert rest(sock).startswith(b"HTTP/1.1 200 OK\r\n")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)

    told = log.read_text()
    most = int(re.findall(r"up to (\d+) connections at a time", told)[0])
    assert 100 < most < 1024
    closed = [int(number) for number in re.findall(r"closed (\d+) connections: silent", told)]
    assert 1100 - most <= sum(closed) <= 1100


@pytest.mark.heavy
def test_a_soft_limit_is_raised(upstream: tuple[Upstream, str], tmp_path: Path) -> None:
    """A low soft limit of open files is raised to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with started(upstream[1], stderr=subprocess.DEVNULL, preexec_fn=few_files) as (process, _):
        limits = Path(f"/proc/{process.pid}/limits").read_text()

    (soft,) = re.findall(r"Max open files +(\d+)", limits)
    assert hard == int(soft)


@pytest.mark.heavy
def test_no_descriptor_is_left(upstream: tuple[Upstream, str]) -> None:
    """With 64 open files and 200 busy clients those who have no place are refused, nothing spins, and then all is as before."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with ExitStack() as stack:
        _, port = stack.enter_context(
            started(upstream[1], stderr=subprocess.DEVNULL, preexec_fn=few_files)
        )
        first = stack.enter_context(streaming(port))
        for _ in range(200):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            try:
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            except ConnectionError:
                continue
        upstream[0].finish.set()
        assert rest(first).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        with asked(port) as last:
            assert rest(last).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_lets_answers_finish(
    upstream: tuple[Upstream, str], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGHUP and SIGTERM let a running stream finish, and the log tells which of them it was, what runs, and for how long."""
    log = tmp_path / "log"
    with log.open("wb") as stderr, started(upstream[1], stderr=stderr) as (process, port):
        with streaming(port) as sock:
            process.send_signal(number)
            until_log(log, "stopping")
            if number == signal.SIGHUP:  # the shell sends one, and the kernel another
                process.send_signal(number)
            upstream[0].finish.set()
            assert rest(sock).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert 0 == process.wait(STARTS_S)

    *_, got, stopping, request = log.read_text().splitlines()
    assert f"got {number.name}" in got
    assert stopping.endswith("stopping; 1 request is running, up to 30 s; a second Ctrl-C ends it")
    assert "/v1/chat/completions" in request  # in the order of the events


def test_a_second_signal_cuts_with_an_error(upstream: tuple[Upstream, str], tmp_path: Path) -> None:
    """A second Ctrl-C ends the waiting, and the stream that is cut gets its error."""
    log = tmp_path / "log"
    with log.open("wb") as stderr, started(upstream[1], stderr=stderr) as (process, port):
        with streaming(port) as sock:
            process.send_signal(signal.SIGHUP)
            until_log(log, "stopping")
            process.send_signal(signal.SIGINT)
            told = rest(sock)
        assert 0 == process.wait(STARTS_S)

    assert (
        b'data: {"error":{"message":"The server was stopped before the answer was complete.' in told
    )
    assert b"[DONE]" not in told
    (line,) = [line for line in log.read_text().splitlines() if "/chat/completions" in line]
    assert " 200 " in line
    assert "ended=error backend_unavailable " in line
    assert 'reason="The server was stopped before the answer was complete.' in line


def until_log(log: Path, text: str) -> None:
    """Wait until the log holds a text."""
    deadline = time.monotonic() + STARTS_S
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


@pytest.mark.heavy
def test_a_closed_terminal(upstream: tuple[Upstream, str]) -> None:
    """When the terminal is closed, with stdout and stderr on it, a running stream finishes and the server ends in order."""
    master, slave = pty.openpty()

    def take_terminal() -> None:
        heed_signals()
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with started(upstream[1], stdin=slave, stderr=slave, preexec_fn=take_terminal) as (
        process,
        port,
    ):
        os.close(slave)
        with streaming(port) as sock:
            os.close(master)
            until_refused(port)
            upstream[0].finish.set()
            assert rest(sock).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert 0 == process.wait(STARTS_S)


def until_refused(port: int) -> None:
    """Wait until nobody listens any more."""
    deadline = time.monotonic() + STARTS_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError("it still listens")


@pytest.mark.heavy
def test_nohup(upstream: tuple[Upstream, str]) -> None:
    """A server that was started with SIGHUP ignored keeps ignoring it."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started(upstream[1], stderr=subprocess.DEVNULL, preexec_fn=ignore) as (process, port):
        process.send_signal(signal.SIGHUP)
        with asked(port) as sock:
            assert rest(sock).startswith(b"HTTP/1.1 200 OK\r\n")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)


@pytest.mark.heavy
def test_a_stderr_that_nobody_reads(upstream: tuple[Upstream, str]) -> None:
    """A full pipe at stderr stops no request, and does not hold up the end."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with started(upstream[1], stderr=writing) as (process, port):
        os.close(writing)
        with socket.create_connection(("127.0.0.1", port), timeout=STARTS_S) as sock:
            for _ in range(300):  # 25 kB of lines
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                rest(sock, b"\r\n\r\nok\n")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)
    os.close(reading)


@pytest.mark.heavy
def test_a_stderr_that_breaks(upstream: tuple[Upstream, str]) -> None:
    """A pipe at stderr whose reader has gone stops no request."""
    reading, writing = os.pipe()
    with started(upstream[1], stderr=writing) as (process, port):
        os.close(writing)
        os.close(reading)
        for _ in range(3):
            with asked(port) as sock:
                assert rest(sock).startswith(b"HTTP/1.1 200 OK\r\n")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)


# The configuration is reloaded


@contextmanager
def configured(file: Path, **how: Any) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """`unilect serve` with a file and without a terminal, and its log."""
    command = [sys.executable, "-m", "unilect", "serve", "--port", "0", "--config", str(file)]
    environment = os.environ | {"XDG_DATA_HOME": str(file.parent)}
    how = {"preexec_fn": heed_signals, "start_new_session": True, "env": environment} | how
    log = file.with_suffix(".log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, **how)
    late = threading.Timer(STARTS_S, process.kill)
    late.start()
    assert process.stdout is not None
    try:
        assert b"answers at" in process.stdout.readline(), log.read_text()
        yield process, log
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def engines(process: "subprocess.Popen[bytes]") -> set[int]:
    """The processes of its engines."""
    return {
        child.pid
        for child in psutil.Process(process.pid).children()
        if any("gguf" in word for word in child.cmdline())
    }


def until(true: Callable[[], object]) -> None:
    """Return once something is so."""
    deadline = time.monotonic() + STARTS_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_hang_up_reloads(tmp_path: Path) -> None:
    """SIGHUP reloads a service: the engine of an unchanged model runs on, the one of a changed model is another one, and that of a removed model ends."""
    file = tmp_path / "unilect.toml"
    file.write_text("[models.a]\n[models.b]\n[models.c]\n")
    with configured(file) as (process, log):
        before = engines(process)
        file.write_text("[models.a]\n[models.b]\ncontext = 512\n")
        process.send_signal(signal.SIGHUP)
        until_log(log, "reloaded: removed c; restarted b")
        until(lambda: len(engines(process)) == 2)
        after = engines(process)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)

    assert 3 == len(before)
    assert 1 == len(before & after)


def test_signals_of_tools(tmp_path: Path) -> None:
    """SIGUSR1 and SIGUSR2, which tools that rotate logs send, end neither the server nor its engine, and are logged."""
    file = tmp_path / "unilect.toml"
    file.write_text("[models.a]\n")
    with configured(file) as (process, log):
        (engine,) = engines(process)
        status = Path(f"/proc/{engine}/status").read_text()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
            until_log(log, f"got {number.name}, which does nothing")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(STARTS_S)

    ignored = int(re.findall(r"SigIgn:\s*(\w+)", status)[0], 16)
    assert {signal.SIGUSR1, signal.SIGUSR2} <= {n for n in range(1, 32) if ignored >> n - 1 & 1}


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_during_a_reload(tmp_path: Path, number: signal.Signals) -> None:
    """A server that is stopped or killed while a reload starts models leaves no process behind, and SIGTERM ends it in order."""
    file = tmp_path / "unilect.toml"
    file.write_text("[models.a]\n")
    with configured(file) as (process, log):
        before = engines(process)
        slow = '[models.s]\nsource = "echo:"\noptions = { load_s = 3600.0 }\n'
        file.write_text(f"[models.a]\n[models.b]\n{slow}")
        process.send_signal(signal.SIGHUP)
        until(lambda: len(engines(process)) == 2)
        both = engines(process)
        process.send_signal(number)
        assert (0 if number == signal.SIGTERM else -number) == process.wait(STARTS_S)
        until(lambda: not any(map(psutil.pid_exists, both)))

    assert before < both
    assert "reloaded:" not in log.read_text()


@pytest.mark.heavy
def test_a_closed_terminal_reloads_nothing(tmp_path: Path) -> None:
    """A server with a file that was started in a terminal stops on SIGHUP, since its terminal may have been closed."""
    file = tmp_path / "unilect.toml"
    file.write_text('[models.a]\nsource = "echo:"\n')
    master, slave = pty.openpty()

    def take_terminal() -> None:
        heed_signals()
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    how = {"stdin": slave, "preexec_fn": take_terminal, "start_new_session": False}
    with configured(file, **how) as (process, log):
        os.close(slave)
        process.send_signal(signal.SIGHUP)
        assert 0 == process.wait(STARTS_S)
        os.close(master)

    assert "got SIGHUP" in log.read_text()
