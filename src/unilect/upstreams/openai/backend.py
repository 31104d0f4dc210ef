"""
The upstream for OpenAI-compatible servers: vLLM, SGLang, llama-server, Ollama, LiteLLM, cloud APIs.

Requests are sent as streaming requests, also for non-streaming clients: many servers keep generating when a non-streaming client
disconnects, and none does when a streaming client disconnects. Non-streaming requests are sent only to a server that is known to
stop in both cases, or with `whole_answers = "whole"`. Unknown fields are passed on unchanged.

Source: https://platform.openai.com/docs/api-reference
"""

import asyncio
import logging
import math
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Raw

from unilect.api.backend import Backend, BackendSpec, Batches, Capabilities, Description
from unilect.api.parameters.rules import collect_fields
from unilect.core.errors import BackendError, InvalidRequest, UnsupportedOperation
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Prompt,
    TextRequest,
)
from unilect.http.base_url import check_base, root_of
from unilect.http.client import HttpServer, server_at
from unilect.http.error_bodies import NoSuchPath
from unilect.runtime.context import current_request
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.upstreams.openai._again import Forms, PatientServer, in_form
from unilect.upstreams.openai._salt import Salts
from unilect.upstreams.openai._servers import UNKNOWN, check, more_fields, wire_fields
from unilect.upstreams.openai._stops import cutter
from unilect.upstreams.openai._tokens import Tokens
from unilect.upstreams.openai.detect import choose, learn, model_cards
from unilect.upstreams.openai.tei import TextEmbeddings
from unilect.wire import rerank as ranking
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.embeddings import decode_embeddings
from unilect.wire.stream import map_batches, stream
from unilect.wire.whole import decode_whole

log = logging.getLogger("unilect")
DOUBT_S = 5.0  # a server that was away, or has lost the model, is asked again no sooner after the last time
LEARN_AGAIN_S = 30.0  # a server that could not be reached is asked again what it is after so long
_FALSE = Raw(b"false")
_TRUE = Raw(b"true")
_USAGE = Raw(b'{"include_usage":true}')


#: A server that we know nothing of is handed every parameter.
PASSES_ALL = Capabilities(passes_unknown=True, vision=True, rerank=True)


class OpenAIUpstream(Backend):
    """
    A model on a server that speaks OpenAI's API.

    Args:
        server: The server; its base URL ends before `/chat/completions`.
        model: The model's name there; None: detected.
        name: The model, if the server has one of this name; else its only model.
        root: The server's root, for detection; None: no detection.
        whole_answers: How non-streaming requests are sent; None: non-streaming if the server is known to stop.
        shares_cache: Callers are not kept apart in the prompt cache of a server that can do so.

    Attributes:
        kind: The detected kind of server.
    """

    def __init__(
        self,
        server: HttpServer,
        model: str | None = None,
        name: str = "",
        root: HttpServer | None = None,
        whole_answers: Literal["stream", "whole"] | None = "stream",
        shares_cache: bool = False,
    ) -> None:
        self._server = server
        self._root = root
        self._model = model
        self._theirs = model or ""
        self._name = name
        self._asked_for = self._whole_answers = whole_answers
        self._asking: asyncio.Task[None] | None = None
        self._next_try = -math.inf
        self._asked_at = -math.inf
        self._doubts = 0
        self._gives_logits: bool | None = None  # where documents are ranked; None is not known
        self._forms = Forms()
        self._salts = Salts(shares_cache)
        self._takes_salt = False
        self._lists = False  # the base URL is right: its list of models was found
        self.kind = UNKNOWN
        self.capabilities = PASSES_ALL
        self._description = Description()
        self._texts: TextEmbeddings | None = None

    async def start(self) -> None:
        """
        Detect the kind of server, and the model's name if none is configured: once, and again if another server may run there by now.

        Raises:
            BackendUnreachable: The connection failed.
        """
        if self._server.doubts != self._doubts:
            self._doubt()
        if asyncio.get_running_loop().time() >= self._next_try:
            if self._asking is None or self._asking.done():
                self._asking = spawn_detached(self._ask())
            await join_shared(self._asking)

    async def _ask(self) -> None:
        """Detect, in one task for all waiting callers, which also share a failure."""
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        learnt_for_s = await self._learn()
        self._next_try = loop.time() + learnt_for_s
        self._doubts = self._server.doubts

    def _doubt(self) -> None:
        """Repeat the detection later: the server was unreachable, or no longer knows the model."""
        self._doubts = self._server.doubts
        self._gives_logits = None
        self._next_try = min(self._next_try, self._asked_at + DOUBT_S)

    async def _learn(self) -> float:
        """Detect; returns the seconds until the detection is to be repeated."""
        if self._root is None:
            if self._model is None:
                listed = await model_cards(self._server)
                self._theirs = choose(listed, self._name)
            return math.inf
        detected = await learn(self._server, self._root, self._model, self._name)
        if detected is None:
            if self._server.lost is not None:
                raise self._server.unreachable(self._server.lost)
            return LEARN_AGAIN_S
        new = (detected.model, detected.kind, detected.capabilities)
        if new != (self._theirs, self.kind, self.capabilities):
            log.info("%s: a server of kind %s", self._name or detected.model, detected.kind.name)
            self._forms = Forms()
        self._theirs, self.kind, self.capabilities = new
        self._lists, self._description = detected.lists, detected.description
        self._takes_salt = detected.takes_salt
        self._texts = TextEmbeddings(self._root, detected.info) if detected.info else None
        if detected.reason is not None:
            log.warning("%s: %s", self._name or detected.model, detected.reason)
        if self._asked_for is None:
            self._whole_answers = "whole" if detected.kind.stops_whole else "stream"
        return math.inf

    def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        check(self.kind, request)
        path = "/chat/completions" if isinstance(request, ChatRequest) else "/completions"
        whole = self._whole_answers == "whole" and not request.stream
        body_of = self._whole_body if whole else self._stream_body
        server = PatientServer(self._server, request, body_of, self._forms)
        if whole:
            batches = _whole(server, path, server.body(), _choices(request))
        else:
            decoder = ChunkDecoder(not request.stream, _choices(request))
            batches = stream(server.stream, path, server.body(), decoder, current_request().push)
        return batches if not self.kind.keeps_stop_words else map_batches(batches, cutter(request))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        if self._texts is not None:
            return await self._texts.embed(request)
        fields = request_fields(request, without=("model",))
        body = {"model": self._theirs} | wire_fields(self.kind, fields)
        body["encoding_format"] = Raw(b'"float"')
        answer = await self._post("/embeddings", msgspec.json.encode(body), "embeddings")
        embeddings = decode_embeddings(answer)
        if len(embeddings.vectors) != len(request.inputs):
            raise BackendError(
                f"The model's server answered {len(request.inputs)} inputs with "
                f"{len(embeddings.vectors)} vectors. Try again, or ask its operator."
            )
        return embeddings

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        if self._texts is not None:
            return await self._texts.rerank(request)
        if self._gives_logits is None and self.kind.name == "llama-server":
            self._gives_logits = ranking.are_logits(await self._rank(ranking.PROBE))
        found = await self._rank(request)
        if not request.raw_scores and (self._gives_logits or ranking.are_logits(found)):
            self._gives_logits = True
            return ranking.from_logits(found)
        return found

    async def _rank(self, request: RerankRequest) -> Ranking:
        """Ask the server for its ranking; the scores are as it gives them."""
        body = ranking.wire_body(request, self._theirs, self.kind.name)
        answer = await self._post("/rerank", body, "reranking")
        return ranking.decode_ranking(answer, len(request.documents))

    async def _post(self, path: str, body: bytes, what: str) -> bytes:
        """
        Post to a path that not every server has.

        Raises:
            UnsupportedOperation: The base URL is right, and there is no such path.
        """
        try:
            return await self._server.post(path, body)
        except NoSuchPath as error:
            if not self._lists:
                raise
            raise UnsupportedOperation(
                f"The model's server does not support {what}. Choose another model."
            ) from error

    def describe(self) -> Description:
        """Describe the model, as its server does; see `Backend`."""
        return self._description

    async def check(self) -> None:
        """Request the list of models, which costs a server least; any answer except a failure is sufficient."""
        with suppress(InvalidRequest, NoSuchPath):
            await self._server.get("/models")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._asking is not None:
            self._asking.cancel()
        await self._server.aclose()
        if self._root is not None:
            await self._root.aclose()

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; see `Backend`."""
        return await self._tokens.ids(text, special)

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        return await self._tokens.text(tokens)

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of tokens that the model would read; see `Backend`."""
        if isinstance(request, ChatRequest):
            turns = in_form(request, self._forms.first)
            more = {} if turns is None else {"messages": turns}
            return await self._tokens.of_chat(self._fields(request) | more)
        prompt = request.prompts[0] if isinstance(request, CompletionRequest) else request
        return len(prompt if isinstance(prompt, list) else await self.tokenize(prompt, True))

    @property
    def _tokens(self) -> Tokens:
        return Tokens(self._server, self._root, self.kind, self._theirs)

    def _fields(self, request: GenerationRequest) -> dict[str, Any]:
        """Make the fields that the bodies of whole answers and streams share."""
        fields = request_fields(request, without=("model", "stream", "stream_options"))
        return wire_fields(self.kind, fields) | more_fields(self.kind, request)

    def _whole_body(self, request: GenerationRequest, messages: list[Any] | None = None) -> bytes:
        """Return the body that asks for a whole answer."""
        return self._body(request, messages, {"stream": _FALSE})

    def _stream_body(self, request: GenerationRequest, messages: list[Any] | None = None) -> bytes:
        """Return the body that asks for a stream."""
        more = {"stream": _TRUE}
        if self.kind.stream_options:
            more["stream_options"] = _USAGE
        if self.kind.tells_progress and isinstance(request, ChatRequest):
            more["return_progress"] = _TRUE
        return self._body(request, messages, more)

    def _body(
        self, request: GenerationRequest, messages: list[Any] | None, more: dict[str, Raw]
    ) -> bytes:
        """Encode the fields of a request, with the caller's salt for a server that takes one."""
        fields = self._fields(request)
        fields |= self._salts.of(fields) if self._takes_salt else {}
        fields |= {"model": self._theirs, **more}
        return msgspec.json.encode(fields if messages is None else fields | {"messages": messages})


def _choices(request: TextRequest) -> int:
    prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
    return prompts * (request.n or 1)


async def _whole(server: PatientServer, path: str, body: bytes, choices: int) -> Batches:
    """Send a non-streaming request and yield its events, all at once."""
    yield decode_whole(await server.post(path, body), choices)


def request_fields(request: Any, without: tuple[str, ...]) -> dict[str, Any]:
    """
    Return the fields of a request for the upstream's body: unchanged if the request came from OpenAI's dialect, else encoded
    from the Struct.
    """
    fields = request.raw_fields or collect_fields(request)
    return {name: value for name, value in fields.items() if name not in without}


async def list_models(spec: BackendSpec) -> list[str]:
    """Return the names of all models of a server."""
    server = _server(spec)
    try:
        return [str(card["id"]) for card in await model_cards(server)]
    finally:
        await server.aclose()


def backend(spec: BackendSpec) -> OpenAIUpstream:
    """Make the upstream for `http(s)://host/v1` or `openai+http(s)://host/any/base`."""
    config, server = spec.config, _server(spec)
    root = server_at(root_of(_url(spec)), config)
    whole_answers = None if config.whole_answers == "auto" else config.whole_answers
    return OpenAIUpstream(server, config.model, spec.name, root, whole_answers, config.share_cache)


def _url(spec: BackendSpec) -> str:
    return f"{spec.scheme.removeprefix('openai+')}:{spec.location}"


def _server(spec: BackendSpec) -> HttpServer:
    check_base(_url(spec))
    return server_at(_url(spec), spec.config)
