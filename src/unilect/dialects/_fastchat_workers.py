"""
The workers that have registered with us, and the models that they make: what a FastChat controller knows.

A worker that is not heard of for 90 s is dropped, unless it said that it sends no heart beats. Its models are models of ours
while one worker has them; a name that the configuration has stays the configuration's.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/controller.py)
"""

import asyncio
import logging
import random
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from unilect.errors import BackendError, ConfigError, InvalidRequest, UnilectError
from unilect.model_config import NAME, ModelConfig
from unilect.pool import Member
from unilect.registry import Model, Registry
from unilect.upstreams._http import HttpServer

log = logging.getLogger("unilect")
HEART_BEAT_EXPIRATION_S = 90.0
STATUS_TIMEOUT_S = 5.0
MAX_WORKERS = 1024
Dispatch = Literal["shortest_queue", "lottery"]
ModelName = Annotated[str, Meta(pattern=NAME)]


class Status(Struct, frozen=True):
    """What a worker says of itself: its models, how fast it is, and how many requests it has."""

    model_names: Annotated[list[ModelName], Meta(max_length=256)] = []
    speed: Annotated[float, Meta(ge=0)] = 1
    queue_length: Annotated[float, Meta(ge=0)] = 0


class Registration(Struct, frozen=True):
    """POST /register_worker."""

    worker_name: Annotated[str, Meta(max_length=1024, pattern=r"^https?://[!-~]+$")]
    check_heart_beat: bool = True
    worker_status: Status | None = None
    multimodal: bool = False


class Worker(Struct):
    """
    A worker.

    Attributes:
        url: Its address, which is its name.
        status: What it said last.
        heard_of: When, by the event loop's clock.
    """

    url: str
    status: Status
    check_heart_beat: bool
    multimodal: bool
    heard_of: float


class Workers:
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
        self._added: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def register(self, asked: Registration) -> None:
        """
        Take a worker in, or take note of what has changed; without a status it is asked for one.

        Raises:
            InvalidRequest: Its name is no URL, or there are too many.
            UnilectError: It was asked and did not answer.
        """
        url = asked.worker_name.rstrip("/")
        try:
            server = HttpServer(url, timeout_s=STATUS_TIMEOUT_S)
        except ConfigError as error:
            raise InvalidRequest(
                "`worker_name` must be the worker's URL, such as http://10.0.0.5:21002.",
                param="worker_name",
            ) from error
        if url not in self._workers and len(self._workers) >= MAX_WORKERS:
            raise InvalidRequest(f"`worker_name`: there are {MAX_WORKERS} workers already.")
        status = asked.worker_status or await _status(server)
        now = asyncio.get_running_loop().time()
        if url not in self._workers:
            log.info("FastChat worker %s registers %s", url, ", ".join(status.model_names))
        self._workers[url] = Worker(url, status, asked.check_heart_beat, asked.multimodal, now)
        self._update()

    def beat(self, name: str, queue_length: float) -> bool:
        """A worker lives; false where it is not known, and should register again."""
        worker = self._workers.get(name.rstrip("/"))
        if worker is None:
            return False
        worker.heard_of = asyncio.get_running_loop().time()
        worker.status = msgspec.structs.replace(worker.status, queue_length=queue_length)
        return True

    async def refresh(self) -> None:
        """Ask every worker how it is, and drop those that do not answer."""
        workers = list(self._workers.values())
        found = await asyncio.gather(*(_status_or_none(worker.url) for worker in workers))
        for worker, status in zip(workers, found, strict=True):
            if status is None:
                self._drop(worker.url, "does not answer")
            else:
                worker.status = status
                worker.heard_of = asyncio.get_running_loop().time()
        self._update()

    def names(self, multimodal: bool | None = None) -> list[str]:
        """The models of all workers, sorted; with images, without, or both."""
        return sorted(
            {
                name
                for worker in self._workers.values()
                if multimodal is None or worker.multimodal == multimodal
                for name in worker.status.model_names
            }
        )

    def status(self) -> Status:
        """All workers as if they were one, for a controller above this one."""
        told = [worker.status for worker in self._workers.values()]
        return Status(
            self.names(), sum(one.speed for one in told), sum(one.queue_length for one in told)
        )

    async def models(self) -> dict[str, bool]:
        """The models that there are, and whether each sees images."""
        seeing = self.names(multimodal=True)
        return {name: name in seeing for name in self.names()}

    async def address(self, model: str) -> str:
        """The URL of a worker of this model; empty where there is none. Its queue counts as one longer until it says otherwise."""
        able = [
            worker
            for worker in self._workers.values()
            if model in worker.status.model_names and worker.status.speed > 0
        ]
        if not able:
            return ""
        if self._dispatch == "lottery":
            return random.choices(able, [worker.status.speed for worker in able])[0].url
        chosen = min(able, key=lambda worker: worker.status.queue_length / worker.status.speed)
        longer = chosen.status.queue_length + 1
        chosen.status = msgspec.structs.replace(chosen.status, queue_length=longer)
        return chosen.url

    async def lost(self, address: str) -> None:
        """A worker cannot be reached: it is asked once more, and dropped where it does not answer."""
        if address in self._workers and await _status_or_none(address) is None:
            self._drop(address, "does not answer")
            self._update()

    def aclose(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        """Drop whoever was silent for too long."""
        self._timer = None
        oldest = asyncio.get_running_loop().time() - self._expiration_s
        for worker in list(self._workers.values()):
            if worker.check_heart_beat and worker.heard_of <= oldest:
                self._drop(worker.url, "is not heard of")
        self._update()

    def _drop(self, url: str, why: str) -> None:
        if self._workers.pop(url, None) is not None:
            log.warning("FastChat worker %s %s; it is dropped", url, why)

    def _update(self) -> None:
        """Serve exactly the models that some worker has, and look again when the next worker could expire."""
        names = set(self.names())
        for name in self._added - names:
            self._registry.forget(name)  # a worker that leaves may still be answering
        self._added &= names
        for name in names - self._added:
            if name in self._registry:
                continue  # the configuration's
            from unilect.upstreams.fastchat import FastChatUpstream  # with Jinja, which takes 30 ms

            backend = FastChatUpstream(
                self, ModelConfig(model=name, timeout_s=self._timeout_s), name
            )
            self._registry.add(
                Model(name, [Member(backend, "fastchat")], required=False, created=int(time.time()))
            )
            self._added.add(name)
        beats = [worker.heard_of for worker in self._workers.values() if worker.check_heart_beat]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if beats:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(beats) + self._expiration_s, self._expire)


async def _status(server: HttpServer) -> Status:
    """
    What a worker says of itself.

    Raises:
        UnilectError: It does not say it.
    """
    try:
        return msgspec.json.decode(await server.post("/worker_get_status", b"{}"), type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendError("The worker does not tell its status as FastChat does.") from error


async def _status_or_none(url: str) -> Status | None:
    try:
        return await _status(HttpServer(url, timeout_s=STATUS_TIMEOUT_S))
    except UnilectError:
        return None
