"""The route for the logs of engines: what their processes write to stderr, for an operator who looks at it or follows it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiohttp import web
from aiohttp.hdrs import METH_HEAD

from unilect.core.errors import InvalidRequest, UnsupportedOperation
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.line_log import LineLog
from unilect.runtime.logs import escape, stamp_utc
from unilect.runtime.redact import redact
from unilect.web.route import Route

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_LOOK_S = 1.0  # from one look for new processes, as of a reload, to the next
_HEADERS = {
    "Content-Type": "text/plain; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class EngineLogs:
    """
    The logs of the engines of a server.

    Args:
        registry: Its models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ended = False
        self._waiting: set[asyncio.Event] = set()

    def routes(self) -> list[Route]:
        """Return the routes about logs."""

        async def read_logs(request: web.Request) -> web.StreamResponse:
            """
            Return the last `lines` (200) that engines wrote to stderr, of one `model` or of all; with `follow=true` also those to come.

            An engine may write pieces of what clients say.
            """
            lines, follows = _number(request), _flag(request)
            reader = _Reader(self._registry, request.query.get("model"))
            if not follows or request.method == METH_HEAD:
                return web.Response(body=reader.read(lines), headers=_HEADERS)
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            with self._wait() as event:
                await response.write(reader.read(lines))
                while not self._ended:
                    with reader.watch(event), suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await event.wait()
                    event.clear()
                    if text := reader.read():
                        await response.write(text)
            await response.write_eof()
            return response

        return [Route("GET", "/logs", read_logs, summary="The logs of engines")]

    def end(self) -> None:
        """End what follows them: the server ends."""
        self._ended = True
        for event in self._waiting:
            event.set()

    @contextmanager
    def _wait(self) -> Iterator[asyncio.Event]:
        """Yield what a reader waits for."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)


class _Reader:
    """
    A reader of the logs of all models, or of one.

    Raises:
        ModelNotFound: There is no such model.
        UnsupportedOperation: It runs on another server.
    """

    def __init__(self, registry: Registry, name: str | None) -> None:
        self._registry = registry
        self._counts: dict[LineLog, int] = {}
        model = None if name is None else registry.get(name).base
        self._name = None if model is None else model.name
        if model is not None and not model.runs_locally:
            raise UnsupportedOperation(
                f"The model `{model.name}` runs on another server, which has its log."
            )

    def read(self, most: int | None = None) -> bytes:
        """Return the lines that it has not read yet, in the order of their times: the last `most` of them."""
        found, logs = [], self._logs()
        self._counts = {log: count for log, count in self._counts.items() if log in logs}
        for log, name in logs.items():
            lines = log.since(count := self._counts.get(log, 0))
            lost = log.count - count - len(lines)
            if lost and count:
                text = f"{stamp_utc(lines[0].at)} {name}: [{lost} lines came faster than they were read]"
                found.append((lines[0].at, text))
            found += [
                (line.at, f"{stamp_utc(line.at)} {name}[{line.pid}]: {redact(line.text)}")
                for line in lines
            ]
            self._counts[log] = log.count
        found.sort(key=lambda one: one[0])
        texts = [escape(text) for _, text in found]
        return "".join(f"{text}\n" for text in (texts if most is None else texts[-most:])).encode()

    @contextmanager
    def watch(self, event: asyncio.Event) -> Iterator[None]:
        """Have an event set while there are lines that it has not read."""
        logs = self._logs()
        if any(log.count > self._counts.get(log, 0) for log in logs):
            event.set()
        for log in logs:
            log.watchers.add(event.set)
        try:
            yield
        finally:
            for log in logs:
                log.watchers.discard(event.set)

    def _logs(self) -> dict[LineLog, str]:
        """Return the logs, each with the name of the first model that it is about; those of models with other processes are others."""
        found: dict[LineLog, str] = {}
        for model in self._models():
            for member in model.pool.members:
                for life in member.backend.children:
                    found.setdefault(life.log, model.name)
        return found

    def _models(self) -> list[Model]:
        models = (*self._registry.bases, *self._registry.leaving)
        return [one for one in models if self._name in (None, one.name)]


def _number(request: web.Request) -> int:
    """
    Return how many lines are wanted.

    Raises:
        InvalidRequest: That is no number.
    """
    text = request.query.get("lines", "200")
    if not text.isdecimal() or len(text) > 6 or not int(text):
        raise InvalidRequest("lines: expected a number from 1 to 999999.", param="lines")
    return int(text)


def _flag(request: web.Request) -> bool:
    """
    Return True if lines to come are wanted, too.

    Raises:
        InvalidRequest: It is neither true nor false.
    """
    found = _FLAGS.get(request.query.get("follow", "false"))
    if found is None:
        raise InvalidRequest("follow: expected true or false.", param="follow")
    return found
