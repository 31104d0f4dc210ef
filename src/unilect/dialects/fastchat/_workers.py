"""
The registered workers of a FastChat controller, and their models.

A worker without heartbeats for 90 s is removed, unless it registered without heartbeats. Its models are models of ours
while one worker has them; a name that the configuration has stays the configuration's, until a reload takes it out.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/controller.py)
"""

import asyncio
import logging
import math
import random
import time
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from unilect.config.model import NAME, ModelConfig
from unilect.core.errors import BackendTimeout, InvalidRequest, UnilectError
from unilect.dialects.fastchat._admission import worker_url
from unilect.http.client import HttpServer
from unilect.http.error_bodies import decode_body
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.tasks import Tasks, spawn_detached
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.web.site import BackgroundService

log = logging.getLogger("unilect")
HEART_BEAT_EXPIRATION_S = 90.0
STATUS_TIMEOUT_S = 5.0
MAX_WORKERS = 256
MAX_NAMES_EACH = 256
MAX_NAMES = 1024  # of all workers
MAX_STATUS_BYTES = 64 * 1024
ASKED_AT_ONCE = 16  # workers, when all are asked how they are
REFRESH_EVERY_S = 1.0
Dispatch = Literal["shortest_queue", "lottery"]
ModelName = Annotated[str, Meta(pattern=NAME)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Status(Struct, frozen=True):
    """A worker's report on itself: its models, its speed, and the number of its requests."""

    model_names: Annotated[list[ModelName], Meta(max_length=MAX_NAMES_EACH)] = []
    speed: Amount = 1
    queue_length: Amount = 0


class Registration(Struct, frozen=True):
    """POST /register_worker."""

    worker_name: str
    check_heart_beat: bool = True
    worker_status: Status | None = None
    multimodal: bool = False


class Worker(Struct):
    """
    A worker.

    Attributes:
        url: Its address, which is its name.
        connect_to: The IP address that its host had when it registered; None to look it up.
        status: What it said last.
        heard_of: When, by the event loop's clock.
    """

    url: str
    connect_to: str | None
    status: Status
    check_heart_beat: bool
    multimodal: bool
    heard_of: float


class Workers(BackgroundService):
    """
    All registered workers; a directory for `FastChatUpstream`.

    Args:
        registry: Where their models are added and removed.
        dispatch: How a worker is chosen: the one with the shortest queue for its speed, or by lot, faster ones more often.
        timeout_s: The longest silence of a worker in an answer.
        expiration_s: How long a worker may be silent.
    """

    def __init__(
        self,
        registry: Registry,
        dispatch: Dispatch = "shortest_queue",
        timeout_s: float = 300.0,
        expiration_s: float = HEART_BEAT_EXPIRATION_S,
    ) -> None:
        self._registry = registry
        self._dispatch = dispatch
        self._timeout_s = timeout_s
        self._expiration_s = expiration_s
        self._workers: dict[str, Worker] = {}
        self._added: dict[str, Model] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = -math.inf
        self._asking: dict[str, asyncio.Task[Status]] = {}
        self._work = Tasks()

    async def register(self, asked: Registration, connect_to: str | None = None) -> None:
        """
        Take a worker in, or take note of what has changed; without a status it is asked for one.

        Args:
            connect_to: The IP address that its URL leads to; None to look it up with each connection.

        Raises:
            InvalidRequest: Its name is no URL, or there are too many workers or models.
            UnilectError: It was asked and did not answer.
        """
        url = worker_url(asked.worker_name).url
        if url not in self._workers and len(self._workers) >= MAX_WORKERS:
            raise InvalidRequest(f"`worker_name`: there are {MAX_WORKERS} workers already.")
        status = asked.worker_status or await _status(_server(url, connect_to))
        known = self._workers.get(url)
        if len({*self.names(), *status.model_names}) > MAX_NAMES or (
            known is None and len(self._workers) >= MAX_WORKERS  # others came while it was asked
        ):
            raise InvalidRequest(
                f"`worker_name`: there are {MAX_WORKERS} workers or {MAX_NAMES} models already."
            )
        if known is None:
            log.info("FastChat worker %s registers %s", url, ", ".join(status.model_names))
        now = asyncio.get_running_loop().time()
        self._workers.pop(url, None)  # the last that came is asked last
        self._workers[url] = Worker(
            url, connect_to, status, asked.check_heart_beat, asked.multimodal, now
        )
        self._update()

    def beat(self, name: str, queue_length: float) -> bool:
        """Note that a worker lives; false where it is not known, and should register again."""
        worker = self._workers.get(name.rstrip("/"))
        if worker is None:
            return False
        worker.heard_of = asyncio.get_running_loop().time()
        worker.status = msgspec.structs.replace(worker.status, queue_length=queue_length)
        if any(name not in self._registry for name in worker.status.model_names):
            self._update()  # a reload has taken out what had its name
        return True

    async def refresh(self) -> None:
        """
        Ask every worker how it is, some at a time, and drop those that do not answer.

        That is done once for all who ask meanwhile, and goes on without them; who asks right after it is told what it found.
        """
        if self._refreshing is None:
            if asyncio.get_running_loop().time() < self._refreshed_at + REFRESH_EVERY_S:
                return
            self._refreshing = self._work.start("asking all workers", self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        at_once = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(worker: Worker) -> None:
            async with at_once:
                status = await self._ask(worker)
            if self._workers.get(worker.url) is not worker:
                return  # it has registered anew, or is gone
            if status is None:
                self._drop(worker.url, "does not answer")
            else:
                self._take_status(worker, status)

        try:
            await asyncio.gather(*(ask(worker) for worker in list(self._workers.values())))
        finally:
            self._refreshing = None
            self._refreshed_at = asyncio.get_running_loop().time()

    async def _ask(self, worker: Worker) -> Status | None:
        """Return a worker's status; None where it does not answer. Concurrent callers share one request."""
        task = self._asking.get(worker.url)
        if task is None:
            server = _server(worker.url, worker.connect_to)
            task = self._asking[worker.url] = spawn_detached(_status(server))
            task.add_done_callback(lambda _: self._asking.pop(worker.url, None))
        with suppress(UnilectError):
            return await asyncio.shield(task)
        return None

    def _take_status(self, worker: Worker, status: Status) -> None:
        """Take note of a worker's status; what would be too many models it may not bring."""
        if len({*self.names(), *status.model_names}) > MAX_NAMES:
            status = msgspec.structs.replace(status, model_names=worker.status.model_names)
        worker.status, worker.heard_of = status, asyncio.get_running_loop().time()
        self._update()

    def names(self, multimodal: bool | None = None) -> list[str]:
        """Return the models of all workers, sorted; with images, without, or both."""
        able = (
            worker
            for worker in self._workers.values()
            if multimodal is None or worker.multimodal == multimodal
        )
        return sorted({name for worker in able for name in worker.status.model_names})

    def status(self) -> Status:
        """Return all workers as if they were one, for a controller above this one."""
        statuses = [worker.status for worker in self._workers.values()]
        return Status(
            self.names(),
            sum(one.speed for one in statuses),
            sum(one.queue_length for one in statuses),
        )

    async def models(self) -> dict[str, bool]:
        """Return the models that there are, and whether each sees images."""
        seeing = set(self.names(multimodal=True))
        return {name: name in seeing for name in self.names()}

    async def address(self, model: str) -> str:
        """Return the URL of a worker of this model; empty where there is none. Its queue counts as one longer until it says otherwise."""
        able = [
            worker
            for worker in self._workers.values()
            if worker.status.speed > 0 and model in worker.status.model_names
        ]
        if not able:
            return ""
        if self._dispatch == "lottery":
            return random.choices(able, [worker.status.speed for worker in able])[0].url
        chosen = min(able, key=lambda worker: worker.status.queue_length / worker.status.speed)
        longer = min(chosen.status.queue_length + 1, 1e9)
        chosen.status = msgspec.structs.replace(chosen.status, queue_length=longer)
        return chosen.url

    def connect_to(self, address: str) -> str | None:
        """Return the IP address to which a worker's URL led when it registered."""
        worker = self._workers.get(address)
        return None if worker is None else worker.connect_to

    async def report_lost(self, address: str) -> None:
        """Ask a worker that cannot be reached once more, and drop it where it does not answer."""
        worker = self._workers.get(address)
        if worker is None or await self._ask(worker) is not None:
            return
        if self._workers.get(address) is worker:
            self._drop(address, "does not answer")

    async def aclose(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking.values():
            task.cancel()
        await self._work.aclose()

    def _expire(self) -> None:
        """Drop whoever was silent for too long."""
        self._timer = None
        oldest = asyncio.get_running_loop().time() - self._expiration_s
        for worker in list(self._workers.values()):
            if worker.check_heart_beat and worker.heard_of <= oldest:
                self._drop(worker.url, "sent no heartbeat")
        self._update()

    def _drop(self, url: str, why: str) -> None:
        log.warning("FastChat worker %s %s; removed", url, why)
        del self._workers[url]
        self._update()

    def _update(self) -> None:
        """Serve exactly the models that have a worker, where their names are free, and look again when the next worker could expire."""
        names = self.names()
        for name in self._added.keys() - names:
            model = self._added.pop(name)
            if self._registry.models.get(name) is model:  # else the configuration has it by now
                self._registry.forget(name)  # a worker that leaves may still be answering
        for name in names:
            if name not in self._registry:  # else it is ours already, or the configuration's
                self._serve(name)
        beats = [worker.heard_of for worker in self._workers.values() if worker.check_heart_beat]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if beats:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(beats) + self._expiration_s, self._expire)

    def _serve(self, name: str) -> None:
        # with Jinja, which takes 30 ms
        from unilect.upstreams.fastchat.backend import FastChatUpstream

        backend = FastChatUpstream(self, ModelConfig(model=name, timeout_s=self._timeout_s), name)
        model = Model(
            name, [PooledBackend(backend, "fastchat")], runs_locally=False, created=int(time.time())
        )
        self._registry.add(model)
        self._added[name] = model


def _server(url: str, connect_to: str | None) -> HttpServer:
    """Return a worker, to be asked for its status."""
    return HttpServer(
        url, connect_to=connect_to, timeout_s=STATUS_TIMEOUT_S, max_body_bytes=MAX_STATUS_BYTES
    )


async def _status(server: HttpServer) -> Status:
    """
    Ask a worker for its status.

    Raises:
        UnilectError: It does not answer in time, or not in FastChat's format.
    """
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            report = await server.post("/worker_get_status", b"{}")
    except TimeoutError as error:
        raise BackendTimeout("The worker did not report its status in time.") from error
    return decode_body(report, Status, "The worker's status is not in FastChat's format.")
