"""
unilect as FastChat's controller: workers register, and old API servers, web pages and controllers ask for them.

Its routes need no key, because old workers and servers send none: whoever can reach them can register a worker, which then
gets the prompts of its models. They are there only where the configuration asks for them.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/controller.py)
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from unilect.dialects._decode import wrong_field
from unilect.dialects._fastchat_workers import Registration, Workers
from unilect.dialects._openai import encode_json
from unilect.dialects._routes import Handler, Route
from unilect.dialects.fastchat_worker import FRAMES, WORKER_CALLS, error_frame
from unilect.errors import BackendUnavailable, UnilectError, WrongType
from unilect.streaming import REQUEST_ID, relay
from unilect.upstreams._http import HttpServer

RequestT = TypeVar("RequestT")


class HeartBeat(msgspec.Struct, frozen=True):
    """POST /receive_heart_beat."""

    worker_name: str
    queue_length: float = 0


class Named(msgspec.Struct, frozen=True):
    """A body of which only the model matters here."""

    model: str | None = None


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

    async def register_worker(request: web.Request) -> web.StreamResponse:
        """Take a worker in."""
        await workers.register(_decoded(await request.read(), Registration))
        return _json(request, None)

    async def receive_heart_beat(request: web.Request) -> web.StreamResponse:
        """Note that a worker lives."""
        beat = _decoded(await request.read(), HeartBeat)
        return _json(request, {"exist": workers.beat(beat.worker_name, beat.queue_length)})

    async def refresh_all_workers(request: web.Request) -> web.StreamResponse:
        """Ask all workers how they are, and drop those that do not answer."""
        await workers.refresh()
        return _json(request, None)

    async def get_worker_address(request: web.Request) -> web.StreamResponse:
        """Name a worker for a model."""
        model = _decoded(await request.read(), Named).model or ""
        return _json(request, {"address": await workers.address(model)})

    async def worker_get_status(request: web.Request) -> web.StreamResponse:
        """Tell all workers as if they were one, for a controller above this one."""
        status = workers.status()
        names = sorted({*status.model_names, *own_names()})
        return _json(request, msgspec.structs.replace(status, model_names=names))

    async def test_connection(request: web.Request) -> web.StreamResponse:
        """Say that the controller lives."""
        return _json(request, "success")

    def list_of(multimodal: bool | None) -> Handler:
        async def list_worker_models(request: web.Request) -> web.StreamResponse:
            """List the models of the workers."""
            return _json(request, {"models": workers.names(multimodal)})

        return list_worker_models

    handlers: dict[str, Handler] = {
        "/register_worker": register_worker,
        "/receive_heart_beat": receive_heart_beat,
        "/refresh_all_workers": refresh_all_workers,
        "/list_models": list_of(None),
        "/list_multimodal_models": list_of(True),
        "/list_language_models": list_of(False),
        "/get_worker_address": get_worker_address,
        "/worker_get_status": worker_get_status,
        **{path: _relayed(path, workers, own) for path in WORKER_CALLS},
    }
    posts = [Route("POST", path, handler, public=True) for path, handler in handlers.items()]
    return [*posts, Route("GET", "/test_connection", test_connection, public=True)]


def _relayed(path: str, workers: Workers, own: Mapping[str, Handler]) -> Handler:
    """A call for a worker: handed to one of its model's, else to our own."""

    async def relay_to_worker(request: web.Request) -> web.StreamResponse:
        """Hand a call to a worker of its model."""
        body = await request.read()
        model = _decoded(body, Named).model
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
            answer = await server.post(path, body)
        except UnilectError as error:
            return web.Response(body=error_frame(error) if stream else error_frame(error)[:-1])
        return web.Response(body=answer, headers={"Content-Type": "application/json"})

    return relay_to_worker


def _decoded(body: bytes, kind: type[RequestT]) -> RequestT:
    """
    A body; none at all is an empty object, as some callers send none.

    Raises:
        InvalidRequest: It is not what this call takes.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongType("The request's body is not valid JSON. Send one JSON object.") from error


def _json(request: web.Request, body: Any) -> web.Response:
    headers = {"Content-Type": "application/json", "X-Request-Id": request[REQUEST_ID]}
    return web.Response(body=encode_json(body), headers=headers)
