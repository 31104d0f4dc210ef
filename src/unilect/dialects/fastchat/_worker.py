"""
unilect as a FastChat worker: a controller lists its models, and FastChat's API servers and web servers use them.

The routes need no key, because those servers send none; they are there only where the configuration names a controller. A
frame is JSON and a NUL and holds all of the text so far; the last text comes twice, without and with its finish reason, which
is what FastChat's servers wait for. An error is a frame too, with the status 200.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/base_model_worker.py, model_worker.py)
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.api.parameters.rules import refusal
from unilect.core.errors import UnilectError, UnsupportedOperation
from unilect.core.events import (
    Answer,
    Event,
    Finish,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest, TextRequest
from unilect.dialects.fastchat._prompt import TurnMarkers
from unilect.dialects.openai.chunks import encode_json, legacy_logprobs
from unilect.dialects.openai.completions import stop_words
from unilect.dialects.openai.embeddings import base64_of, unit
from unilect.models.model import Model
from unilect.web.decode import check_one_kind, convert, decode_value
from unilect.web.route import Handler, Route, json_answer
from unilect.web.streaming import JSON, respond

BodyT = TypeVar("BodyT")
FRAMES = "application/octet-stream"
WORKER_CALLS = (
    "/worker_generate_stream",
    "/worker_generate",
    "/worker_get_embeddings",
    "/count_token",
    "/worker_get_conv_template",
    "/model_details",
)
#: Parameters that are OpenAI's or ours by the same name, and those that only a plain completion has.
_SAME = (
    "model",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_OF_TEXTS = ("prompt", "echo", "logprobs", "best_of")
_REFUSED = frozenset({403, 408, 413, 415, 421})  # before a worker has a say; its own errors are 200
# told where the backend does not say: the server above shall not refuse what the model may take
UNKNOWN_CONTEXT = 2**20


class GenerationParams(msgspec.Struct, frozen=True):
    """
    POST /worker_generate_stream, "gen_params". What we cannot honour is refused by name, but `stop_token_ids`: they come out
    of FastChat's own templates, and our models end their turns by themselves.
    """

    prompt: str
    model: str | None = None
    max_new_tokens: int | None = 256
    echo: bool | None = True
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    images: list[Any] | None = None


class EmbeddingParams(msgspec.Struct, frozen=True):
    """POST /worker_get_embeddings."""

    input: list[str | int | list[int]] | str
    model: str | None = None
    encoding_format: str | None = None


class Named(msgspec.Struct, frozen=True):
    """POST /count_token and the calls that need less."""

    model: str | None = None
    prompt: str = ""


class WorkerState:
    """
    The state of our worker, as it reports it to the controller.

    Args:
        service: Answers the requests.
        limit: The most requests that are answered at a time; None for no limit.

    Attributes:
        address: The URL that the controller knows us by.
    """

    def __init__(self, service: Service, limit: int | None = None) -> None:
        self.address = ""
        self._service = service
        self._limit = asyncio.Semaphore(limit) if limit is not None else None
        self._waiting = 0

    def names_of(self, multimodal: bool | None) -> list[str]:
        """Return the models that see images, those that do not, or both, by all their names; none once we are stopping."""
        models = self._service.registry.models.values() if self._service.ready else ()
        return [
            name
            for model in models
            if multimodal is None or model.capabilities.vision == multimodal
            if not model.unlisted
            for name in (model.name, *model.aliases)
        ]

    def status(self) -> dict[str, Any]:
        """Return the status that a controller asks for, in FastChat's format."""
        return {"model_names": self.names_of(None), "speed": 1, "queue_length": self._waiting}

    @property
    def multimodal(self) -> bool:
        """True where one of the models sees images."""
        models = self._service.registry.models.values()
        return any(model.capabilities.vision for model in models)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A request's turn."""
        self._waiting += 1
        try:
            if self._limit is None:
                yield
            else:
                async with self._limit:
                    yield
        finally:
            self._waiting -= 1

    def marks(self, model: str) -> TurnMarkers:
        """Return the marks between the messages of a prompt for this model."""
        return TurnMarkers(self.address, model)


class Calls:
    """
    The calls that a worker answers.

    Args:
        service: Answers the requests.
        work: The worker's state.
    """

    def __init__(self, service: Service, work: WorkerState) -> None:
        self._service = service
        self._work = work

    async def worker_generate_stream(self, request: web.Request) -> web.StreamResponse:
        """Continue a text, frame by frame."""
        return await self._generate(request, stream=True)

    async def worker_generate(self, request: web.Request) -> web.StreamResponse:
        """Continue a text, in one frame."""
        return await self._generate(request, stream=False)

    async def worker_get_embeddings(self, request: web.Request) -> web.StreamResponse:
        """Embed texts, each vector of length one."""
        params = decode_call(await request.read(), EmbeddingParams)
        check_one_kind("input", params.input)
        async with self._work.place():
            asked = EmbeddingRequest(input=params.input, model=params.model)
            _, found, _ = await self._service.embed(asked)
        vectors: list[Any] = [unit(vector) for vector in found.vectors]
        if params.encoding_format == "base64":
            vectors = [base64_of(vector) for vector in vectors]
        return json_answer(request, {"embedding": vectors, "token_num": found.prompt_tokens})

    async def count_token(self, request: web.Request) -> web.StreamResponse:
        """Count the tokens of a prompt; 0 where the model's backend cannot, as FastChat has it."""
        named = decode_call(await request.read(), Named)

        async def ask(model: Model, backend: Backend) -> int:
            messages = self._work.marks(model.name).messages(named.prompt)
            asked = ChatRequest(messages=messages) if messages else named.prompt
            try:
                return await backend.count_tokens(asked)
            except UnsupportedOperation:
                return 0

        # FastChat's servers count before each answer
        count = await self._service.call(named.model, ask, counts=False)
        return json_answer(request, {"count": count, "error_code": 0})

    async def worker_get_conv_template(self, request: web.Request) -> web.StreamResponse:
        """Tell the template: marks that we find again in the prompt."""
        named = decode_call(await request.read(), Named)
        model = await self._service.inspect_model(named.model)
        chat = model.capabilities.chat
        return json_answer(request, {"conv": self._work.marks(model.name).conv(chat)})

    async def model_details(self, request: web.Request) -> web.StreamResponse:
        """Tell the model's context."""
        named = decode_call(await request.read(), Named)
        model = await self._service.inspect_model(named.model)
        context = model.capabilities.context
        return json_answer(request, {"context_length": context or UNKNOWN_CONTEXT})

    async def worker_get_status(self, request: web.Request) -> web.StreamResponse:
        """Tell the models and the length of the queue."""
        return json_answer(request, self._work.status())

    async def _generate(self, request: web.Request, stream: bool) -> web.StreamResponse:
        params = decode_call(await request.read(), GenerationParams)
        async with self._work.place():
            asked = to_request(params, self._work, self._service, stream)
            run = self._service.run(asked)
            return await respond(request, run, FrameEncoder(), FRAMES)


def routes(service: Service, work: WorkerState) -> list[Route]:
    """Return the URLs of a worker."""
    calls = Calls(service, work)
    handlers = {path: getattr(calls, path[1:]) for path in (*WORKER_CALLS, "/worker_get_status")}
    return worker_routes(handlers)


def worker_routes(handlers: Mapping[str, Handler]) -> list[Route]:
    """Return routes that a worker has, by their paths."""

    def error_of(path: str, error: UnilectError, status: int) -> web.Response:
        """Return a frame; in a stream it ends as all do."""
        frame = error_frame(error)
        status = status if status in _REFUSED else 200
        body = frame if path == "/worker_generate_stream" else frame[:-1]
        return web.Response(status=status, body=body, content_type=JSON)

    return [
        Route("POST", path, handler, "fastchat", public=True, error=partial(error_of, path))
        for path, handler in handlers.items()
    ]


def to_request(
    params: GenerationParams, work: WorkerState, service: Service, stream: bool
) -> TextRequest:
    """
    Return a worker's parameters as a request: a chat where the prompt was made with our template, else a plain completion.

    Raises:
        InvalidRequest: A value is out of range.
        UnsupportedParameter: We cannot do what is asked for.
    """
    if params.use_beam_search:
        raise refusal("use_beam_search")
    if params.images:
        raise refusal("images")
    fields: dict[str, Any] = {name: getattr(params, name) for name in _SAME}
    fields |= {
        "stream": stream,
        "max_tokens": params.max_new_tokens,
        "stop": stop_words(params.stop),
    }
    fields["top_k"] = None if params.top_k is None else int(params.top_k)
    model = service.model(params.model)
    messages = work.marks(model.name).messages(params.prompt)
    kind: type[ChatRequest] | type[CompletionRequest] = CompletionRequest
    if messages is not None:
        kind = ChatRequest
        fields |= {"messages": messages, "logprobs": params.logprobs is not None or None}
    else:
        fields |= {name: getattr(params, name) for name in _OF_TEXTS}
    return convert(fields, kind)


class FrameEncoder:
    """A worker's words for one answer."""

    def __init__(self) -> None:
        self._text = ""
        self._logprobs: list[TokenLogprob] | None = None
        self._reason = "stop"
        self._usage = Usage(0, 0)

    def encode(self, batch: Sequence[Event]) -> bytes:
        """Return a frame with all of the text so far, where the batch has some."""
        before = self._text
        for event in batch:
            match event:
                case TextDelta(text, _, logprobs):
                    self._text += text
                    if logprobs is not None:
                        self._logprobs = [*(self._logprobs or ()), *logprobs]
                case Finish(reason):
                    self._reason = "length" if reason == "length" else "stop"
                case Usage():
                    self._usage = event
        return self._frame(None) + b"\0" if self._text != before else b""

    def keep_alive(self) -> bytes:
        """Return an empty frame, which readers skip."""
        return b"\0"

    def end(self) -> bytes:
        """Return the text once more, with its finish reason and usage."""
        return self._frame(self._reason) + b"\0"

    def error(self, error: UnilectError) -> bytes:
        """Return the frame that ends a broken answer."""
        return error_frame(error)

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the last frame alone."""
        choice = answer.choices[0]
        self._text, self._logprobs = choice.text or "", choice.logprobs
        self._reason = "length" if choice.finish_reason == "length" else "stop"
        self._usage = answer.usage
        return self._frame(self._reason)

    def _frame(self, reason: str | None) -> bytes:
        body: dict[str, Any] = {"text": self._text, "error_code": 0, "finish_reason": reason}
        if self._logprobs is not None:
            body["logprobs"] = legacy_logprobs(self._logprobs, 0)
        if reason is not None:
            used = self._usage
            body["usage"] = {
                "prompt_tokens": used.prompt_tokens,
                "completion_tokens": used.completion_tokens,
                "total_tokens": used.prompt_tokens + used.completion_tokens,
            }
        return encode_json(body)


def error_frame(error: UnilectError) -> bytes:
    """Return an error, as a worker tells it."""
    return encode_json({"text": error.message, "error_code": error.number}) + b"\0"


def decode_call(body: bytes, kind: type[BodyT]) -> BodyT:
    """Decode a body; none at all is an empty object, as some callers send none. Errors as `decode_value`."""
    return decode_value(body or b"{}", kind)
