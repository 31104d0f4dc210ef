"""
The upstream for FastChat: the controller assigns a worker to each request.

A worker's template and context are cached for a minute. A worker gets the prompt as one text, and every frame of its answer has the
whole text so far. If a worker disconnects before any output, the controller is asked for a worker once more.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/openai_api_server.py, controller.py, base_model_worker.py)
"""

import asyncio
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from unilect.api.backend import Backend, BackendSpec, Batches, Capabilities
from unilect.api.parameters.rules import refusal
from unilect.api.parameters.support import declare_support, names
from unilect.config.model import ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ConfigError,
    InvalidRequest,
    UnilectError,
    UnsupportedOperation,
)
from unilect.core.events import Usage
from unilect.core.requests import ChatRequest, EmbeddingRequest, Embeddings, Prompt, TextRequest
from unilect.families import name_of, of_name, of_template
from unilect.http.body import ProtocolError
from unilect.http.client import MAX_LIST_BYTES, HttpServer
from unilect.http.error_bodies import NoSuchPath, decode_body, too_long
from unilect.templates.chat import ChatTemplate, find
from unilect.upstreams.fastchat import _frames as wire
from unilect.upstreams.fastchat._conversation import (
    ChatPrompt,
    Conv,
    chat_prompt,
    check_images,
    decode,
    text_of,
)

StructT = TypeVar("StructT", bound=Struct)
KNOWN_FOR_S = 60.0  # what a worker says of itself is believed: another may start at its address
MAX_WORKERS = 256  # whose answers are remembered
# bytes of what a worker says of itself; its template is a part of every prompt
MAX_TOLD = 64 * 1024
DEFAULT_TOKENS = 512  # where the worker does not count; what FastChat took before it asked
_MARGIN = 8  # tokens that a tokenizer may add to a text
_GATHER_S = 0.005

_PARAMETERS = declare_support(
    names(
        "max_tokens max_completion_tokens stop temperature top_p top_k presence_penalty frequency_penalty repeat_penalty "
        "repetition_penalty logprobs use_beam_search"
    ),
    names("n best_of echo encoding_format dimensions"),
)
_UNKNOWN = ("cache_prompt", "num_beams", "tokenize")  # ignored, and named
PARAMETERS = {name: told for name, told in _PARAMETERS.items() if name not in _UNKNOWN}


class Directory(Protocol):
    """A directory of the workers of each model."""

    async def models(self) -> dict[str, bool]:
        """Return the models, and whether each supports images."""

    async def address(self, model: str) -> str:
        """Return the URL of a worker of this model; empty if there is none."""

    def connect_to(self, address: str) -> str | None:
        """Return the IP address of a worker's URL, if it was resolved already."""

    async def report_lost(self, address: str) -> None:
        """Report that a worker is unreachable."""


class _Models(Struct):
    models: list[Any]


class _Address(Struct):
    address: str


class Controller:
    """
    FastChat's controller as a directory.

    Args:
        server: The controller.
    """

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    async def models(self) -> dict[str, bool]:
        """Return the models of all workers, from the controller's list; this does not make it poll the workers."""
        found = await self._list("/list_models")
        try:
            seeing = set(await self._list("/list_multimodal_models"))
        except (InvalidRequest, NoSuchPath):  # controllers before 0.2.36 know no such call
            seeing = set()
        return {model: model in seeing for model in found}

    async def address(self, model: str) -> str:
        """Return the worker that the controller chooses."""
        answer = await self._server.post(
            "/get_worker_address", msgspec.json.encode({"model": model})
        )
        return _decode(answer, _Address).address

    def connect_to(self, address: str) -> str | None:
        """None: a controller sends URLs only."""

    async def report_lost(self, address: str) -> None:
        """Make the controller remove unreachable workers."""
        await self._server.post("/refresh_all_workers", b"{}")

    async def _list(self, path: str) -> list[str]:
        answer = await self._server.post(path, b"{}", MAX_LIST_BYTES)
        return [name for name in _decode(answer, _Models).models if isinstance(name, str)]


class _Details(Struct):
    context_length: int | None = None


class _Count(Struct):
    count: int = 0


class _Worker(Struct):
    """A worker, with its template and context."""

    address: str
    connect_to: str | None
    server: HttpServer
    conv: Conv
    context: int | None
    until: float


class FastChatUpstream(Backend):
    """
    One model, on any worker that has it.

    Args:
        directory: The directory of workers.
        config: The model's settings.
        name: The model, if the settings name none and there is a model of this name; else the only model.

    Raises:
        ConfigError: A setting is invalid.
    """

    def __init__(self, directory: Directory, config: ModelConfig, name: str = "") -> None:
        self._directory = directory
        self._config = config
        self._wanted = name
        self._model = ""
        self._template: ChatTemplate | None = (
            find(config.chat_template) if config.chat_template is not None else None
        )
        self._workers: dict[str, _Worker] = {}
        self.capabilities = Capabilities(parameters=PARAMETERS, fans_out=True)

    async def start(self) -> None:
        """Detect the model's name and context; see `Backend`."""
        if self._model:
            return
        models = await self._directory.models()
        name = _choose(list(models), self._config.model, self._wanted)
        worker = await self._worker(name)
        self.capabilities = msgspec.structs.replace(
            self.capabilities,
            context=worker.context,
            vision=models[name],
            image_urls=False,
            tool_form=name_of(of_name(name, worker.conv.name))
            if self._template is None
            else name_of(of_template(self._template.text)),
        )
        self._model = name

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`. If the worker disconnects before any output, another one is tried once."""
        for attempt in (1, 2):
            begun, worker = False, None
            try:
                worker = await self._worker(self._model)
                async with aclosing(self._answer(worker, request)) as batches:
                    async for batch in batches:
                        begun = True
                        yield batch
                return
            except (BackendError, BackendUnavailable) as error:
                if begun or attempt == 2 or not _is_gone(error):
                    raise
                await self._forget(worker)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs, some at a time; see `Backend`."""
        texts = [text_of(text, "input") for text in request.inputs]
        size = self._config.embedding_batch
        vectors: list[list[float]] = []
        tokens = 0
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            body = msgspec.json.encode({"model": self._model, "input": batch})
            found, used = wire.embeddings(await self._post("/worker_get_embeddings", body))
            if len(found) != len(batch):
                raise BackendError(
                    f"The worker answered {len(batch)} inputs with {len(found)} vectors. Try again, or ask its operator."
                )
            vectors += found
            tokens += used
        return Embeddings(vectors, tokens)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Unsupported: FastChat's workers only count tokens."""
        raise UnsupportedOperation("FastChat's workers cannot tokenize. Choose another model.")

    async def detokenize(self, tokens: list[int]) -> str:
        """Unsupported: FastChat's workers only count tokens."""
        raise UnsupportedOperation("FastChat's workers cannot detokenize. Choose another model.")

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of prompt tokens; see `Backend`."""
        worker = await self._worker(self._model)
        if isinstance(request, str | list):
            return len(request) if isinstance(request, list) else await self._count(worker, request)
        return await self._count(worker, self._prompt(worker, request).text)

    async def check(self) -> None:
        """Check that a worker has the model; see `Backend`."""
        if self._model not in await self._directory.models():
            raise _none(self._model)

    async def aclose(self) -> None:
        """Cancel running requests; see `Backend`."""
        workers = list(self._workers.values())
        self._workers.clear()
        await asyncio.gather(*(worker.server.aclose() for worker in workers))

    async def _answer(self, worker: _Worker, request: TextRequest) -> Batches:
        prompt = self._prompt(worker, request)
        limit = await self._limit(worker, prompt.text, request.token_limit)
        params = self._params(request, prompt, limit)
        decoder = wire.AnswerDecoder(limit, not request.stream, "logprobs" in params)
        reader = wire.FrameReader()
        gather_s = 0.0 if request.stream else _GATHER_S
        body = msgspec.json.encode(params)
        path = "/worker_generate_stream"
        async with aclosing(await worker.server.stream(path, body, gather_s, "")) as answer:
            async for data in answer:
                if batch := decoder.add(reader.feed(data)):
                    yield batch
        reader.end()
        events = decoder.end()
        usage = decoder.usage or Usage(
            await self._count(worker, prompt.text), await self._count(worker, decoder.text)
        )
        yield [*events, usage]

    def _prompt(self, worker: _Worker, request: TextRequest) -> ChatPrompt:
        """Return the prompt, with the stop sequences of the worker's template, which apply to raw prompts too, as with FastChat."""
        if isinstance(request, ChatRequest):
            check_images(request.messages)
            if self._template is None:
                return chat_prompt(worker.conv, request.messages)
            text = self._template.render(request.messages)
            stop, ids = list(self._template.stop), list(self._template.stop_token_ids)
            return ChatPrompt(text, stop, ids)
        text = text_of(request.prompts[0], "prompt")
        return ChatPrompt(text, worker.conv.stop, worker.conv.stop_token_ids or [])

    def _params(self, request: TextRequest, prompt: ChatPrompt, limit: int) -> dict[str, Any]:
        """Return the body for a worker; `echo` is true by default there."""
        params: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt.text,
            "max_new_tokens": limit,
            "echo": False,
            "stop": list(dict.fromkeys([*request.stop_words, *prompt.stop])),
            "stop_token_ids": prompt.stop_token_ids or None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or None,  # 0 is ours for all; the worker's is -1
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "repetition_penalty": request.repetition_penalty or request.repeat_penalty,
            "images": prompt.images or None,
            "use_beam_search": request.raw_fields.get("use_beam_search"),
        }
        if isinstance(request, ChatRequest):
            params["logprobs"] = 1 if request.logprobs else None
        elif request.logprobs is not None:
            if request.logprobs > 1:
                raise refusal("logprobs", "a worker returns the chosen tokens only, which is 1")
            params["logprobs"] = 1
        return {name: value for name, value in params.items() if value is not None}

    async def _limit(self, worker: _Worker, text: str, asked: int | None) -> int:
        """
        Return the limit of tokens for the answer: the requested number, or the rest of the context.

        Raises:
            ContextLengthExceeded: The prompt is too long. A worker would truncate its beginning silently.
        """
        context = worker.context
        if context is None:
            return asked or DEFAULT_TOKENS
        if asked is not None and len(text.encode()) + _MARGIN + asked < context:
            return asked
        count = await self._count(worker, text)
        if not count and text:
            return asked or DEFAULT_TOKENS
        room = context - count - 1  # a worker cuts a prompt that leaves less
        if room < 1:
            raise too_long(count, context)
        return min(asked or room, room)

    async def _count(self, worker: _Worker, text: str) -> int:
        body = msgspec.json.encode({"model": self._model, "prompt": text})
        told = await worker.server.post("/count_token", body, MAX_TOLD)
        return _decode(told, _Count).count

    async def _worker(self, model: str) -> _Worker:
        """
        Return the worker for this request, with its template and context.

        Raises:
            BackendUnavailable: No worker has the model.
        """
        address = await self._directory.address(model)
        if not address:
            raise _none(model)
        now = asyncio.get_running_loop().time()
        known, connect_to = self._workers.get(address), self._directory.connect_to(address)
        if known is None or known.connect_to != connect_to or known.until < now:
            server, asked = self._server(address, connect_to), msgspec.json.encode({"model": model})
            server.retire()  # it is asked this and no more, so that nobody has to close it
            try:
                conv = decode(await server.post("/worker_get_conv_template", asked, MAX_TOLD))
                details = _decode(await server.post("/model_details", asked, MAX_TOLD), _Details)
            except (BackendError, BackendUnavailable, BackendTimeout) as error:
                if _is_gone(error):
                    await self._directory.report_lost(address)
                raise
            old, context = self._workers.get(address), details.context_length
            if old is not None and old.connect_to == connect_to:
                server = old.server
            else:  # new, or it has registered anew, from another machine
                full = len(self._workers) >= MAX_WORKERS
                self._let_go(next(iter(self._workers)) if full and old is None else address)
                server = self._server(address, connect_to)
            known = _Worker(address, connect_to, server, conv, context, now + KNOWN_FOR_S)
            self._workers[address] = known
        return known

    def _let_go(self, address: str) -> None:
        if (worker := self._workers.pop(address, None)) is not None:
            worker.server.retire()

    def _server(self, address: str, connect_to: str | None) -> HttpServer:
        try:
            if "@" in address or "?" in address:
                raise ConfigError("a worker's URL has no user and no query; leave them out")
            return HttpServer(
                address,
                connect_to=connect_to,
                timeout_s=self._config.timeout_s,
                reuse_connections=self._config.reuse_connections,
            )
        except ConfigError as error:
            raise BackendError(
                "The controller sent an invalid worker URL. Try again, or ask its operator."
            ) from error

    async def _forget(self, worker: _Worker | None) -> None:
        if worker is not None:
            self._let_go(worker.address)
            await self._directory.report_lost(worker.address)

    async def _post(self, path: str, body: bytes) -> bytes:
        """Call a worker; once more if it is unreachable."""
        worker = await self._worker(self._model)
        try:
            return await worker.server.post(path, body)
        except (InvalidRequest, NoSuchPath) as error:
            # 404: vLLM's worker, and others, have no such call
            raise UnsupportedOperation(
                "The model's worker does not support embeddings. Choose another model."
            ) from error
        except (BackendError, BackendUnavailable) as error:
            if not _is_gone(error):
                raise
            await self._forget(worker)
            return await (await self._worker(self._model)).server.post(path, body)


def _none(model: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"No worker has the model `{model}` now. Try again soon.", retry_after_s=5
    )


def _is_gone(error: UnilectError) -> bool:
    """Return True if the worker did not answer, so another may; false if it answered with an error."""
    return isinstance(error, BackendUnavailable) or isinstance(
        error.__cause__, OSError | ProtocolError
    )


def _choose(models: list[str], configured: str | None, wanted: str) -> str:
    """Return the configured model, the wanted one, else the only one."""
    if not models:
        raise BackendUnavailable(
            "The FastChat controller has no worker that answers. Start one, or try again soon.",
            retry_after_s=5,
        )
    name = configured or (wanted if wanted in models or len(models) > 1 else models[0])
    if name not in models:
        names = ", ".join(sorted(models)[:20])
        raise BackendUnavailable(
            "No worker of the FastChat controller has the model now. Try again soon, or ask its operator.",
            retry_after_s=5,
            reason=f"The FastChat controller has no model `{name}`; it has {names}. Set one with `model = ...`.",
        )
    return name


def _decode(body: bytes, kind: type[StructT]) -> StructT:
    return decode_body(body, kind, "The server does not have FastChat's protocol.")


async def list_models(spec: BackendSpec) -> list[str]:
    """Return the names of all models of a controller's workers."""
    server = _controller(spec)
    try:
        return list(await Controller(server).models())
    finally:
        await server.aclose()


def backend(spec: BackendSpec) -> FastChatUpstream:
    """Make the upstream for `fastchat+http(s)://controller:21001`."""
    return FastChatUpstream(Controller(_controller(spec)), spec.config, spec.name)


def _controller(spec: BackendSpec) -> HttpServer:
    base = f"{spec.scheme.removeprefix('fastchat+')}:{spec.location}"
    return HttpServer(base, timeout_s=spec.config.timeout_s)
