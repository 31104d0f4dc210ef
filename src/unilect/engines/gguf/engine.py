"""
GGUF models: llama.cpp's server in a supervised child process, over a unix socket.

One child generates; a second one, started by the first request for embeddings, embeds: llama.cpp wants a text to be embedded
read in one step, and a prompt that can be given up midway read in small ones. A model that only embeds, or ranks, has the second alone.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from unilect.api.backend import (
    Backend,
    BackendSpec,
    Batches,
    Description,
    MemoryNeed,
    NativeFacts,
    SlotAction,
)
from unilect.config.model import ModelConfig
from unilect.constraints.checker import Checker
from unilect.core.errors import BackendError, InvalidRequest, UnsupportedOperation
from unilect.core.events import tells
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.engines import text_bounds as bounds
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._answers import (
    of_server,
    start_chat,
    stream_completion,
    stream_echo,
    without_alternatives,
)
from unilect.engines.gguf._cache_isolation import CacheIsolation
from unilect.engines.gguf._constraint import add_constraints
from unilect.engines.gguf._errors import attribute_error, raise_for_child
from unilect.engines.gguf._file import load_failure, read_model
from unilect.engines.gguf._infill import gap_ids
from unilect.engines.gguf._kept import KeptConversations
from unilect.engines.gguf._lora import empty
from unilect.engines.gguf._memory import Needs, describe_most, device_summary
from unilect.engines.gguf._model import Loaded, ranks, read_started, refine, static_capabilities
from unilect.engines.gguf._ranking import Ranker
from unilect.engines.gguf._saved import SavedSlots
from unilect.engines.gguf._settings import child_settings, read_beside
from unilect.engines.gguf._slots import Slots
from unilect.engines.gguf._turns import ModelTemplate, check_length
from unilect.engines.gguf.fit import EngineMemory, MachineMemory, choose_size
from unilect.engines.gguf.source import list_models as list_models
from unilect.engines.gguf.source import make_backend
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.child_server import ChildServer
from unilect.engines.settings import read_checked
from unilect.http.client import HttpServer
from unilect.http.error_bodies import too_long, unknown_token
from unilect.runtime.memory import resident_bytes
from unilect.runtime.tasks import Tasks
from unilect.tools.forced import must_call
from unilect.tools.grammar import calls_grammar
from unilect.wire.embeddings import decode_embeddings, embed_each
from unilect.wire.llamacpp import detokenize, pieces_of, tokenize, with_prompt_tokens
from unilect.wire.llamacpp_request import top_logprobs

log = logging.getLogger("unilect")
_Value = TypeVar("_Value")


class GgufEngine(Backend):
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
        several_callers: The server has a key: there may be several callers.
        memory: The bytes that all engines may take together; None for all that is free.
        machine: The machine's memory; None to look at it now.

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
        several_callers: bool = False,
        memory: int | None = None,
        machine: MachineMemory | None = None,
    ) -> None:
        self._engines, self._memory, self._name = engines, memory, name
        self._machine = machine or MachineMemory()
        self._head = read_checked(read_model, path)
        self._writes = not (self._head.embedding_only or ranks(self._head, config))
        self._path, self.files = path, (path,)
        self._adapters, self._template, self._stop = read_beside(self._head, config)
        self._context, parallel = choose_size(
            name, self._head, config, not self._writes, memory, self._machine
        )
        self._config = config = replace(config, parallel=parallel)
        self._threads = config.threads or threads
        self._emptying = Tasks()
        self._key = secrets.token_urlsafe(24)
        self._on_progress = on_progress
        self._ranker = Ranker(self._head, self._context)
        self._slots = Slots(parallel)
        self._needs: dict[bool, EngineMemory] = {}  # of the child that embeds, and of the other
        generator, embedder = self._process(embedding=False), self._process(embedding=True)
        own = (self._key, config.timeout_s, raise_for_child)
        watch = (self._slots.note_progress, config.hang_timeout_s)
        self._generator = ChildServer(generator, *own, self._slots.forget, *watch)
        # not watched: a long text is one step, which may take minutes
        self._embedder = ChildServer(embedder, *own, self._tell_of_embedder)
        self.children = (generator, embedder)
        self._isolation = CacheIsolation(name, self._slots, config.share_cache, several_callers)
        self._saved = SavedSlots(path, config)
        self._kept = KeptConversations(name, path, config, self._writes)
        generator.before_stop = self._keep
        self._chat_template = ModelTemplate(self._template or self._head.template)
        self._checker, self._has_own_checker = checker or Checker(), checker is None
        self._loaded: Loaded | None = None
        self._told, self._is_known, self._template_fault, self._build = False, False, "", ""
        self.device = ""
        self._known = self.capabilities = static_capabilities(
            self._head, config, self._chat_template.text, self._context, self._adapters.public
        )

    async def start(self) -> None:
        """Start the child that this model mainly needs; see `Backend`."""
        if self._is_known and self._main.process.comes_back:
            return  # what is refused is told without waiting for it; who is not waits in `run`
        await self._needs[not self._writes].require_room()
        with load_failure(self._path, self._head):
            said = await self._main.process.start()
        self._tell(said)
        self._build = said["build"]
        if self._writes:
            await self._kept.open(said["build"], said["devices"])
            loaded = await read_started(self._generator, self._template)
            self._learn(loaded, said.get("template_fault", ""))
        self._is_known = True

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request, once it is its turn; see `Backend`."""
        bounds.check_request(request, self._longest)
        supervisor = self._generator.supervisor
        supervisor.check(request)
        body = await self.compile(request)  # what is wrong with it is told without waiting
        apart = self._adapters.changes(request)
        await self._isolation.ensure(self._generator.process)
        prompt = b"" if apart else wire.conversation(request)
        slot = await self._slots.acquire(prompt, request.id_slot)
        try:
            async with supervisor.watch(request) as ticket:
                self._slots.tickets[slot] = ticket
                if self._kept.on:
                    await self._kept.fill(
                        await self._generator.connect(), self._slots, slot, prompt
                    )
                batches = await self._generate(request, body | self._slots.fields(slot))
                async with aclosing(batches):
                    async for batch in batches:
                        if not ticket.acked:
                            batch = [*of_server(request, self._build, slot), *batch]
                        ticket.acked = True
                        self._slots.note_batch(slot, batch)
                        if ticket.on_begin is not None and tells(batch):
                            ticket.note_begin()
                        yield batch
        except InvalidRequest as error:
            if not apart:
                self._slots.note_refused(slot)
            raise attribute_error(error, request) from error
        finally:
            if apart:  # nothing is waited for here: who leaves may be cancelled again
                empty(self._emptying, self._slots, slot, self._generator)
            else:
                self._slots.release(slot)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        bounds.check_request(request, self._longest)

        async def one(text: Prompt, server: HttpServer) -> Embeddings:
            await check_length(server, text, self._context)
            body = msgspec.json.encode({"input": text, "encoding_format": "float"})
            try:
                return decode_embeddings(await server.post("/v1/embeddings", body))
            except InvalidRequest as error:
                raise attribute_error(error, request) from error

        async def supervise(text: Prompt) -> Embeddings:
            return await self._embedder.call(text, partial(one, text))

        return await embed_each(request.inputs, supervise, at_once=8)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        return await self._ranker.rank(request, self._main)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; see `Backend`."""
        bounds.check_tokenize(text, self._longest)
        return await self._main.call(text, lambda server: tokenize(server, text, special))

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text without special tokens in it; see `Backend`."""
        bounds.check_tokenize(text, self._longest)
        return await self._main.call(
            text, lambda server: tokenize(server, text, special, plain=True)
        )

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        return await self._of_ids(tokens, detokenize)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        return await self._of_ids(tokens, pieces_of)

    async def render(self, request: ChatRequest) -> str:
        """Return the prompt of a chat; see `Backend`."""
        bounds.check_request(request, self._longest)
        return await self._main.call(
            request, lambda server: self._chat_template.render(server, request)
        )

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of tokens that the model would read; see `Backend`."""
        bounds.check_request(request, self._longest)

        async def ask(server: HttpServer) -> int:
            if isinstance(request, ChatRequest):
                return await self._chat_template.count_tokens(server, request)
            return len(await self._ids(server, request, special=True))

        return await self._main.call(request, ask)

    async def slots(self) -> list[dict[str, Any]]:
        """Read the state of its slots, as far as the caller may see it; see `Backend`."""
        return await self._main.call(None, self._slots.describe)

    async def change_slot(self, slot: int, action: SlotAction, name: str) -> dict[str, Any]:
        """Save a slot of the caller's, fill it again, or empty it; see `Backend`."""
        if not self._writes:
            raise UnsupportedOperation("This model writes no text, and has no slots to change.")
        # slots of one that was started anew are nobody's
        await self._generator.connect()
        with self._slots.hold(slot, fills=action == "restore"):
            return await self._main.call(
                None, lambda server: self._saved.act(server, slot, action, name)
            )

    def describe(self) -> Description:
        """Describe the model from its file; see `Backend`."""
        return self._head.description

    def memory_need(self) -> MemoryNeed:
        """Return the memory of the child that this model mainly needs, and of the one for embeddings while it runs; see `Backend`."""
        need = self._needs[not self._writes].need
        if not self._writes or self._embedder.process.starting_pid is None:
            return need
        more = self._needs[True].need
        gpus = tuple(map(sum, zip(need.gpus, more.gpus, strict=True)))
        return replace(need, ready=need.ready + more.ready, gpus=gpus)

    def native_facts(self) -> NativeFacts:
        """Return the facts of the child's server; before it is loaded, the chat template alone. See `Backend`."""
        if self._loaded is not None:
            return self._loaded.facts
        return NativeFacts({"chat_template": self._chat_template.text})

    async def check(self) -> None:
        """Wait until a child that died is back; see `Backend`."""
        await self._main.process.start()

    async def _keep(self) -> None:
        """Keep the conversations of the child that is about to be stopped, if it is the one that the slots are known of."""
        if not self._generator.is_known:
            return
        async with self._generator.connect_apart() as server:
            await self._kept.save_all(server, self._slots)

    async def aclose(self) -> None:
        """Stop both children; see `Backend`."""
        self._slots.fail_waiting()
        await self._emptying.aclose()
        await asyncio.gather(self._generator.aclose(), self._embedder.aclose())
        if self._has_own_checker:
            await self._checker.aclose()
            self._checker = Checker()  # the engine may be started again

    async def compile(self, request: TextRequest) -> dict[str, Any]:
        """Return the body of a request for llama.cpp, with its constraints; see `Backend`."""
        lora = self._adapters.fields(request)
        if isinstance(request, CompletionRequest):
            body = wire.completion_body(request, lora, self._vocabulary)
            if self._config.context_shift:
                wire.bound_shifts(body, "n_predict", self._longest)
            return await add_constraints(request, body, self._checker)
        body = wire.chat_body(request, lora, self._vocabulary)
        if self._config.context_shift:
            wire.bound_shifts(body, "max_tokens", self._longest)
        if must_call(request):
            body["grammar"] = await calls_grammar(request, self._chat_template.style, self._checker)
        else:
            body = await add_constraints(request, body, self._checker)
        if self._stop:
            body["stop"] = [*body.get("stop", []), *self._stop]
        return body

    async def _ids(
        self, server: HttpServer, asked: TextRequest | Prompt, special: bool
    ) -> list[int]:
        """Return the ids of a prompt, with or without what the server puts before it."""
        if isinstance(asked, ChatRequest):
            asked = await self._chat_template.render(server, asked)
        elif isinstance(asked, CompletionRequest):
            if asked.fills_in:
                return await gap_ids(server, self._head.fill_in, asked, self._longest)
            asked = asked.prompts[0]
        return asked if isinstance(asked, list) else await tokenize(server, asked, special)

    async def _generate(self, request: TextRequest, body: dict[str, Any]) -> Batches:
        """Start the generation of a body in the child; returns its batches from the first event on."""
        server = await self._generator.connect()
        batches = await self._start_stream(server, request, body)
        if top_logprobs(request) == 0:  # of the answer's own tokens only
            batches = without_alternatives(batches)
        if request.tokenize:
            batches = with_prompt_tokens(batches, await self._ids(server, request, special=False))
        return batches

    async def _start_stream(
        self, server: HttpServer, request: TextRequest, body: dict[str, Any]
    ) -> Batches:
        if isinstance(request, CompletionRequest) and request.fills_in:
            ids = await self._ids(server, request, special=True)
            return stream_completion(server, request, body | {"prompt": ids})
        if isinstance(request, CompletionRequest) and request.echo:
            ids = await self._ids(server, request, special=True)
            if len(ids) >= self._longest:
                raise too_long(len(ids), self._longest)
            if max(ids, default=0) >= (self._vocabulary or 2**31):
                raise unknown_token("prompt")
            return stream_echo(server, request, body, ids)
        if isinstance(request, CompletionRequest):
            return stream_completion(server, request, body)
        return await start_chat(server, request, body, self._chat_template)

    def _learn(self, found: Loaded, fault: str) -> None:
        """Take over the facts that only the loaded model shows."""
        self._loaded = found
        self._chat_template = ModelTemplate(self._template or found.props.chat_template)
        self._template_fault = fault
        self.capabilities = refine(self._known, found, self._chat_template.text, fault)

    def _process(self, embedding: bool) -> ChildProcess:
        fixed = child_settings(
            f"{self._name} (embeddings)" if embedding else self._name,
            self._path,
            self._head,
            self._config,
            context=self._context,
            threads=self._threads,
            lora=self._adapters.files,
            template=self._template,
            engines=self._engines,
            memory=self._memory,
            embedding=embedding,
        )

        self._needs[embedding] = EngineMemory(
            self._head, self._path, self._config, fixed, self._machine
        )

        def settings(socket_path: str) -> dict[str, Any]:
            own: dict[str, Any] = {} if embedding else self._isolation.at_start(fixed)
            tried = [] if self._is_known else fixed["tried_templates"]  # once
            own |= {"tried_templates": tried, "template_fault": self._template_fault}
            return fixed | {"socket_path": socket_path, "api_key": self._key} | own

        report = self._report if self._on_progress is not None else None
        return ChildProcess(
            fixed["name"],
            python_command("unilect.engines.gguf._child"),
            settings,
            start_timeout_s=self._config.start_timeout_s,
            # else it calls gdb when it ends, which takes seconds
            environment={"GGML_NO_BACKTRACE": "1"},
            takes_bytes=fixed["takes_bytes"],
            loads=self._needs[embedding].recorder,
            on_progress=report,
        )

    def _tell(self, said: dict[str, Any]) -> None:
        """Say once where the model runs, and what it takes."""
        if self._told:
            return
        self._told = True
        if said["warning"]:
            log.warning("%s", said["warning"])
        need = msgspec.convert(said["needs"], Needs)
        self._needs[not self._writes].learn(need)
        self.device = device_summary(
            self._head, said["devices"], self._config.gpu_layers, self._threads
        )
        sizes = describe_most(need)
        self._generator.supervisor.sizes = self._embedder.supervisor.sizes = sizes
        log.info("%s: on %s; %s", self._name, self.device, sizes)

    def _report(self, pid: int) -> None:
        """Progress is the part of the file that the child has in memory; llama.cpp itself tells none."""
        if self._on_progress is not None:
            self._on_progress(min(1.0, resident_bytes(pid) / max(1, self._head.size_bytes)))

    def _tell_of_embedder(self) -> None:
        if self._writes and self._embedder.process.starts == 1:
            log.info("%s: embeddings are made by a second engine of the model", self._name)

    @property
    def _vocabulary(self) -> int | None:
        """The number of tokens in the vocabulary; None before the model is loaded."""
        return None if self._loaded is None else int(self._loaded.facts.meta["n_vocab"])

    @property
    def _longest(self) -> int:
        """The context, as llama.cpp has rounded it up."""
        return self.capabilities.context or self._context

    @property
    def _main(self) -> ChildServer:
        return self._generator if self._writes else self._embedder

    async def _of_ids(
        self, tokens: list[int], ask: Callable[[HttpServer, list[int]], Coroutine[Any, Any, _Value]]
    ) -> _Value:
        """
        Send a call with token ids to the main child.

        Raises:
            InvalidRequest: There are too many, or one that the model does not have.
        """
        bounds.check_tokenize(tokens, self._longest)

        async def function(server: HttpServer) -> _Value:
            try:
                return await ask(server, tokens)
            except BackendError as error:
                # 500 is what llama.cpp says to an id beyond its vocabulary
                if await self._main.process.has_ended(self._main.process.starts):
                    raise
                raise unknown_token("prompt") from error

        return await self._main.call(tokens, function)


def backend(spec: BackendSpec) -> Backend:
    """
    Make the engine for `path/to/x.gguf` or `gguf:...`: a local file, one of the hub, or a folder.

    Raises:
        ConfigError: There is no such file, or it is no valid GGUF file.
    """
    return make_backend(spec, engine)


def engine(spec: BackendSpec, path: Path) -> GgufEngine:
    """Make the engine for a file, with the settings of a model."""
    own = (spec.threads, partial(spec.progress, "loading"), spec.checker)
    machine = spec.recall(MachineMemory, MachineMemory)
    return GgufEngine(spec.name, path, spec.config, *own, spec.engines, spec.several_callers, spec.memory_bytes, machine)  # fmt: skip
