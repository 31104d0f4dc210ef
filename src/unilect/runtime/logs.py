"""
The one way to stderr: log records and access lines wait in a bounded queue, which one thread writes out.

1. Adding a line never waits: where nobody reads the pipe, or the disk is full, the thread stands still and the event loop does not.
2. The queue has bounds. What does not fit is dropped and counted, and so is what stderr refuses (EPIPE, ENOSPC, EIO); the
   next write that succeeds tells how many lines were lost. A line that cannot be formatted is lost alone, and told with its reason.
3. Lines come out in the order in which they were added, in one format: text for people, or one JSON object a line.
4. What others have chosen (a path, an upstream's words) adds no line: control characters are escaped in both formats, and the lines of
   a traceback are indented in text, and one string in JSON.
"""

import errno
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

BATCH_S = 0.1  # lines are gathered for so long: a write for each costs more than the JSON
RETRY_S = 0.25  # between attempts to write where stderr takes nothing
CLOSE_S = 1.0  # how long the end of the process waits for the last lines
MAX_LINES = 10_000
MAX_BYTES = 4 * 1024 * 1024
LATER_BYTES = 400  # what a line is counted as that is made when it is written

Write = Callable[[bytes], int]
LogFormat: TypeAlias = Literal["console", "json"]


@lru_cache(maxsize=2)
def _second(second: int, utc: bool = False) -> str:
    if utc:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


def stamp(seconds: float) -> str:
    """Return the local time for Unix seconds as the log has it, `2026-01-31 12:00:00.123`; what lasts a second is formatted once in it."""
    second = int(seconds)
    return f"{_second(second)}.{int((seconds - second) * 1000):03d}"


def stamp_utc(seconds: float) -> str:
    """Return the UTC time for Unix seconds as RFC 3339 has it, `2026-01-31T12:00:00.123Z`."""
    second = int(seconds)
    return f"{_second(second, utc=True)}.{int((seconds - second) * 1000):03d}Z"


def json_line(text: str, level: str, now: float, fields: Mapping[str, Any] | None = None) -> str:
    """
    Return a line of the JSON format, without its end.

    It is ASCII, so that nothing in it ends a line: neither U+2028 nor half a surrogate pair.
    """
    line = {"time": stamp_utc(now), "level": level.lower(), "message": text}
    return json.dumps(line if fields is None else {**line, **fields})


def escape(text: str) -> str:
    """Return a text in one line: control characters, and whatever else a terminal would obey, are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Line(Protocol):
    """A line of the log that is formatted when it is written: of few bytes, and of values that no longer change."""

    def text(self) -> str:
        """Return the line, without time and level; without control characters."""

    def message(self) -> str:
        """Return the message of the line as JSON."""

    def fields(self) -> Mapping[str, Any]:
        """Return the fields beside the message of the line as JSON."""


class LogSink:
    """
    Writes lines to a file descriptor, from a thread of its own that is started by the first line.

    Args:
        write: What takes bytes and returns how many it took, as `os.write` does; stderr's by default.
        max_lines, max_bytes: How much may wait.
        batch_s, retry_s: How long the thread gathers lines, and rests after a refused write.
        form: The format of the lines.

    Attributes:
        form: As given.
        lost: Lines that were dropped and have not been told of yet.
    """

    def __init__(
        self,
        write: Write | None = None,
        *,
        max_lines: int = MAX_LINES,
        max_bytes: int = MAX_BYTES,
        batch_s: float = BATCH_S,
        retry_s: float = RETRY_S,
        form: LogFormat = "console",
    ) -> None:
        self.form = form
        self.lost = 0
        self._write = write or _write_stderr
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self._batch_s, self._retry_s = batch_s, retry_s
        self._lock = threading.RLock()  # the garbage collector may run what logs while it is held
        self._lines = deque[str | tuple[float, Line]]()  # whose ends need no lock
        self._size = 0  # about: two threads may add at once, until the next batch
        self._torn = False  # the last write ended in the middle of a line
        self._some, self._closing, self._over = (threading.Event() for _ in range(3))
        self._takes = True
        self._thread: threading.Thread | None = None
        self._told_flaws: set[str] = set()  # of few kinds: each is one of the code

    def add(
        self,
        text: str,
        level: str = "INFO",
        now: float | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Log a line, soon; `fields` stand beside the text where the format is JSON."""
        line = self._line(text, level, time.time() if now is None else now, fields)
        self._put(line, len(line))

    def add_later(self, line: Line) -> None:
        """Log a line that the thread makes when it writes: for lines that come by the thousand, which are cheaper made in a row."""
        self._put((time.time(), line), LATER_BYTES)

    def _put(self, line: str | tuple[float, Line], size: int) -> None:
        size += self._size
        if len(self._lines) >= self._max_lines or size > self._max_bytes or not self._takes:
            self._count(1)
            return
        self._size = size
        self._lines.append(line)
        # cleared before a batch is taken: what comes later sets it again
        if not self._some.is_set():
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
        self._some.set()

    def _count(self, lost: int) -> None:
        with self._lock:
            self.lost += lost

    def _line(
        self, text: str, level: str, now: float, fields: Mapping[str, Any] | None = None
    ) -> str:
        if self.form == "json":
            return f"{json_line(text, level, now, fields)}\n"
        return f"{stamp(now)} {level} {text}\n"

    def _format(self, line: str | tuple[float, Line]) -> str:
        """Return the line; of one that cannot be formatted what went wrong, and the log goes on."""
        if isinstance(line, str):
            return line
        now, later = line
        try:
            if self.form == "json":
                return self._line(later.message(), "INFO", now, later.fields())
            return self._line(later.text(), "INFO", now)
        except Exception as error:  # noqa: BLE001
            return self._flaw(error)

    def lose(self, error: Exception) -> None:
        """Count a line that could not be formatted as lost, and log why."""
        self._put(line := self._flaw(error), len(line))

    def _flaw(self, error: Exception) -> str:
        """
        Return a line that tells of one that could not be formatted, with the calls that led there where that is new.

        The words of the error are left out: they may repeat what must not be shown.
        """
        calls = traceback.extract_tb(error.__traceback__)
        text = f"1 log line was lost: it could not be formatted ({type(error).__name__} in {calls[-1].name})"
        if text in self._told_flaws:
            return self._line(text, "ERROR", time.time())
        self._told_flaws.add(text)
        where = "".join(calls.format()).splitlines()
        if self.form == "json":
            return self._line(text, "ERROR", time.time(), {"exception": "\n".join(where)})
        return self._line("\n  ".join(map(escape, [text, *where])), "ERROR", time.time())

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits, for so long at most; later lines are lost."""
        self._takes = False
        self._closing.set()
        self._some.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._over.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._closing.wait(self._batch_s)
            self._some.clear()
            last = self._closing.is_set()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            self._size = 0
            with self._lock:
                lost, self.lost = self.lost, 0
            written = self._write_all(self._format_loss(lost) + "".join(map(self._format, lines)))
            if not written:
                self._count(lost + len(lines))
                self._closing.wait(self._retry_s)
                self._some.set()  # to tell what was lost as soon as stderr takes it
            if last:
                return

    def _format_loss(self, lost: int) -> str:
        if not lost:
            return ""
        lines = "1 log line was" if lost == 1 else f"{lost} log lines were"
        told = f"{lines} lost: stderr could not be written"
        return self._line(told, "WARNING", time.time())

    def _write_all(self, text: str) -> bool:
        """Write a batch; false where stderr refuses it."""
        rest = ("\n" * self._torn + text).encode(errors="backslashreplace")
        while rest:
            try:
                taken = self._write(rest)
            except BlockingIOError:  # who shares the pipe has made it non-blocking
                if self._over.wait(self._retry_s):
                    return False
            except (OSError, ValueError):
                return False
            else:
                if taken:
                    self._torn = rest[taken - 1 : taken] != b"\n"
                rest = rest[taken:]
        return True


_TRACES = logging.Formatter()


class SinkHandler(logging.Handler):
    """
    Hands log records to a sink.

    Args:
        about: The id of the current request, for records as JSON; empty where there is none.
    """

    def __init__(self, sink: LogSink, about: Callable[[], str] = str) -> None:
        super().__init__()
        self.sink = sink
        self._about = about

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record, with its traceback where it has one."""
        try:
            self._add(record)
        except Exception as error:  # noqa: BLE001 - no fault of whoever logs
            self.sink.lose(error)

    def _add(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit their message
            text = f"{record.msg!r} {record.args!r}"
        if self.sink.form == "json":
            self.sink.add(text, record.levelname, record.created, self._fields(record))
            return
        lines = [text, *self._trace(record).splitlines()]
        self.sink.add("\n  ".join(map(escape, lines)), record.levelname, record.created)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {"logger": record.name}
        if request_id := self._about():
            fields["request_id"] = request_id
        if trace := self._trace(record):
            fields["exception"] = trace
        return fields

    @staticmethod
    def _trace(record: logging.LogRecord) -> str:
        if not record.exc_info:
            return record.exc_text or ""
        return _TRACES.formatException(record.exc_info)

    def close(self) -> None:
        """Write what waits; `logging.shutdown` calls it at exit."""
        self.sink.close()
        super().close()


def log_to_stderr(
    level: str, form: LogFormat = "console", about: Callable[[], str] = str
) -> SinkHandler:
    """
    Send all records of a level and above to stderr from now on; the handler's `close` ends that. As JSON, so does all that Python would
    print there.

    Args:
        form: The format of the lines.
        about: As of `SinkHandler`.
    """
    handler = SinkHandler(LogSink(form=form), about)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        _log_what_python_prints(logging.getLogger("python"))
    return handler


def _log_what_python_prints(log: logging.Logger) -> None:
    """Have warnings and the tracebacks of errors that nobody catches logged: whoever reads JSON can read nothing else."""
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: log.critical("an error ends the process", exc_info=error)
    threading.excepthook = lambda of: log.critical(
        "an error ends a thread", exc_info=_error(of.exc_value)
    )
    sys.unraisablehook = lambda of: log.error(
        of.err_msg or "an error is ignored", exc_info=_error(of.exc_value)
    )


def _error(error: BaseException | None) -> Any:
    return None if error is None else (type(error), error, error.__traceback__)


def sink_of(logger: logging.Logger) -> LogSink | None:
    """Return the sink that a logger's records end in, if there is one."""
    found: logging.Logger | None = logger
    while found is not None:
        for handler in found.handlers:
            if isinstance(handler, SinkHandler):
                return handler.sink
        found = found.parent if found.propagate else None
    return None


def _write_stderr(data: bytes) -> int:
    """
    Write to stderr, below Python's own buffer.

    Raises:
        OSError: It is closed, or takes no more.
    """
    if sys.stderr is None:
        raise OSError(errno.EBADF, "there is no stderr")
    return os.write(sys.stderr.fileno(), data)
