"""
unilect as FastChat's controller: workers register, and old API servers, web pages and controllers ask for them.

Its routes need no key, because old workers and servers send none: whoever can reach them can register a worker, which then
gets the prompts of its models. They are there only where the configuration asks for them.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/controller.py)
"""

from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from unilect.dialects._fastchat_workers import Registration, Workers
from unilect.dialects._routes import Handler, Route
from unilect.dialects.fastchat_worker import FRAMES, WORKER_CALLS, answer, decoded, error_frame
from unilect.errors import BackendUnavailable, UnilectError
from unilect.streaming import relay
from unilect.upstreams._http import HttpServer


class HeartBeat(msgspec.Struct, frozen=True):
    """POST /receive_heart_beat."""

    worker_name: str
    queue_length: float = 0


class Named(msgspec.Struct, frozen=True):
    """A body of which only the model matters here."""

    model: str | None = None


class Calls:
    """
    What a controller answers.

    Args:
        workers: Who has registered.
        own_names: The models of our own worker.
    """

    def __init__(self, workers: Workers, own_names: Callable[[], list[str]]) -> None:
        self._workers = workers
        self._own_names = own_names

    async def register_worker(self, request: web.Request) -> web.StreamResponse:
        """Take a worker in."""
        await self._workers.register(decoded(await request.read(), Registration))
        return answer(request, None)

    async def receive_heart_beat(self, request: web.Request) -> web.StreamResponse:
        """Note that a worker lives."""
        beat = decoded(await request.read(), HeartBeat)
        return answer(request, {"exist": self._workers.beat(beat.worker_name, beat.queue_length)})

    async def refresh_all_workers(self, request: web.Request) -> web.StreamResponse:
        """Ask all workers how they are, and drop those that do not answer."""
        await self._workers.refresh()
        return answer(request, None)

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """List the models of the workers."""
        return answer(request, {"models": self._workers.names()})

    async def list_multimodal_models(self, request: web.Request) -> web.StreamResponse:
        """List the models that see images."""
        return answer(request, {"models": self._workers.names(multimodal=True)})

    async def list_language_models(self, request: web.Request) -> web.StreamResponse:
        """List the models that read texts only."""
        return answer(request, {"models": self._workers.names(multimodal=False)})

    async def get_worker_address(self, request: web.Request) -> web.StreamResponse:
        """Name a worker for a model."""
        model = decoded(await request.read(), Named).model or ""
        return answer(request, {"address": await self._workers.address(model)})

    async def worker_get_status(self, request: web.Request) -> web.StreamResponse:
        """Tell all workers as if they were one, for a controller above this one."""
        status = self._workers.status()
        names = sorted({*status.model_names, *self._own_names()})
        return answer(request, msgspec.structs.replace(status, model_names=names))

    async def test_connection(self, request: web.Request) -> web.StreamResponse:
        """Say that the controller lives."""
        return answer(request, "success")


_CALLS = (
    "register_worker",
    "receive_heart_beat",
    "refresh_all_workers",
    "list_models",
    "list_multimodal_models",
    "list_language_models",
    "get_worker_address",
    "worker_get_status",
)


def routes(
    workers: Workers, own: Mapping[str, Handler], own_names: Callable[[], list[str]]
) -> list[Route]:
    """
    The URLs of a controller.

    Args:
        workers: Who has registered.
        own: Our own worker's calls by their paths, for models that no registered worker has; empty where we are none.
        own_names: The models of our own worker.
    """
    calls = Calls(workers, own_names)
    handlers = {f"/{name}": getattr(calls, name) for name in _CALLS}
    handlers |= {path: _relayed(path, workers, own) for path in WORKER_CALLS}
    posts = [Route("POST", path, handler, public=True) for path, handler in handlers.items()]
    return [*posts, Route("GET", "/test_connection", calls.test_connection, public=True)]


def _relayed(path: str, workers: Workers, own: Mapping[str, Handler]) -> Handler:
    """A call for a worker: handed to one of its model's, else to our own."""

    async def relay_to_worker(request: web.Request) -> web.StreamResponse:
        """Hand a call to a worker of its model."""
        body = await request.read()
        model = decoded(body, Named).model
        address = await workers.address(model or "")
        if not address and path in own:
            return await own[path](request)
        stream = path == "/worker_generate_stream"
        try:
            if not address:
                raise BackendUnavailable("No worker has this model now.", retry_after_s=5)
            server = HttpServer(address)
            if stream:
                chunks = server.stream(path, body, content_type="")
                return await relay(request, chunks, FRAMES, error_frame)
            return answer(request, await server.post(path, body))
        except UnilectError as error:
            return answer(request, error_frame(error) if stream else error_frame(error)[:-1])

    return relay_to_worker
