"""
GET /events: all that an operator's page shows of a running server, as one stream of server-sent events.

A stream begins with an event `whole`; each later one, `change`, has what is new since the one before. Who comes back with
`Last-Event-ID` gets the changes in between, where they are still kept, and else a new `whole`. Each event is made once, however many
read it, and none is made while nobody reads. Counters are sampled all the time, so that a plot of the last hour has a beginning.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.hdrs import METH_HEAD
from msgspec import structs

from unilect.accounting.failures import Failures
from unilect.accounting.metrics import Metrics
from unilect.core.errors import RateLimited
from unilect.models.registry import Registry
from unilect.runtime.context import Requests
from unilect.runtime.memory import free_bytes
from unilect.runtime.tasks import Tasks
from unilect.server._admin_models import Descriptions
from unilect.server._admin_requests import describe_requests
from unilect.web.route import Route
from unilect.web.streaming import SERVER_SENT_EVENTS

TICK_S = 1.0
_QUIET_TICK_S = 10.0  # while nobody reads, and between two points of the last hour
_SECONDS, _TENS, _KEPT = (
    60,
    360,
    60,
)  # points of a minute and of an hour, and changes for who comes back
_SHARE = 20  # an event may take a twentieth of the time
MAX_READERS = 64
_FAILURES = 50
#: What changes by itself, as time passes: a reader can count.
_CLOCKS = frozenset({"age_s", "stops_in_s", "next_look_in_s", "load_left_s"})
_HEADERS = {
    "Content-Type": SERVER_SENT_EVENTS,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_encode = msgspec.json.Encoder().encode


class _Change(NamedTuple):
    """A change that is kept: its number, and its event."""

    number: int
    event: bytes


class Live:
    """
    The state of a server as it changes.

    Args:
        registry, metrics, requests, failures: Those of the server.
    """

    def __init__(
        self, registry: Registry, metrics: Metrics, requests: Requests, failures: Failures
    ) -> None:
        self._registry, self._metrics = registry, metrics
        self._requests, self._failures = requests, failures
        self._models = Descriptions(registry, metrics, requests)
        self._tasks = Tasks()
        self._boot = secrets.token_hex(4)  # a number of another start says nothing
        self._number = 0
        self._changes: deque[_Change] = deque(maxlen=_KEPT)
        self._seconds: deque[dict[str, float]] = deque(maxlen=_SECONDS)
        self._tens: deque[dict[str, float]] = deque(maxlen=_TENS)
        self._shown: dict[str, dict[str, Any]] = {}
        self._readers = 0
        self._came, self._ticked = asyncio.Event(), asyncio.Event()
        self._is_closed = False

    def open(self) -> None:
        """Begin to sample, unless that has begun or is over."""
        if not self._tens and not self._is_closed:
            self._sample()
            self._tasks.start("the samples of the page", self._run())

    async def shut(self) -> None:
        """End all streams. Idempotent."""
        self._is_closed = True
        self._ticked.set()
        await self._tasks.aclose()

    def routes(self) -> list[Route]:
        """Return the route of the stream."""

        async def follow_events(request: web.Request) -> web.StreamResponse:
            """
            Follow the server: models, requests, failures and counters, as server-sent events, the first of which, `whole`, has all.

            Each `change` has what is new since. `Last-Event-ID` goes on where an earlier stream ended.
            """
            if self._readers >= MAX_READERS:
                raise RateLimited(
                    f"{MAX_READERS} streams of events are open already.", retry_after_s=10
                )
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            if request.method != METH_HEAD:
                await self._send(response, request.headers.get("Last-Event-ID", ""))
            return response

        return [Route("GET", "/events", follow_events, summary="Follow the state of the server")]

    async def _send(self, response: web.StreamResponse, last_id: str) -> None:
        """Send events until the reader leaves or the server ends."""
        self.open()  # the admin API has this route where the page is off, too
        self._readers += 1
        self._came.set()
        try:
            boot, _, number = last_id.partition("-")
            at = (
                int(number)
                if boot == self._boot and number.isdecimal() and len(number) < 16
                else -1
            )
            while not self._is_closed:
                if not any(one.number == at + 1 for one in self._changes) and at != self._number:
                    at, event = await self._whole()
                    await response.write(event)
                for change in [one for one in self._changes if one.number > at]:
                    at = change.number
                    await response.write(change.event)
                await self._ticked.wait()
        finally:
            self._readers -= 1

    async def _run(self) -> None:
        """Sample, and make an event of what has changed while somebody reads."""
        while True:
            begin = time.monotonic()
            self._sample()
            if self._readers:
                await self._tick()
                self._ticked.set()
                self._ticked = asyncio.Event()
            else:
                self._came.clear()
            took = time.monotonic() - begin
            if self._readers:
                await asyncio.sleep(max(TICK_S, took * _SHARE))
                continue
            try:
                async with asyncio.timeout(_QUIET_TICK_S):
                    await self._came.wait()
            except TimeoutError:
                self._seconds.clear()  # a minute with gaps would be shown as one
                self._forget()

    def _sample(self) -> None:
        """Note the counters."""
        now = {"at": round(time.time(), 2), **self._metrics.totals()}
        meters = [one.meter for one in self._requests.values() if one.meter is not None]
        now["completion_tokens"] += sum(one.usage.completion_tokens for one in meters)
        residency = self._registry.residency
        now["memory"] = 0 if residency is None else residency.claimed
        now["memory_free"] = free_bytes() or 0  # of the machine; 0 where the system does not say
        self._seconds.append(now)
        if not self._tens or now["at"] - self._tens[-1]["at"] >= _QUIET_TICK_S:
            self._tens.append(now)

    async def _describe(self) -> dict[str, dict[str, Any]]:
        """Describe all that is shown, by its kind and its name."""
        # a model that a reload has replaced has the name of its successor, which is the one that is shown
        models = await self._models.of((*self._registry.leaving, *self._registry.bases))
        failures = self._failures.latest(_FAILURES)
        return {
            "models": {one["name"]: one for one in models},
            "requests": {one["id"]: one for one in describe_requests(self._requests)},
            "failures": {one.request_id: structs.asdict(one) for one in failures},
        }

    async def _whole(self) -> tuple[int, bytes]:
        """Return the event with all, and the number that the next change follows: that brings it up to date."""
        while not self._shown and not self._is_closed:
            await self._ticked.wait()
        residency = self._registry.residency
        body = {
            **{kind: list(shown.values()) for kind, shown in self._shown.items()},
            "memory_budget": None if residency is None else residency.budget,
            "seconds": list(self._seconds),
            "tens": list(self._tens),
        }
        return self._number, self._event("whole", self._number, body)

    async def _tick(self) -> None:
        """Make the event of what has changed."""
        before, now = self._shown, await self._describe()
        body: dict[str, Any] = {"point": self._seconds[-1] if self._seconds else None}
        for kind, shown in now.items():
            known = before.get(kind, {})
            if new := [one for name, one in shown.items() if _differs(known.get(name), one)]:
                body[kind] = new
            if gone := known.keys() - shown.keys():
                body[f"gone_{kind}"] = sorted(gone)
        self._shown = now
        self._number += 1
        self._changes.append(_Change(self._number, self._event("change", self._number, body)))

    def _forget(self) -> None:
        """Forget what was shown, which is of some time ago: who comes back gets all."""
        if self._shown:
            self._shown, self._number = {}, self._number + 1
            self._changes.clear()

    def _event(self, name: str, number: int, body: Mapping[str, Any]) -> bytes:
        head = f"id: {self._boot}-{number}\nevent: {name}\ndata: ".encode()
        return head + _encode(body) + b"\n\n"


def _differs(before: Any, now: Any) -> bool:
    """Return True if a reader has to be told: not for what only a clock changes."""
    if before == now:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() != now.keys() or any(
            name not in _CLOCKS and _differs(before[name], one) for name, one in now.items()
        )
    if isinstance(before, list) and isinstance(now, list):
        return len(before) != len(now) or any(map(_differs, before, now))
    return True
