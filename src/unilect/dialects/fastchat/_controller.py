"""
unilect as a FastChat controller: workers register, and FastChat's API servers, web servers and controllers use them.

Its routes need no key, because old workers and servers send none. Workers register only from where `dialects/fastchat/_admission.py` lets
them; whoever can reach the other routes can ask the workers. Our own configured models stay behind the keys, where there are keys,
for all but those who may register. The routes are there only where the configuration asks for them.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/controller.py)
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
from aiohttp import web

from unilect.core.errors import BackendError, BackendUnavailable
from unilect.dialects.fastchat._admission import Admission, Pace, worker_url
from unilect.dialects.fastchat._worker import (
    FRAMES,
    WORKER_CALLS,
    decode_call,
    error_frame,
    worker_routes,
)
from unilect.dialects.fastchat._workers import Amount, Registration, Workers
from unilect.http.client import HttpServer
from unilect.web.route import Handler, Route, json_answer
from unilect.web.streaming import relay

REFRESH_WAIT_S = 2.0  # for workers to be asked, which goes on without whoever wants it
MAX_RELAYS = 4  # a worker may be a controller too, and must not be this one again and again
_RELAYS = "X-Unilect-Relays"
#: Calls of one machine, which may have a worker for each of its processors.
_REGISTRATIONS = (64.0, 8.0)
_HEART_BEATS = (256.0, 64.0)


class HeartBeat(msgspec.Struct, frozen=True):
    """POST /receive_heart_beat."""

    worker_name: str
    queue_length: Amount = 0


class Named(msgspec.Struct, frozen=True):
    """A body of which only the model matters here."""

    model: str | None = None


class Own(msgspec.Struct, frozen=True):
    """
    The worker for this server's own models, beside a controller.

    Attributes:
        calls: The worker's calls by their paths.
        names: Its models, and those that see images.
        is_open: Whether it answers a request without a key.
    """

    calls: Mapping[str, Handler]
    names: Callable[[bool | None], list[str]]
    is_open: Callable[[web.Request], bool]

    def names_for(self, request: web.Request, multimodal: bool | None = None) -> list[str]:
        """Return the models that whoever asks may have."""
        return self.names(multimodal) if self.is_open(request) else []

    def has(self, request: web.Request, model: str | None) -> bool:
        """Return True if this server itself answers the caller for this model, or for none in particular."""
        return self.is_open(request) and (model is None or model in self.names(None))


class Calls:
    """
    The calls that a controller answers; each method is the call of its name.

    Args:
        workers: The registered workers.
        admission: The check of who may register.
        own: Our own models.
    """

    def __init__(self, workers: Workers, admission: Admission, own: Own) -> None:
        self._workers = workers
        self._admission = admission
        self._own = own
        self._registrations, self._heart_beats = Pace(*_REGISTRATIONS), Pace(*_HEART_BEATS)

    async def register_worker(self, request: web.Request) -> web.StreamResponse:
        """Take a worker in."""
        self._admission.check(request)
        self._registrations.take(request.remote or "")
        asked = decode_call(await request.read(), Registration)
        address = await self._admission.address_of(request, worker_url(asked.worker_name))
        await self._workers.register(asked, address)
        return json_answer(request, None)

    async def receive_heart_beat(self, request: web.Request) -> web.StreamResponse:
        """Note that a worker lives."""
        self._admission.check(request)
        self._heart_beats.take(request.remote or "")
        beat = decode_call(await request.read(), HeartBeat)
        return json_answer(
            request, {"exist": self._workers.beat(beat.worker_name, beat.queue_length)}
        )

    async def refresh_all_workers(self, request: web.Request) -> web.StreamResponse:
        """Ask all workers how they are, and drop those that do not answer; that goes on when it takes long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_WAIT_S):
                await self._workers.refresh()
        return json_answer(request, None)

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """List the models of the workers, and our own."""
        return self._list(request, None)

    async def list_multimodal_models(self, request: web.Request) -> web.StreamResponse:
        """List the models that see images."""
        return self._list(request, True)

    async def list_language_models(self, request: web.Request) -> web.StreamResponse:
        """List the models that read texts only."""
        return self._list(request, False)

    def _list(self, request: web.Request, multimodal: bool | None) -> web.StreamResponse:
        names = {*self._workers.names(multimodal), *self._own.names_for(request, multimodal)}
        return json_answer(request, {"models": sorted(names)})

    async def get_worker_address(self, request: web.Request) -> web.StreamResponse:
        """Name a worker for a model: ourselves, by the name that the caller has for us, where it is our own."""
        model = decode_call(await request.read(), Named).model or ""
        address = await self._workers.address(model)
        if not address and model in self._own.names_for(request):
            address = f"{request.scheme}://{request.host}"
        return json_answer(request, {"address": address})

    async def worker_get_status(self, request: web.Request) -> web.StreamResponse:
        """Tell all workers as if they were one, for a controller above this one."""
        status = self._workers.status()
        names = sorted({*status.model_names, *self._own.names_for(request)})
        return json_answer(request, msgspec.structs.replace(status, model_names=names))


async def test_connection(request: web.Request) -> web.StreamResponse:
    """Say that the controller lives."""
    return json_answer(request, "success")


def routes(workers: Workers, admission: Admission, own: Own) -> list[Route]:
    """
    Return the URLs of a controller.

    Args:
        workers: Who has registered.
        admission: Who may register.
        own: Our own models, for which no worker has registered.
    """
    calls = Calls(workers, admission, own)
    names = (name for name in vars(Calls) if not name.startswith("_"))
    posts = [Route("POST", f"/{name}", getattr(calls, name), public=True) for name in names]
    relayed = worker_routes({path: _make_relay(path, workers, own) for path in WORKER_CALLS})
    return [*posts, *relayed, Route("GET", "/test_connection", test_connection, public=True)]


def _make_relay(path: str, workers: Workers, own: Own) -> Handler:
    """Return a call for a worker: handed to one of its model's, else to our own."""

    async def relay_to_worker(request: web.Request) -> web.StreamResponse:
        """Hand a call to a worker of its model."""
        body = await request.read()
        model = decode_call(body, Named).model
        address = await workers.address(model or "")
        if not address and own.has(request, model):
            return await own.calls[path](request)
        if not address:
            raise BackendUnavailable(
                "No worker has this model now. Start one, or try again later.", retry_after_s=5
            )
        server = HttpServer(
            address, headers={_RELAYS: _relays(request)}, connect_to=workers.connect_to(address)
        )
        if path == "/worker_generate_stream":
            chunks = await server.stream(path, body, kind="")
            return await relay(request, chunks, FRAMES, error_frame)
        return json_answer(request, await server.post(path, body))

    return relay_to_worker


def _relays(request: web.Request) -> str:
    """
    Return the relay header's next value: how often the call has been handed on, this time included.

    Raises:
        BackendError: It is too often: controllers are each other's workers, or one is its own.
    """
    sent = request.headers.get(_RELAYS, "0")
    count = int(sent) if re.fullmatch(r"[0-9]{1,3}", sent) else 0
    if count >= MAX_RELAYS:
        raise BackendError("The call is relayed in a circle: a controller is its own worker.")
    return str(count + 1)
