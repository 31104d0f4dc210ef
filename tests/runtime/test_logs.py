"""Tests of unilect.runtime.logs."""

import errno
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import characters, text

from support.servers.serving import serve
from unilect.runtime.logs import LogFormat, LogSink, SinkHandler, escape, json_line, stamp_utc

PATIENCE_S = 20.0


class Stderr:
    """A stderr that a test can block and break."""

    def __init__(self) -> None:
        self.data = b""
        self.open, self.refused, self.taken = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.open.set()
        self.error: OSError | None = None
        self.most = 2**16

    def write(self, data: bytes) -> int:
        """Take bytes, as `os.write` does."""
        assert self.open.wait(PATIENCE_S)
        if self.error is not None:
            self.refused.set()
            raise self.error
        self.data += data[: self.most]
        self.taken.set()
        return min(len(data), self.most)

    @property
    def texts(self) -> list[str]:
        """The lines, without time and level."""
        return [line.split(" ", 3)[3] for line in self.data.decode().splitlines()]


def test_nobody_reads() -> None:
    """While stderr blocks, adding lines blocks nobody, the memory is bounded, and what was dropped is told later in one line."""
    stderr = Stderr()
    stderr.open.clear()
    sink = LogSink(stderr.write, max_lines=100, batch_s=0)
    sink.add("first")
    until_taken(sink)
    for number in range(10_000):
        sink.add(f"line {number}")

    assert 9_900 == sink.lost
    stderr.open.set()
    sink.close(PATIENCE_S)
    kept = [f"line {number}" for number in range(100)]
    assert {"first", *kept, "9900 log lines were lost: stderr could not be written"} == {
        *stderr.texts
    }
    assert kept == [text for text in stderr.texts if text.startswith("line")]


def until_taken(sink: LogSink) -> None:
    """Wait until the thread has the lines in its hands."""
    deadline = time.monotonic() + PATIENCE_S
    while sink._lines:
        assert time.monotonic() < deadline
        time.sleep(0)


def test_long_lines() -> None:
    """The queue is bounded in bytes, too."""
    stderr = Stderr()
    stderr.open.clear()
    sink = LogSink(stderr.write, max_bytes=10_000, batch_s=0)
    sink.add("first")
    until_taken(sink)
    for _ in range(100):
        sink.add("x" * 1000)

    assert 90 < sink.lost < 100
    stderr.open.set()
    sink.close(PATIENCE_S)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF])
def test_stderr_breaks_for_a_while(number: int) -> None:
    """A moment in which stderr refuses costs the lines of that moment, tells how many, and ends nothing."""
    stderr = Stderr()
    stderr.error = OSError(number, os.strerror(number))
    sink = LogSink(stderr.write, batch_s=0, retry_s=0.001)
    sink.add("lost")
    assert stderr.refused.wait(PATIENCE_S)
    stderr.error = None
    assert stderr.taken.wait(PATIENCE_S)  # what was lost is told without a further line
    sink.add("kept")
    sink.close(PATIENCE_S)

    assert ["1 log line was lost: stderr could not be written", "kept"] == stderr.texts


def test_a_full_pipe_that_does_not_block() -> None:
    """A pipe that somebody has made non-blocking gets every line, whole."""
    stderr = Stderr()
    stderr.error, stderr.most = BlockingIOError(errno.EAGAIN, "full"), 7
    sink = LogSink(stderr.write, batch_s=0, retry_s=0.001)
    sink.add("one line")
    assert stderr.refused.wait(PATIENCE_S)
    stderr.error = None
    sink.close(PATIENCE_S)

    assert ["one line"] == stderr.texts


def test_a_torn_line() -> None:
    """After a line that was cut off by an error the next one begins on a line of its own."""
    stderr = Stderr()
    stderr.most = 30
    sink = LogSink(stderr.write, batch_s=0, retry_s=0.001)
    write = stderr.write

    def once(data: bytes) -> int:
        taken = write(data)
        stderr.error = OSError(errno.ENOSPC, "full")
        return taken

    sink._write = once
    sink.add("x" * 100)
    assert stderr.refused.wait(PATIENCE_S)
    stderr.most, stderr.error, sink._write = 2**16, None, write
    sink.add("next")
    sink.close(PATIENCE_S)

    assert "next" == stderr.texts[-1]
    assert 3 == len(stderr.texts)


def test_the_end_is_not_held_up() -> None:
    """The end of the process waits only so long for a stderr that blocks."""
    stderr = Stderr()
    stderr.open.clear()
    sink = LogSink(stderr.write, batch_s=0)
    sink.add("never")
    sink.close(0.01)

    assert b"" == stderr.data
    stderr.open.set()


def test_records() -> None:
    """Records come with their time, level and traceback, and one with wrong arguments is logged all the same."""
    stderr = Stderr()
    handler = SinkHandler(LogSink(stderr.write, batch_s=0))
    logger = logging.Logger("x")
    logger.addHandler(handler)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed: %d", 7)
    logger.warning("%d", "no number")
    handler.close()

    told = stderr.data.decode().splitlines()
    assert told[0].endswith(" ERROR it failed: 7")
    assert "  ValueError: why" in told
    assert told[-1].endswith(" WARNING '%d' ('no number',)")


WORDS = "secret words"


class Unspeakable:
    """A line, and an argument of a record, that cannot be made: its error has the words of whoever chose them."""

    def text(self) -> str:
        """Fail."""
        raise ZeroDivisionError(WORDS)

    message = __str__ = __repr__ = text

    def fields(self) -> dict[str, Any]:
        """There are none."""
        return {}


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_line_that_cannot_be_made(form: LogFormat) -> None:
    """A line that cannot be formatted is lost alone, told with its reason and its calls once, and the lines around it are written."""
    stderr = Stderr()
    handler = SinkHandler(LogSink(stderr.write, batch_s=0, form=form))
    logger = logging.Logger("x")
    logger.addHandler(handler)
    for number in range(2):
        logger.warning("before %d", number)
        handler.sink.add_later(Unspeakable())
        logger.warning("%s", Unspeakable())
        logger.warning("after %d", number)
    handler.close()

    log = stderr.data.decode()
    lost = "1 log line was lost: it could not be formatted (ZeroDivisionError in text)"
    assert 4 == log.count(lost)
    assert 1 == log.count("runtime/test_logs.py")  # the calls
    assert WORDS not in log
    told = [re.search(r"(before|after) \d", line) for line in log.splitlines()]
    assert ["before 0", "after 0", "before 1", "after 1"] == [one[0] for one in told if one]
    if form == "json":
        assert all(json.loads(line)["message"] for line in log.splitlines())


def test_a_line_while_a_line_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the garbage collector logs while a line is added, as a task that failed unheard does, locks nobody up."""
    stderr = Stderr()
    sink = LogSink(stderr.write, batch_s=0)
    collected: list[str] = ["collected"]

    class Lines(deque[str]):
        def append(self, line: str) -> None:
            if collected:
                sink.add(collected.pop())
            super().append(line)

    monkeypatch.setattr(sink, "_lines", Lines())
    adding = threading.Thread(target=sink.add, args=("first",), daemon=True)
    adding.start()
    adding.join(PATIENCE_S)

    assert not adding.is_alive()
    sink.close(PATIENCE_S)
    assert {"first", "collected"} == set(stderr.texts)


HOSTILE = [
    "\r\nHTTP/1.1 200 OK",
    "\n2026-01-01 00:00:00.000 ERROR forged",
    '\n{"level": "error", "message": "forged"}',
    "\x1b[2J\x1b]0;title\x07",
    "\u2028line\u2029paragraph\x85next\x0bvertical\x0cpage\x1cfile",
    "\x00nul",
    "\ud800half a pair",
    '"quoted" \\ and \\n',
    "\u202eright to left",
    "x" * 1_000_000,
]


def written(form: LogFormat, log: Any) -> str:
    """What a handler writes of the records that `log` logs with a logger."""
    stderr = Stderr()
    handler = SinkHandler(LogSink(stderr.write, batch_s=0, form=form), lambda: "req_1")
    logger = logging.Logger("unilect")
    logger.addHandler(handler)
    log(logger)
    handler.close()
    return stderr.data.decode()


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words(words: str) -> None:
    """Whatever a record says, it is one line: in text without control characters, in JSON with its words whole."""

    def log(logger: logging.Logger) -> None:
        logger.warning("upstream: %s", words)

    console = written("console", log)
    assert 1 == len(console.splitlines())
    assert console.removesuffix("\n").isprintable()
    as_json = written("json", log)
    assert 1 == len(as_json.splitlines())
    line = json.loads(as_json)
    assert f"upstream: {words}" == line["message"]
    assert {"level": "warning", "logger": "unilect", "request_id": "req_1"}.items() <= line.items()


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_forges_no_line(form: LogFormat) -> None:
    """An exception's own words begin no line of the log."""

    def log(logger: logging.Logger) -> None:
        try:
            raise ValueError("\n2026-01-01 00:00:00.000 ERROR forged")
        except ValueError:
            logger.exception("it failed")

    lines = written(form, log).splitlines()
    assert 1 == sum(not line.startswith("  ") for line in lines)
    if form == "json":
        assert "ValueError: \n2026-01-01" in json.loads(lines[0])["exception"]


def test_the_time_of_a_json_line() -> None:
    """A line's time is RFC 3339 in UTC, with milliseconds."""
    assert "1970-01-02T00:00:01.250Z" == stamp_utc(86401.25)
    line = json.loads(json_line("x", "ERROR", 0.0, {"status": 200}))
    assert {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "error",
        "message": "x",
        "status": 200,
    } == line


def test_lost_lines_are_told_as_json() -> None:
    """What tells that lines were lost has the format of the others."""
    stderr = Stderr()
    stderr.open.clear()
    sink = LogSink(stderr.write, max_lines=1, batch_s=0, form="json")
    sink.add("first")
    until_taken(sink)
    sink.add("kept")
    sink.add("lost")
    stderr.open.set()
    sink.close(PATIENCE_S)

    messages = [json.loads(line)["message"] for line in stderr.data.decode().splitlines()]
    assert {"first", "kept", "1 log line was lost: stderr could not be written"} == {*messages}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("console", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING 1 of 2"),
        (
            "json",
            r'\{"time": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "level": "warning", "message": "1 of 2", "logger": "x", "request_id": "req_7"\}',
        ),
    ],
)
def test_log_to_stderr(form: str, expected: str) -> None:
    """All records of the level and above go to stderr in the format, those of other packages too."""
    script = (
        "import logging; from unilect.runtime.logs import log_to_stderr; "
        f"log_to_stderr('warning', {form!r}, lambda: 'req_7'); "
        "logging.getLogger('x').info('hidden'); logging.getLogger('x').warning('%d of %d', 1, 2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert re.fullmatch(expected, done.stderr.removesuffix("\n")), done.stderr


def test_what_python_prints() -> None:
    """As JSON the log tells warnings, and the errors that nobody catches: of the process, of a thread, and of what cannot raise."""
    script = (
        "import threading, warnings\n"
        "from unilect.runtime.logs import log_to_stderr\n"
        "log_to_stderr('info', 'json')\n"
        "class Odd:\n    def __del__(self): raise ValueError('ignored')\n"
        "warnings.warn('a warning')\n"
        "Odd()\n"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()\n"
        "raise RuntimeError('the last')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]

    assert "a warning" in lines[0]["message"]
    found = ["ValueError: ignored", "ZeroDivisionError", "RuntimeError: the last"]
    assert all(word in line["exception"] for word, line in zip(found, lines[1:], strict=True))
    assert 1 == done.returncode


def test_a_server_that_cannot_start_says_so_as_json() -> None:
    """Where the log is JSON, why a server does not start is a line of it, and stdout has none."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "unilect", "serve", "m=echo:hi", "--port", port]
        env = os.environ | {"UNILECT_LOG_FORMAT": "json"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)

    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert "critical" == last["level"]
    assert last["message"].startswith(f"port: cannot listen on 127.0.0.1:{port}")
    assert ("", 1) == (done.stdout, done.returncode)


def test_a_server_that_logs_json() -> None:
    """Every line on the stderr of a server is JSON: of its start, of requests, of bytes that are no HTTP, and of its end."""
    env = {"UNILECT_LOG_FORMAT": "json", "UNILECT_LOG_LEVEL": "debug"}
    with serve("m=echo:hi", env=env) as server:
        for head in (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"GET /\x1b[2J HTTP/9.9\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
                client.sendall(head + b"Connection: close\r\n\r\n")
                while client.recv(4096):
                    pass
        log = server.log.read_bytes
        deadline = time.monotonic() + PATIENCE_S
        while b"no HTTP" not in log():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(server.pid, signal.SIGTERM)
        while b'"stopping"' not in log():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lines = [json.loads(line) for line in log().decode().splitlines()]

    assert {"/healthz"} == {line["path"] for line in lines if "status" in line}
    assert all({"time", "level", "message"} <= line.keys() for line in lines)


@given(text(characters(codec=None), max_size=200))
def test_any_text(words: str) -> None:
    """Whatever others have chosen is one line in either format, and whole in JSON."""
    assert escape(words).isprintable()
    escape(words).encode()  # no half of a pair is left
    line = json_line(words, "INFO", 0.0, {"path": words})
    assert 1 == len(line.splitlines())
    assert line.isascii()
    decoded = json.loads(line)
    # two halves of a pair that stand side by side are read as the pair
    whole = words.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert decoded["message"] == decoded["path"] == whole


def test_lines_of_many_threads() -> None:
    """Lines that eight threads add at once all come out, those of each in their order, and wake the thread whenever it rests."""
    stderr = Stderr()
    sink = LogSink(stderr.write, batch_s=0)

    def add(name: int) -> None:
        for number in range(500):
            sink.add(f"{name} {number}")

    adding = [threading.Thread(target=add, args=(name,)) for name in range(8)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join(PATIENCE_S)
    until_taken(sink)
    sink.close(PATIENCE_S)

    assert 0 == sink.lost
    for name in range(8):
        of_one = [int(text.split()[1]) for text in stderr.texts if text.startswith(f"{name} ")]
        assert of_one == list(range(500))
