"""
The upstream for the native protocol of llama.cpp's server and of PowerInfer: /completion, /tokenize, /detokenize, /infill, embeddings.

It is for servers without another API (those of 2023 and PowerInfer), and for features that only this protocol has. The server's
generation, context and chat template are detected at start. Chats are rendered here. Rules:

1. Every request is a streaming request: a non-streaming one would not stop when its client disconnects.
2. A prompt that is too long is never sent: some servers truncate it silently, and its newest text is lost first.
3. An answer without its last frame (`stop: true`) was cut, and is never reported as finished.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import asyncio
import logging
from contextlib import aclosing

import msgspec
from msgspec import Struct

from unilect.api.backend import (
    Backend,
    BackendSpec,
    Batches,
    Capabilities,
    Description,
    NativeFacts,
)
from unilect.api.parameters.rules import refusal
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    RouteNotFound,
    UnilectError,
    UnsupportedOperation,
)
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.families import name_of, of_template
from unilect.http.client import HttpServer, server_at
from unilect.http.error_bodies import too_long, unknown_token
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.templates.chat import ChatTemplate, find, names
from unilect.templates.takes import ALL, Takes, stands_out, takes
from unilect.templates.turns import fit
from unilect.wire import llamacpp_request as wire
from unilect.wire.embeddings import decode_embeddings, embed_each
from unilect.wire.llamacpp import (
    Busy,
    FrameDecoder,
    Props,
    Settings,
    apply_template,
    decode_answer,
    detokenize,
    facts_of,
    pieces_of,
    post,
    raise_for,
    tokenize,
    with_prompt_tokens,
)
from unilect.wire.llamacpp_request import OF_2023, OF_2025, Generation
from unilect.wire.stream import stream

log = logging.getLogger("unilect")
TEMPLATE_OF_2023 = "oai-like-2023"
#: A server of 2023 gives the slot of a client that has left free with its next token, and refuses whoever comes before that.
BUSY_PAUSES_S = (0.1, 0.3, 1.0)
_EMBEDDINGS_AT_ONCE = 4
_OTHERS_HERE = frozenset({"chatglm3", "gemma", "zephyr"})  # FastChat's, and not llama.cpp's
_SPARE = 2  # tokens that may come before a text: a begin of sequence, a blank


class _Embedding(Struct):
    embedding: list[float] | None = None


class LlamaCppUpstream(Backend):
    """
    A model on a server with llama.cpp's native protocol.

    Args:
        server: The server.
        template: The chat template, instead of the server's own.
        model: The model's name there, for a server with several.
    """

    def __init__(
        self, server: HttpServer, template: ChatTemplate | None = None, model: str | None = None
    ) -> None:
        self._server = server
        self._given = template
        self._model = {"model": model} if model is not None else {}
        self._learning: asyncio.Task[None] | None = None
        self._learned = False
        self._generation = OF_2025
        self._template: ChatTemplate | None = template or find(TEMPLATE_OF_2023)
        self._tokens: dict[str, str] = {}
        self._takes: Takes | None = None
        self._marker: str | None = None
        self._sees: bool | None = None
        self._weights: str | None = None
        self._facts = NativeFacts()
        self.capabilities = _capabilities(OF_2025)

    async def start(self) -> None:
        """Detect the generation of the server; waiting callers share the result, also a failure; see `Backend`."""
        if not self._learned:
            if self._learning is None or self._learning.done():
                self._learning = spawn_detached(self._learn())
            await join_shared(self._learning)
            self._learned = True

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        try:
            prompt, images = await self._prompt(request)
            path, body = await self._body(request, prompt, images)
            ids = await self._ids(prompt) if request.tokenize else None
            for pause_s in (*BUSY_PAUSES_S, None):
                decoder = FrameDecoder(
                    not request.stream, wire.top_logprobs(request), bool(request.return_tokens)
                )
                answer = self._stream(path, body, decoder)
                if ids is not None:
                    answer = with_prompt_tokens(answer, ids)
                try:
                    async with aclosing(answer) as batches:
                        async for batch in batches:
                            yield batch
                    return
                except Busy:
                    if decoder.begun or pause_s is None:
                        raise
                    await asyncio.sleep(pause_s)
        except Busy:
            raise
        except (BackendError, BackendUnavailable):
            self._learned = False  # another model may answer there when it is up again
            raise

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""

        async def one(text: Prompt) -> Embeddings:
            await self._check_input(text)
            return await (self._embed_2023(text) if self._of_2023 else self._embed_2025(text))

        at_once = self.capabilities.max_in_flight or _EMBEDDINGS_AT_ONCE
        return await embed_each(request.inputs, one, at_once)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; a server of 2023 never adds special tokens. See `Backend`."""
        return await tokenize(self._server, text, special)

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text without special tokens in it; see `Backend`."""
        self._require_2025("parse_special")
        return await tokenize(self._server, text, special, plain=True)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        self._require_2025("with_pieces")
        try:
            return await pieces_of(self._server, tokens)
        except BackendError as error:  # 500 is what llama.cpp says to an id beyond its vocabulary
            raise unknown_token("prompt") from error

    def _require_2025(self, what: str) -> None:
        """
        Check that the server knows an option of /tokenize.

        Raises:
            UnsupportedOperation: It is of 2023, and knows none.
        """
        if self._of_2023:
            raise UnsupportedOperation(
                f"The model's server does not support `{what}`. Remove it, or ask another model."
            )

    async def render(self, request: ChatRequest) -> str:
        """Return the prompt of a chat, with a mark for each image; see `Backend`."""
        prompt, _ = await self._prompt(request)
        return str(prompt)

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        try:
            return await detokenize(self._server, tokens)
        except BackendError as error:  # 500 is what llama.cpp says to an id beyond its vocabulary
            raise unknown_token("prompt") from error

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of prompt tokens, without images; see `Backend`."""
        if isinstance(request, TextRequest):
            return await self._count((await self._prompt(request))[0])
        return await self._count(request)

    def describe(self) -> Description:
        """Describe the model, as its server does; see `Backend`."""
        return Description(quantization=self._weights)

    def native_facts(self) -> NativeFacts:
        """Return the server's own facts of its model; see `Backend`."""
        return self._facts

    async def check(self) -> None:
        """Check the server's health; a server of 2023 has no /health. See `Backend`."""
        await self._server.get("/props" if self._of_2023 else "/health")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._learning is not None:
            self._learning.cancel()
        await self._server.aclose()

    @property
    def _of_2023(self) -> bool:
        return self._generation is OF_2023

    async def _learn(self) -> None:
        """
        Detect the generation of the server.

        Raises:
            BackendUnavailable: The server is still loading, or unreachable.
            BackendError: It is not a llama.cpp server.
        """
        try:
            told = await self._server.get("/props")
            props = decode_answer(told, Props)
            settings, generation = props.default_generation_settings, OF_2025
            if settings.n_ctx is None and not await self._has_health():
                generation = OF_2023
                settings = decode_answer(await self._server.get("/model.json"), Settings)
        except RouteNotFound as error:
            raise BackendError(
                "The model's server does not have llama.cpp's native protocol at this URL: it has no /props. The operator must check `source`."
            ) from error
        self._template, self._tokens = self._given or find(TEMPLATE_OF_2023), {}
        self._takes = None
        if self._given is None and props.chat_template:
            self._template = _theirs(props.chat_template)
            # where the server does not begin the text itself, the template does
            begun = await tokenize(self._server, "", special=True)
            bos = "" if begun else props.bos_token
            self._tokens = {"bos_token": bos, "eos_token": props.eos_token}
        self._generation, self._weights = generation, props.model_ftype
        self._facts = facts_of(told, {})
        self._marker = None if self._of_2023 else props.media_marker
        self._sees = None if self._of_2023 else bool(props.modalities.get("vision"))
        self.capabilities = _capabilities(
            generation,
            settings.n_ctx,
            self._sees is not False,
            props.total_slots,
            name_of(of_template(self._template.text if self._template is not None else "")),
        )

    async def _has_health(self) -> bool:
        try:
            await self._server.get("/health")
        except RouteNotFound:
            return False
        return True

    async def _prompt(self, request: TextRequest) -> tuple[Prompt, list[str]]:
        """Return the rendered prompt, and its images as base64."""
        if isinstance(request, CompletionRequest):
            return request.prompts[0], []
        turns, images = wire.turns(request.messages, self._marker)
        if (template := self._template) is not None:
            if self._takes is None and stands_out(turns):
                self._takes = takes(lambda turns: template.render_turns(turns, **self._tokens))
            made = fit(turns, self._takes or ALL)
            return template.render_turns(made, **self._tokens), images
        body = {"messages": [{name: one[name] for name in ("role", "content")} for one in turns]}
        return await apply_template(self._server, body), images

    async def _body(
        self, request: TextRequest, prompt: Prompt, images: list[str]
    ) -> tuple[str, bytes]:
        """Return the path and the body of the request."""
        stop: tuple[str, ...] = ()
        if images:
            await self._check_sight()
        room = await self._room(prompt, request.token_limit)
        if isinstance(request, CompletionRequest) and request.fills_in:
            path, fields = "/infill", wire.infill_fields(request, prompt)
        else:
            path, fields = "/completion", wire.prompt_fields(prompt, images, self._marker)
        if isinstance(request, ChatRequest):
            stop = self._template.stop if self._template is not None else ()
        body = wire.body(request, self._generation, stop, room) | fields | self._model
        return path, msgspec.json.encode(body)

    async def _ids(self, prompt: Prompt) -> list[int]:
        return prompt if isinstance(prompt, list) else await self.tokenize(prompt)

    async def _room(self, prompt: Prompt, limit: int | None) -> int | None:
        """
        Return the limit of tokens for the answer. A prompt that is certainly short enough is not counted: a token is at least a byte.

        Raises:
            ContextLengthExceeded: The prompt is too long.
        """
        context, counts = self.capabilities.context, self._generation.shifts
        if context is None:
            return None
        most = len(prompt if isinstance(prompt, list) else prompt.encode()) + _SPARE
        if most < context and (not counts or (limit is not None and most + limit < context)):
            return context
        count = await self._count(prompt)
        if count >= context:
            raise too_long(count, context)
        return max(1, context - count - _SPARE) if counts else context

    async def _check_input(self, text: Prompt) -> None:
        try:
            await self._room(text, 0)
        except ContextLengthExceeded as error:
            error.param = "input"
            raise

    async def _count(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt, with those that the server adds before it; a server of 2023 does not report these."""
        if isinstance(prompt, list):
            return len(prompt)
        return len(await tokenize(self._server, prompt, special=True)) + self._of_2023

    async def _check_sight(self) -> None:
        """
        Detect once whether a server of 2023 supports images: it would drop them silently.

        Raises:
            InvalidRequest: It does not support images.
        """
        if self._sees is None:
            decoder = FrameDecoder()
            body = msgspec.json.encode({"prompt": " ", "n_predict": 1, "stream": True})
            async with aclosing(self._stream("/completion", body, decoder)) as batches:
                async for _ in batches:
                    pass
            self._sees = bool(decoder.multimodal)
        if not self._sees:
            raise InvalidRequest(
                "`messages` has an image, and the model's server was started without `--mmproj`. Leave the image out, or ask its operator.",
                param="messages",
            )

    async def _stream(self, path: str, body: bytes, decoder: FrameDecoder) -> Batches:
        """
        Send a streaming request and yield its events.

        Raises:
            UnilectError: As `HttpServer.stream` and `FrameDecoder`.
        """
        try:
            async with aclosing(stream(self._server.stream, path, body, decoder)) as batches:
                async for batch in batches:
                    yield batch
        except (RouteNotFound, UnsupportedOperation) as error:
            raise self._cannot(path) from error

    def _cannot(self, path: str) -> UnilectError:
        """Make the error for an endpoint that the server does not have or support."""
        if path == "/infill":
            parameters = {**self.capabilities.parameters, "suffix": "refused"}
            self.capabilities = msgspec.structs.replace(self.capabilities, parameters=parameters)
            return refusal("suffix", "its model has no fill-in-the-middle tokens")
        if self._of_2023:
            return Busy()  # it has the URL, and says so of every error
        return BackendError(
            "The model's server has no `/completion` at this URL; the operator must check `source`."
        )

    async def _embed_2025(self, text: Prompt) -> Embeddings:
        body = msgspec.json.encode({"input": text, "encoding_format": "float"} | self._model)
        try:
            return decode_embeddings(await self._server.post("/v1/embeddings", body))
        except (RouteNotFound, UnsupportedOperation) as error:
            raise _no_embeddings() from error

    async def _embed_2023(self, text: Prompt) -> Embeddings:
        """Without `--embedding` a server returns zeros, and a busy one no vector, both with status 200."""
        answer = await post(self._server, "/embedding", {"content": text}, _Embedding)
        if answer.embedding is None:
            raise Busy
        if not any(answer.embedding):
            raise _no_embeddings()
        return Embeddings([answer.embedding], await self._count(text))


def _capabilities(
    generation: Generation,
    context: int | None = None,
    vision: bool = False,
    slots: int | None = None,
    tool_form: str = "",
) -> Capabilities:
    return Capabilities(
        parameters=generation.parameters,
        passes_unknown=True,
        fans_out=True,
        max_in_flight=generation.max_in_flight,
        context=context,
        vision=vision,
        image_urls=False,
        resumes="text",
        slots=slots,
        tool_form=tool_form,
        is_final=False,  # the server says it
    )


def _theirs(template: str) -> ChatTemplate | None:
    """
    Return a server's own template: Jinja or a format's name, never a path, because that would be a path on this machine.

    None for a template that cannot be used here, such as one that is built into the server: the server then renders each chat.
    """
    try:
        if "{" in template:
            return ChatTemplate(template)
        if template in names() and template not in _OTHERS_HERE:
            return find(template)
    except ConfigError as error:
        log.warning("%s", error)
    return None


def _no_embeddings() -> UnsupportedOperation:
    return UnsupportedOperation(
        "The model's server was started without embeddings; start it with `--embedding`."
    )


def backend(spec: BackendSpec) -> LlamaCppUpstream:
    """
    Make the upstream for `llamacpp+http(s)://host:port/prefix`.

    Raises:
        ConfigError: The URL, or the chat template, is invalid.
    """
    config = spec.config
    url = f"{spec.scheme.removeprefix('llamacpp+')}:{spec.location}"
    server = server_at(url, config, raise_for)
    template = find(config.chat_template) if config.chat_template is not None else None
    return LlamaCppUpstream(server, template, config.model)
