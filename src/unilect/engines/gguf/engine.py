"""
GGUF models: llama.cpp's server in a supervised child process, over a unix socket.

One child generates; a second one, started by the first request for embeddings, embeds: llama.cpp wants a text to be embedded
read in one step, and a prompt that can be given up midway read in small ones. A model that only embeds has the second alone.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unilect import hub
from unilect.backend import Backend, BackendSpec, Batches, Capabilities, Description
from unilect.config.model import ModelConfig
from unilect.constraints.checker import Checker
from unilect.constraints.keywords import LLAMACPP
from unilect.engines import text_bounds as bounds
from unilect.engines.fetched import when_here
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._answers import (
    CONVERSATION,
    chatted,
    completed,
    echoed,
    forced_call,
    rendered,
    text_of,
    without_alternatives,
)
from unilect.engines.gguf._constraint import calls_grammar, constrained
from unilect.engines.gguf._errors import attribute_error, raise_for_child
from unilect.engines.gguf._file import read_head, read_model, unknown_architecture
from unilect.engines.gguf._memory import needs, where
from unilect.engines.gguf._memory import told as sizes_of
from unilect.engines.gguf._settings import child_settings, lora_of, template_of
from unilect.engines.gguf._slots import Slots
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.memory import resident_bytes
from unilect.engines.process.supervisor import Supervisor
from unilect.engines.settings import checked, context_of
from unilect.engines.tools.forced import call_style, must_call
from unilect.errors import BackendError, InvalidRequest
from unilect.events import tells
from unilect.http.client import HttpServer
from unilect.http.error_bodies import too_long, unknown_token
from unilect.parameters.support import TOOL_PARAMETERS
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings, Prompt
from unilect.upstreams.llamacpp.frames import Tokens, with_prompt_tokens
from unilect.upstreams.openai.embeddings import decode_embeddings, embed_each

log = logging.getLogger("unilect")
_EMBEDDINGS_AT_ONCE = 8
_CHILD = "unilect.engines.gguf._child"
_RERANKER = "its file is a reranker, which does not support embeddings"
_Value = TypeVar("_Value")


class _Props(Struct):
    """What /props of llama-server says, as far as we ask."""

    chat_template: str = ""
    chat_template_caps: dict[str, Any] = {}
    modalities: dict[str, bool] = {}
    default_generation_settings: dict[str, Any] = {}


class _Models(Struct):
    data: list[dict[str, Any]]


class _Count(Struct):
    input_tokens: int


class GgufEngine:
    """
    A GGUF file that we serve.

    Args:
        name: The model's name, for logs.
        path: The file.
        config: Its settings.
        threads: Processor threads, where the settings do not say.
        on_progress: Called with a fraction from 0 to 1 while the model loads.
        checker: The server's; None for one of the engine's own.
        engines: How many engines the server has, among which the memory for prompts is shared out.

    Raises:
        ConfigError: The file, or a setting, is wrong. Nothing has been started.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        config: ModelConfig,
        threads: int = 1,
        on_progress: Callable[[float], None] | None = None,
        checker: Checker | None = None,
        engines: int = 1,
    ) -> None:
        self._engines = engines
        self._name = name
        self._head = checked(read_model, path)
        self._ranks = self._head.ranks and config.pooling is None
        self._path = path
        self._config = config
        self._threads = config.threads or threads
        self._context = context_of(self._head.context, config)
        self._lora = [lora_of(text) for text in config.lora]
        self._template, self._stop = template_of(config.chat_template)
        if config.mmproj:
            checked(read_head, Path(config.mmproj))
        self._key = secrets.token_urlsafe(24)
        self._on_progress = on_progress
        self._generator = self._child(name, embedding=False)
        self._embedder = self._child(f"{name} (embeddings)", embedding=True)
        self._supervisors = {
            self._generator: Supervisor(self._generator, self._ask, config.hang_timeout_s),
            # a long text is one step, which may take minutes
            self._embedder: Supervisor(self._embedder),
        }
        self._slots = Slots(config.parallel)
        self._checker = checker or Checker()
        self._has_own_checker = checker is None
        self._vocabulary: int | None = None
        self._told = self._is_known = False
        self._servers: dict[ChildProcess, tuple[int | None, HttpServer]] = {}
        self._chat_template = self._template or ""
        self._style = call_style(self._chat_template)
        self.capabilities = Capabilities(
            parameters=wire.PARAMETERS,
            fans_out=True,
            context=self._context,
            vision=config.mmproj is not None,
            schema_keywords=LLAMACPP,
            chat=not self._head.embedding_only
            and (self._template is not None or self._head.has_template),
            completions=not self._head.embedding_only,
            slots=config.parallel,
            embeddings=not self._ranks,
            why_not={"embeddings": _RERANKER} if self._ranks else {},
        )

    async def start(self) -> None:
        """Start the child that this model mainly needs; see `Backend`."""
        if self._is_known and self._main.comes_back:
            return  # what is refused is told without waiting for it; who is not waits in `run`
        with unknown_architecture(self._path, self._head):
            self._tell(await self._main.start())
        if not self._head.embedding_only:
            server = await self._server(self._generator)
            self._learn(msgspec.json.decode(await server.get("/props"), type=_Props))
            models = msgspec.json.decode(await server.get("/v1/models"), type=_Models)
            self._vocabulary = models.data[0]["meta"]["n_vocab"]
        self._is_known = True

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer a request, once it is its turn; see `Backend`."""
        bounds.check_request(request, self._longest)
        supervisor = self._supervisors[self._generator]
        supervisor.check(request)
        body = await self._body(request)  # what is wrong with it is told without waiting
        slot = await self._slots.take(wire.conversation(request))
        try:
            async with supervisor.watch(request) as ticket:
                batches = await self._generated(request, body | {"id_slot": slot})
                async with aclosing(batches):
                    async for batch in batches:
                        if ticket.on_begin is not None and tells(batch):
                            ticket.begun()
                        yield batch
        except InvalidRequest as error:
            raise attribute_error(error, request) from error
        finally:
            self._slots.give_back(slot)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        bounds.check_request(request, self._longest)

        async def one(text: Prompt) -> Embeddings:
            server = await self._server(self._embedder)
            await self._check_length(server, text)
            body = msgspec.json.encode({"input": text, "encoding_format": "float"})
            try:
                return decode_embeddings(await server.post("/v1/embeddings", body))
            except InvalidRequest as error:
                raise attribute_error(error, request) from error

        async def watched(text: Prompt) -> Embeddings:
            return await self._supervisors[self._embedder].call(text, lambda: one(text))

        return await embed_each(request.inputs, watched, _EMBEDDINGS_AT_ONCE)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text; see `Backend`."""
        bounds.check_tokenize(text, self._longest)
        return await self._call(text, lambda server: self._tokenize(server, text, special))

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids; see `Backend`."""
        bounds.check_tokenize(tokens, self._longest)

        async def ask(server: HttpServer) -> str:
            try:
                return await text_of(server, tokens)
            except BackendError as error:
                # 500 is what llama.cpp says to an id beyond its vocabulary
                if await self._main.has_ended(self._main.starts):
                    raise
                raise unknown_token("prompt") from error

        return await self._call(tokens, ask)

    async def count_tokens(self, request: ChatRequest | CompletionRequest | Prompt) -> int:
        """The number of tokens that the model would read; see `Backend`."""
        bounds.check_request(request, self._longest)

        async def ask(server: HttpServer) -> int:
            if isinstance(request, ChatRequest):
                body = msgspec.json.encode(wire.template_body(request))
                answer = await server.post("/v1/chat/completions/input_tokens", body)
                return msgspec.json.decode(answer, type=_Count).input_tokens
            prompt = request.prompts[0] if isinstance(request, CompletionRequest) else request
            return len(await self._ids(server, prompt, special=True))

        return await self._call(request, ask)

    def describe(self) -> Description:
        """What the model is, as its file says; see `Describes`."""
        return self._head.description

    async def check(self) -> None:
        """Wait until a child that died is back; see `Backend`."""
        await self._main.start()

    async def aclose(self) -> None:
        """Stop both children; see `Backend`."""
        self._slots.dismiss()
        servers = [server for _, server in self._servers.values()]
        self._servers.clear()
        await asyncio.gather(*(server.aclose() for server in servers))
        await asyncio.gather(*(one.aclose() for one in self._supervisors.values()))
        if self._has_own_checker:
            await self._checker.aclose()
            self._checker = Checker()  # the engine may be started again

    async def _ask(self) -> None:
        """Something that llama.cpp answers from its queue, between two steps."""
        await (await self._server(self._generator)).get("/metrics")

    async def _body(self, request: ChatRequest | CompletionRequest) -> dict[str, Any]:
        lora = [{"id": id, "scale": scale} for id, (_, scale) in enumerate(self._lora)]
        if isinstance(request, CompletionRequest):
            body = wire.completion_body(request, lora, self._vocabulary)
            return await constrained(request, body, self._checker, self._chat_template)
        body = wire.chat_body(request, lora, self._vocabulary)
        if must_call(request):
            body["grammar"] = await calls_grammar(request, self._style, self._checker)
        else:
            body = await constrained(request, body, self._checker, self._chat_template)
        if self._stop:
            body["stop"] = [*body.get("stop", []), *self._stop]
        return body

    async def _prompt_ids(
        self, server: HttpServer, request: ChatRequest | CompletionRequest
    ) -> list[int]:
        """The ids of a request's prompt, without what the server puts before it."""
        if isinstance(request, ChatRequest):
            return await self._tokenize(server, await rendered(server, request), special=False)
        return await self._ids(server, request.prompts[0], special=False)

    async def _ids(self, server: HttpServer, prompt: Prompt, special: bool) -> list[int]:
        """The ids of a prompt, with or without what the server puts before it."""
        return prompt if isinstance(prompt, list) else await self._tokenize(server, prompt, special)

    async def _generated(
        self, request: ChatRequest | CompletionRequest, body: dict[str, Any]
    ) -> Batches:
        """What the child is to make of a body, from its first event on."""
        server = await self._server(self._generator)
        batches = await self._asked(server, request, body)
        if wire.wants_no_alternatives(request):
            batches = without_alternatives(batches)
        if request.tokenize:
            batches = with_prompt_tokens(batches, await self._prompt_ids(server, request))
        return batches

    async def _asked(
        self, server: HttpServer, request: ChatRequest | CompletionRequest, body: dict[str, Any]
    ) -> Batches:
        if isinstance(request, CompletionRequest) and request.echo:
            ids = await self._ids(server, request.prompts[0], special=True)
            if len(ids) >= self._longest:
                raise too_long(len(ids), self._longest)
            if max(ids, default=0) >= (self._vocabulary or 2**31):
                raise unknown_token("prompt")
            return echoed(server, request, body, ids)
        if isinstance(request, CompletionRequest):
            return completed(server, request, body)
        if not must_call(request):
            return chatted(server, request, body, self._chat_template)
        prompt = await rendered(server, request)
        without = (*CONVERSATION, "stop")
        sampling = {name: value for name, value in body.items() if name not in without}
        return forced_call(server, request, prompt, sampling, self._style)

    def _learn(self, props: _Props) -> None:
        """What only the loaded model knows."""
        self._chat_template = self._template or props.chat_template
        self._style = call_style(self._chat_template)
        parameters = dict(wire.PARAMETERS)
        if not props.chat_template_caps.get("supports_tools"):
            parameters |= dict.fromkeys(TOOL_PARAMETERS, "refused")
        if "enable_thinking" not in self._chat_template:
            parameters["enable_thinking"] = "refused"
        self.capabilities = msgspec.structs.replace(
            self.capabilities,
            parameters=parameters,
            context=props.default_generation_settings.get("n_ctx", self._context),
            vision=bool(props.modalities.get("vision")),
        )

    def _child(self, name: str, embedding: bool) -> ChildProcess:
        fixed = child_settings(
            name,
            self._path,
            self._head,
            self._config,
            context=self._context,
            threads=self._threads,
            lora=self._lora,
            template=self._template,
            engines=self._engines,
            embedding=embedding,
        )

        def settings(socket_path: str) -> dict[str, Any]:
            return fixed | {"socket_path": socket_path, "api_key": self._key}

        return ChildProcess(
            name,
            python_command(_CHILD),
            settings,
            start_timeout_s=self._config.start_timeout_s,
            # else it calls gdb when it ends, which takes seconds
            environment={"GGML_NO_BACKTRACE": "1"},
            on_progress=self._report if self._on_progress is not None else None,
        )

    def _tell(self, said: dict[str, Any]) -> None:
        """Say once where the model runs, and what it takes."""
        if self._told:
            return
        self._told = True
        if said["warning"]:
            log.warning("%s", said["warning"])
        need = needs(self._head, self._path, self._config, self._context, self._head.embedding_only)
        on = where(self._head, said["devices"], self._config.gpu_layers, self._threads)
        log.info("%s: on %s; %s", self._name, on, sizes_of(need))

    def _report(self, pid: int) -> None:
        """Progress is the part of the file that the child has in memory; llama.cpp itself tells none."""
        if self._on_progress is not None:
            self._on_progress(min(1.0, resident_bytes(pid) / max(1, self._head.size_bytes)))

    async def _server(self, child: ChildProcess) -> HttpServer:
        """The connection to a started child; a new one after every start."""
        pid, server = self._servers.get(child, (None, None))
        if server is None or pid != child.pid:
            if server is not None:
                await server.aclose()
            server = HttpServer(
                "http://engine",
                headers={"Authorization": f"Bearer {self._key}"},
                socket_path=child.socket_path,
                timeout_s=self._config.timeout_s,
                raise_for=raise_for_child,
            )
            self._servers[child] = (child.pid, server)
            if child is self._generator:
                self._slots.forget()
        return server

    @property
    def _longest(self) -> int:
        """The context, as llama.cpp has rounded it up."""
        return self.capabilities.context or self._context

    @property
    def _main(self) -> ChildProcess:
        return self._embedder if self._head.embedding_only else self._generator

    async def _call(
        self, request: Any, ask: Callable[[HttpServer], Coroutine[Any, Any, _Value]]
    ) -> _Value:
        """What the main child says to a call of one answer."""

        async def function() -> _Value:
            return await ask(await self._server(self._main))

        return await self._supervisors[self._main].call(request, function)

    async def _tokenize(self, server: HttpServer, text: str, special: bool) -> list[int]:
        body = msgspec.json.encode({"content": text, "add_special": special})
        return msgspec.json.decode(await server.post("/tokenize", body), type=Tokens).tokens

    async def _check_length(self, server: HttpServer, text: Prompt) -> None:
        """
        Count only what may be too long: a token is at least a byte.

        Raises:
            ContextLengthExceeded: The input is longer than the context.
        """
        count = len(text if isinstance(text, list) else text.encode())
        if count + 2 > self._context and isinstance(text, str):
            count = len(await self._tokenize(server, text, special=True))
        if count > self._context:
            raise bounds.beyond(self._context, count, "input")


def backend(spec: BackendSpec) -> Backend:
    """
    The engine for `path/to/x.gguf` or `gguf:...`: a local file, or one of the hub as `org/repo/file.gguf`.

    Raises:
        ConfigError: There is no such file, or it is no valid GGUF file.
    """
    return when_here(spec, hub.local_file, engine)


def engine(spec: BackendSpec, path: Path) -> GgufEngine:
    """The engine for a file, with the settings of a model."""
    return GgufEngine(
        spec.name,
        path,
        spec.config,
        spec.threads,
        lambda part: spec.progress("loading", part),
        spec.checker,
        spec.engines,
    )
