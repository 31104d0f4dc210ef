"""
Hugging Face folders: transformers in a supervised child process, several models with LoRA adapters on one base.

Models of one configuration that have the same folder and settings share one child; each may have LoRA adapters of its own, which
the child adds when the model starts and takes away when it stops. Adapters that have to be merged into the weights (whole layers,
DoRA, a larger vocabulary) get a child of their own.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from unilect.api.backend import (
    Backend,
    BackendSpec,
    Batches,
    Capabilities,
    Description,
    MemoryNeed,
)
from unilect.config.model import ModelConfig
from unilect.config.paths import adapter_of, expand
from unilect.constraints.checker import Checker
from unilect.constraints.keywords import LLGUIDANCE
from unilect.core.errors import (
    BackendError,
    ConfigError,
    UnilectError,
)
from unilect.core.ranking import Ranking, RerankRequest, sigmoid
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.engines import text_bounds as bounds
from unilect.engines.fetched import when_here
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.frame_server import FrameServer
from unilect.engines.process.supervisor import CALLS_AT_ONCE
from unilect.engines.transformers.model.folder import check_folder, own_template, read_folder
from unilect.engines.transformers.model.memory import gpu_need, load_recorder, need_of, require_room
from unilect.engines.transformers.settings import child_settings, merges
from unilect.engines.transformers.words.parameters import with_template
from unilect.engines.transformers.words.request import bound_by
from unilect.hub import download as hub
from unilect.runtime.context import cache_owner
from unilect.runtime.extras import install
from unilect.runtime.gpus import gpu_memory
from unilect.runtime.memory import resident_bytes
from unilect.templates import chat as templates
from unilect.wire import frames
from unilect.wire.llamacpp import with_prompt_tokens

log = logging.getLogger("unilect")
_OF_OTHERS = ("chat completions", "completions", "embeddings")
_WHY_NOT = dict.fromkeys(_OF_OTHERS, "it is a reranker, for /v1/rerank")
_READ = 0.9  # of the time until a model is ready, when all of its weights have been read
Asked: TypeAlias = TextRequest | EmbeddingRequest | RerankRequest
Value = TypeVar("Value")
_NEEDED = ("torch", "transformers", "llguidance", "safetensors")
#: torch's threads spin for work that another process needs the core for; the model is a local one, and nothing else is fetched
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class HfServer(FrameServer):
    """
    One child and the models that it answers for.

    Args:
        name: For logs.
        settings: What the child is to do.
        config: The settings of the model that came first.
        on_progress: Called with a fraction while it loads.

    Attributes:
        settings: As given.
        embeddings: How many more requests may embed at the same time.
    """

    def __init__(
        self,
        name: str,
        settings: dict[str, Any],
        config: ModelConfig,
        on_progress: Callable[[float], None] | None,
    ) -> None:
        self.settings = settings
        on_processor = settings["device"] in ("auto", "cpu")
        self._loads = load_recorder(settings) if on_processor else None
        self._size = settings["size_bytes"] / settings["stored_bytes"] * 4
        process = ChildProcess(
            name,
            python_command("unilect.engines.transformers"),
            lambda socket_path: settings | {"socket_path": socket_path},
            start_timeout_s=config.start_timeout_s,
            on_progress=partial(self._report, on_progress) if on_progress is not None else None,
            environment=_ENVIRONMENT,
            takes_bytes=settings["size_bytes"] if on_processor else 0,
            loads=self._loads,
        )
        super().__init__(process, config.timeout_s, config.hang_timeout_s)
        self.embeddings = asyncio.Semaphore(CALLS_AT_ONCE)
        self._users = dict[str, None]()  # in the order in which they came
        self._warned: int | None = None
        self._blends: set[tuple[int | None, str]] = set()  # by the child that has them
        self._lock = asyncio.Lock()

    async def start(self, name: str, blend: list[tuple[str, float]]) -> dict[str, Any]:
        """
        Have the child run, with the LoRA blend of a model.

        Raises:
            BackendUnavailable: It cannot be started, or an adapter does not fit.
        """
        known = name in self._users
        if (need := self.memory_need(name)) is not None:
            require_room(name, need, self.settings["device"])
        self._users[name] = None  # before it is up: who stops meanwhile is not the last one
        try:
            said = await self.process.start()
            await self.add(name, blend)
        except BaseException:
            if not known:
                self._users.pop(name, None)
            raise
        self._users[name] = None
        if said["warning"] and self._warned != self.process.pid:
            self._warned = self.process.pid
            log.warning("%s: %s", name, said["warning"])
        return said

    def memory_need(self, name: str) -> MemoryNeed | None:
        """
        Return the memory that the child takes; of a GPU for the first of its models alone, and of one on a GPU that the operator has named
        nothing else, which only the child knows.
        """
        gpus = self._gpu_need if next(iter(self._users), name) == name else ()
        if self._loads is not None:
            return replace(need_of(self.settings, self._loads.known), gpus=gpus)
        return MemoryNeed(0, gpus=gpus) if self._gpu_need else None

    @cached_property
    def _gpu_need(self) -> tuple[int, ...]:
        """The bytes that the child has on each GPU."""
        is_on_cpu = self.settings["device"] == "cpu"
        return () if is_on_cpu else gpu_need(self.settings, gpu_memory(llama=False) or ())

    async def add(self, name: str, blend: list[tuple[str, float]]) -> None:
        """Have the LoRA blend of a model in the child, which runs."""
        if not blend or self._has(name):
            return
        async with self._lock:
            if not self._has(name):
                pid = self.process.pid
                await self.value("adapter", {"name": name, "parts": blend})
                self._blends = {one for one in self._blends if one[0] == pid} | {(pid, name)}

    async def stop(self, name: str) -> None:
        """A model stops; the last one stops the child."""
        self._users.pop(name, None)
        if not self._users:
            await self.supervisor.aclose()
            return
        async with self._lock:
            if name not in self._users and self._has(name) and self.process.alive:
                # whoever starts it now waits, and adds it again
                self._blends.discard((self.process.pid, name))
                with suppress(UnilectError):  # a child that is gone, or hangs, has none before long
                    await self.value("adapter", {"name": name, "parts": []})

    def _has(self, name: str) -> bool:
        return (self.process.pid, name) in self._blends

    def _report(self, tell: Callable[[float], None], pid: int) -> None:
        """Progress is the part of the weights that the child has in memory; they are put in order after that."""
        tell(min(_READ, resident_bytes(pid) / max(1.0, self._size)))


class HfEngine(Backend):
    """
    A model of transformers that we serve.

    Args:
        name: The model's name.
        folder: Where it is.
        config: Its settings.
        threads: Processor threads, where the settings do not say.
        shared: The children of this configuration, by their settings.
        on_progress: Called with a fraction from 0 to 1 while the model loads.
        checker: Compiles the grammars and schemas of clients first; without it the child alone does.
        engines: How many engines the server has, among which the memory for prompts is shared out.

    Raises:
        ConfigError: The folder, or a setting, is wrong. Nothing has been started.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        config: ModelConfig,
        threads: int = 1,
        shared: dict[Any, Any] | None = None,
        on_progress: Callable[[float], None] | None = None,
        checker: Checker | None = None,
        engines: int = 1,
    ) -> None:
        self._folder, self.device = read_folder(folder), ""
        self._checker = checker
        self._shares_cache = config.share_cache
        self._name = name
        self._chat_template = templates.find(config.chat_template) if config.chat_template else None
        adapters = [adapter_of(text) for text in config.lora]
        merge = [path for path, _ in adapters] if merges(adapters) else []
        self._blend = [] if merge else adapters
        self._template = self._template_of(config)
        settings = child_settings(
            self._folder,
            config,
            self._chat_template,
            text=self._template,
            threads=config.threads or threads,
            merge=merge,
            engines=engines,
        )
        key = msgspec.json.encode(settings)
        children = {} if shared is None else shared
        if key not in children:
            children[key] = HfServer(name, settings, config, on_progress)
        self._server: HfServer = children[key]
        self.children = (self._server.process,)
        self._context: int = settings["context"]
        self._is_known = False
        ranks = bool(settings["ranks"])
        self._writes = self._folder.generates and not ranks
        can = Capabilities(
            fans_out=True,
            fans_beams_out=True,
            slots=config.most_parallel,
            resumes="again",
            schema_keywords=LLGUIDANCE,
            context=self._context,
            completions=self._writes,
            embeddings=not ranks,
            rerank=ranks,
            why_not=_WHY_NOT if ranks else {},
            is_final=bool(self._template) or not self._writes,  # its tokenizer may have one
        )
        self.capabilities = with_template(can, self._template, "tools" in self._template)

    async def start(self) -> None:
        """Start the child; see `Backend`."""
        if self._is_known and self._server.process.comes_back:
            return  # what is refused is told without waiting for it; who is not waits in `run`
        said = await self._server.start(self._name, self._blend)
        self.device = said.get("device", "")
        self._template = said["template"]
        can = with_template(self.capabilities, self._template, said["takes_tools"])
        fault = said["template_fault"]
        self.capabilities = can.without_chat(fault) if fault else can
        self._is_known = True

    def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        return self._with_prompt(request) if request.tokenize else self._answer(request)

    async def _with_prompt(self, request: TextRequest) -> Batches:
        ids = await self._prompt_ids(request)
        async with aclosing(with_prompt_tokens(self._answer(request), ids)) as batches:
            async for batch in batches:
                yield batch

    async def _answer(self, request: TextRequest) -> Batches:
        operation = "chat" if isinstance(request, ChatRequest) else "completion"
        await self.compile(request)
        async with aclosing(self._replies(operation, request)) as replies:
            async for reply in replies:
                yield frames.events_of(reply)

    async def compile(self, request: TextRequest) -> None:
        """Compile the constraints of a request; see `Backend`."""
        grammar, param = bound_by(request, self._template)
        if grammar is not None and self._checker is not None:
            await self._checker.llguidance(grammar, param)

    async def _replies(self, operation: str, request: Asked) -> frames.Replies:
        """Send a request to the child, and yield its replies."""
        body = frames.raw(self._body(request))
        async with self._server.supervisor.watch(request) as ticket:
            await self._server.add(self._name, self._blend)
            owner = "" if self._shares_cache else cache_owner()
            call = frames.Call(operation, body, self._adapter, owner)
            async with aclosing(self._server.replies(call)) as replies:
                async for reply in replies:
                    ticket.note_begin()
                    yield reply

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        vectors, tokens, _ = await self._vectors("embed", request)
        return Embeddings(vectors, tokens)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        vectors, tokens, cut = await self._vectors("rerank", request)
        logits = [logit for (logit,) in vectors]
        if any(map(math.isnan, logits)):
            raise BackendError("The model produced NaN logits for this request. Change it.")
        scores = logits if request.raw_scores else [sigmoid(logit) for logit in logits]
        return Ranking(scores, tokens, sorted(cut))

    async def _vectors(
        self, operation: str, request: EmbeddingRequest | RerankRequest
    ) -> tuple[list[list[float]], int, list[int]]:
        """Return the vectors in the order of their inputs, the number of tokens, and the places of inputs that were cut."""
        found, tokens, cut = dict[int, list[float]](), 0, list[int]()
        async with (
            self._server.embeddings,
            aclosing(self._replies(operation, request)) as replies,
        ):
            async for reply in replies:
                if not bytes(reply.value):
                    continue
                part = msgspec.msgpack.decode(reply.value, type=frames.Vectors)
                found |= dict(zip(part.places, part.vectors, strict=True))
                tokens, cut = tokens + part.tokens, cut + part.cut
        return [found[place] for place in range(len(found))], tokens, cut

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text; see `Backend`."""
        return await self._ids("tokenize", text, special)

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text without special tokens in it; see `Backend`."""
        return await self._ids("tokenize_plain", text, special)

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids; see `Backend`."""
        bounds.check_tokenize(tokens, self._context)
        return await self._value("detokenize", tokens, str)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        bounds.check_tokenize(tokens, self._context)
        return await self._value("pieces", tokens, list[bytes])

    async def render(self, request: ChatRequest) -> str:
        """The prompt of a chat; see `Backend`."""
        return await self._value("render", self._body(request), str)

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """The number of tokens that the model would read; see `Backend`."""
        if isinstance(request, ChatRequest):
            return len(await self._prompt_ids(request))
        bounds.check_request(request, self._context)
        prompt = request.prompts[0] if isinstance(request, CompletionRequest) else request
        return await self._value("count", prompt, int)

    def describe(self) -> Description:
        """Describe the model from its folder; see `Backend`."""
        folder, config = self._folder, self._folder.text_config
        weights, width = config.get("dtype") or config.get("torch_dtype"), config.get("hidden_size")
        return Description(
            config.get("model_type"),
            folder.size_bytes // folder.stored_bytes,
            weights and str(weights),
            folder.context,
            "safetensors",
            folder.size_bytes,
            width if isinstance(width, int) else None,
        )

    def memory_need(self) -> MemoryNeed | None:
        """Return the memory of its child, which others may share; see `Backend`."""
        return self._server.memory_need(self._name)

    async def check(self) -> None:
        """Wait until a child that died is back; see `Backend`."""
        await self._server.process.start()

    async def aclose(self) -> None:
        """Stop; see `Backend`."""
        self._is_known = False
        await self._server.stop(self._name)

    @property
    def _adapter(self) -> str | None:
        return self._name if self._blend else None

    async def _ids(self, kind: str, text: str, special: bool) -> list[int]:
        bounds.check_tokenize(text, self._context)
        return await self._value(kind, (text, special), list[int])

    async def _prompt_ids(self, request: TextRequest) -> list[int]:
        """The ids of a prompt, without what the tokenizer puts before it."""
        body = self._body(request)
        if isinstance(request, ChatRequest):
            return await self._value("chat_tokens", body, list[int])
        prompt = request.prompts[0]
        return prompt if isinstance(prompt, list) else await self.tokenize(prompt)

    def _body(self, request: Asked) -> Asked:
        """Check a request, and return it without what the child does not read."""
        bounds.check_request(request, self._context)
        return msgspec.structs.replace(request, raw_fields={})

    async def _value(self, operation: str, body: Any, type: type[Value]) -> Value:
        async def function() -> bytes:
            await self._server.add(self._name, self._blend)
            return await self._server.value(operation, body, self._adapter)

        value = await self._server.supervisor.call((operation, body), function)
        return msgspec.msgpack.decode(value, type=type)

    def _template_of(self, config: ModelConfig) -> str:
        """The chat template, as far as it is known before the tokenizer is loaded."""
        if self._chat_template is not None:
            return self._chat_template.text
        brought = own_template(Path(config.tokenizer)) if config.tokenizer else ""
        return brought or self._folder.template


def check_installed(location: str) -> None:
    """Refuse a model, with a ConfigError, where what models of transformers need is not installed."""
    if needed := ", ".join(name for name in _NEEDED if find_spec(name) is None):
        how = f"Install them with `{install('transformers')}`."
        raise ConfigError(f"{location}: transformers models require {needed}. {how}")


def backend(spec: BackendSpec) -> Backend:
    """
    The engine for `path/to/folder` or `hf:...`: a local folder, or a repository of the hub as `org/name`.

    Raises:
        ConfigError: There is no such folder, or it holds no model, or transformers is not installed.
    """
    local = expand(spec.location)
    if local.is_dir():
        adapters = [adapter_of(text)[0] for text in spec.config.lora]
        given = [spec.config.tokenizer] if spec.config.tokenizer else []
        check_folder(local, [Path(folder) for folder in (*given, *adapters)])
    check_installed(spec.location)
    return when_here(spec, hub.local_folder, engine)


def engine(spec: BackendSpec, folder: Path) -> HfEngine:
    """The engine for a folder, with the settings of a model."""
    own = (spec.threads, spec.shared, partial(spec.progress, "loading"), spec.checker)
    return HfEngine(spec.name, folder, spec.config, *own, spec.engines)
