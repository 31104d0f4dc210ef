"""
The Backend contract: the one seam between unilect and whatever makes answers.

A backend is an *engine* (we run the model, in a child process) or an *upstream* (a server that already runs). It knows nothing
of HTTP requests of clients, of keys or of other backends. It serves one model.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from unilect.config.model import ModelConfig
from unilect.constraints.checker import Checker
from unilect.core.errors import UnsupportedOperation
from unilect.core.events import Event
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.runtime.line_log import LineLog

Support: TypeAlias = Literal["native", "emulated", "accepted", "refused"]
Batches: TypeAlias = AsyncGenerator[list[Event], None]
_MOMENT_S = 1.0
_Found = TypeVar("_Found")
SlotAction: TypeAlias = Literal["save", "restore", "erase"]


class Adapter(Struct, frozen=True):
    """A LoRA adapter: the name of its file, and how much of it a request gets that does not say."""

    name: str
    scale: float


class Capabilities(Struct, frozen=True):
    """
    The capabilities of a backend.

    Attributes:
        parameters: The support of each request parameter: *native* by the backend, *emulated* by unilect, *accepted*
            (it is about the caller and changes no answer), *refused*. One that is missing here is unknown.
        passes_unknown: Unknown fields are handed to the backend untouched; else they are reported as ignored.
        fans_out: The backend takes one prompt and makes one choice at a time; unilect runs the others beside it.
        fans_beams_out: With `num_beams` it makes all `n` choices of a prompt itself: the best of one search.
        max_in_flight: The most requests that the backend takes at a time; more wait.
        slots: The number of requests that it answers side by side, where it says that; it takes more and lets them wait.
        context: The most tokens of prompt and answer together, or None where the backend does not say.
        vision: Messages may hold images.
        image_urls: An image may be anything that a client sends; else it is always a `data:` URL.
        continues: A conversation may end with a turn of the assistant, which the answer goes on with.
        resumes: The way in which it continues an interrupted answer. *again*: the same request with the same seed is
            answered with the same text. *text*: it continues a text, also another server's, in a plain completion, and in a
            chat where it `continues`. *both*: the same text where the request is greedy or has a seed, else it goes on. None: not at all.
        thinking: The model's template has a place for thoughts before an answer; None where that is not known.
        template_names: The names that the model's chat template asks for, which `chat_template_kwargs` may hold; None where that is
            not known, and all are passed on.
        schema_keywords: The JSON Schema keywords that the backend enforces while it generates, as `constraints.schema.Use` names
            them; finished answers are then validated against the rest. None where it is not known.
        tool_form: The form in which the model was trained to call tools, by its name in `families`, where the backend knows it; for
            tools that unilect writes into the prompt, since the backend takes none.
        adapters: Those whose scales a request may choose, in the order of their ids.
        chat, completions, embeddings, rerank: Whether the backend answers these at all.
        why_not: The reason why it does not answer one of these, in a clause for the client, by its name.
        is_final: What it cannot do is refused without starting it; false while `start` may find that it can do more.
    """

    parameters: Mapping[str, Support] = {}
    passes_unknown: bool = False
    fans_out: bool = False
    fans_beams_out: bool = False
    max_in_flight: int | None = None
    slots: int | None = None
    context: int | None = None
    vision: bool = False
    image_urls: bool = True
    continues: bool = False
    resumes: Literal["again", "text", "both"] | None = None
    thinking: bool | None = None
    template_names: Set[str] | None = None
    schema_keywords: frozenset[str] | None = None
    tool_form: str = ""
    adapters: tuple[Adapter, ...] = ()
    chat: bool = True
    completions: bool = True
    embeddings: bool = True
    rerank: bool = False
    why_not: Mapping[str, str] = {}
    is_final: bool = True

    def without_chat(self, fault: str) -> "Capabilities":
        """Return the capabilities of a model whose chat template cannot be used, for this reason."""
        why = f"its chat template cannot be used ({fault}); set another as `chat_template`"
        return replace(self, chat=False, why_not={**self.why_not, "chat completions": why})


class Description(Struct, frozen=True, omit_defaults=True):
    """
    The description of a model, as far as its backend knows it.

    Attributes:
        family: The kind of network, such as `llama`.
        parameters: The number of its parameters; about, where its files do not count them.
        quantization: The type of most of its weights, such as `Q4_K_M` or `bfloat16`.
        context: The most tokens that it was made for.
        format: The form of its files, such as `gguf`.
        size_bytes: The size of its files.
        width: The numbers of one token's embedding.
    """

    family: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    context: int | None = None
    format: str | None = None
    size_bytes: int | None = None
    width: int | None = None


class MemoryNeed(Struct, frozen=True):
    """
    The memory that a backend's process takes of the machine and its GPUs, in bytes.

    Attributes:
        ready: Once its model is loaded, with the files that it maps; 0 where only its process finds that out.
        grows: More that may come while it answers, at most.
        measured: An earlier load with the same files and settings took this; else it is reckoned.
        gpus: Of all this, or beside it where that is not known, what it has on each GPU that has room for it, in the order of `gpu_memory`.
    """

    ready: int
    grows: int = 0
    measured: bool = False
    gpus: tuple[int, ...] = ()


class NativeFacts(Struct, frozen=True):
    """
    The facts of a model that llama.cpp's own server publishes, as far as there are any.

    Attributes:
        props: As its /props has it: `default_generation_settings`, `chat_template`, `modalities` and the like.
        meta: As its list of models has it: `n_vocab`, `n_ctx_train`, `n_embd`, `n_params`, `size` and the like.
    """

    props: Mapping[str, Any] = {}
    meta: Mapping[str, Any] = {}


class Generates(Protocol):
    """Something that answers requests for one model: a backend, or what stands in front of one."""

    @property
    def capabilities(self) -> Capabilities:
        """Its capabilities, final once `start` has returned; before that a missing one is refused: see `is_final`."""

    def generate(self, request: TextRequest) -> Batches:
        """
        Answer a request.

        Yields batches of events: all that one read brought. Deltas and exactly one Finish per choice index, then one Usage.
        Stops the model within 100 ms of the generator's `aclose()`. Holds no lock, timeout or task group across a `yield`.

        Raises:
            UnilectError: And nothing else. Before the first batch when it can be known by then.
        """


#: died: it ended unasked, by its own fault or somebody's. hung: it was killed, since it answered nobody. restarted: it serves again. failed: it does not.
Happening: TypeAlias = Literal["died", "hung", "restarted", "failed"]


class Witness(Protocol):
    """Somebody who is told what happens to the process of an engine, beside what was asked of it."""

    def __call__(self, kind: Happening, reason: str, /, **numbers: float) -> None:
        """Take note; the reason is a sentence without a subject and an end, for the operator, and the numbers are its own, seconds by names in `_s`."""


class Life(Protocol):
    """
    The process of an engine, and those that it had before.

    Attributes:
        witnesses: Who is told when it dies, is started again, or is not.
    """

    witnesses: set[Witness]

    @property
    def starts(self) -> int:
        """The number of times that it became ready."""

    @property
    def deaths(self) -> int:
        """The number of times that it ended unasked."""

    @property
    def hangs(self) -> int:
        """The number of times that it was killed because it answered nobody."""

    @property
    def processes(self) -> int:
        """1 while it serves, else 0."""

    @property
    def comes_back(self) -> bool:
        """True if it has served, and serves or will serve again by itself."""

    @property
    def resident_memory_bytes(self) -> int:
        """The bytes that it has in memory while it serves, with the files that it maps; 0 where the system does not say."""

    @property
    def proportional_memory_bytes(self) -> int:
        """The same with its part only of what it shares with other processes. It takes 10 ms for each GiB: not for the event loop."""

    @property
    def pid(self) -> int | None:
        """Its process id while it serves."""

    @property
    def log(self) -> LineLog:
        """The lines that it and those before it wrote to stderr."""

    def forgive(self) -> None:
        """Forget how often it has died, so that it may be started at once."""


class Backend:
    """
    A backend: it must have `capabilities`, and refuses to do what it does not override.

    All methods may be called at the same time, any number of times, between `start` and `aclose`.

    Attributes:
        capabilities: As of `Generates`.
        device: What its model runs on, in words; empty where that is not known, or before its first start.
        children: The processes that it runs, whether they run or not.
        files: The files that are read to load its model, where they are on this machine.
    """

    capabilities: Capabilities
    device: str = ""
    children: Sequence[Life] = ()
    files: Sequence[Path] = ()

    async def fetch(self) -> None:
        """
        Bring the files here that its model is loaded from, as a part of the start that takes no memory. Idempotent, as `start`.

        Raises:
            BackendUnavailable: They cannot be had now. The message says why.
        """

    async def start(self) -> None:
        """
        Make ready. Idempotent: a second call waits for the first, and a backend that has died is started again.

        Raises:
            BackendUnavailable: It cannot be made ready now. The message says why.
        """

    async def aclose(self) -> None:
        """Stop, and leave nothing behind. Idempotent."""

    def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Generates`."""
        raise _refuse("write text. Ask another model")

    async def check(self) -> None:
        """
        See whether a started backend is well, without work for its model; one that does not override it is well once it has started.

        Raises:
            UnilectError: It is not.
        """

    async def restore(self) -> None:
        """
        Have engines that others share by a name run with the settings that this backend started them with, if it has.

        Raises:
            UnilectError: They cannot.
        """

    async def compile(self, request: TextRequest) -> object:
        """
        Compile the constraints of a request, before it takes a place; it needs nothing of the model.

        Raises:
            InvalidRequest: One cannot be compiled.
        """
        return None

    def describe(self) -> Description:
        """Describe the model; an engine can before its start, from its files, and an upstream after it."""
        return Description()

    def memory_need(self) -> MemoryNeed | None:
        """Return the memory that it takes, quickly and also before its start; None where that is not known, or it runs elsewhere."""
        return None

    def native_facts(self) -> NativeFacts:
        """Return llama.cpp's facts of the model; none before its first start, or where its server is not llama.cpp's."""
        return NativeFacts()

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request."""
        raise _refuse("embed texts. Ask another model")

    async def rerank(self, request: RerankRequest) -> Ranking:
        """
        Score the documents of a request.

        Raises:
            UnsupportedParameter: `max_tokens_per_doc`, `raw_scores` or `truncate` is set, and the backend has no such thing.
        """
        raise _refuse("rank documents. Ask a reranker")

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text; with those that the model reads before a prompt, where `special` is true."""
        raise _refuse("tell tokens. Ask another model")

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids."""
        raise _refuse("tell tokens. Ask another model")

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """The number of tokens that the model would read for this request."""
        raise _refuse("tell tokens. Ask another model")

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """As `tokenize`, of a text in which the names of special tokens are text like any other."""
        raise _refuse("support `parse_special`. Remove it, or ask another model")

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of each token id; they may be a part of a character."""
        raise _refuse("support `with_pieces`. Remove it, or ask another model")

    async def render(self, request: ChatRequest) -> str:
        """
        The prompt of a chat, as the model reads it.

        Raises:
            InvalidRequest: The chat template refuses the conversation.
        """
        raise _refuse("tell prompts. Ask another model")

    async def slots(self) -> list[dict[str, Any]]:
        """The places in which it answers side by side, as llama.cpp tells them, in order; nothing but `id`, `n_ctx` and `is_processing` of what another caller has asked."""
        raise _refuse(_NO_SLOTS)

    def idle_slots(self) -> list[dict[str, Any]]:
        """The same while it does not run."""
        if type(self).slots is Backend.slots:
            raise _refuse(_NO_SLOTS)
        can = self.capabilities
        idle = {"n_ctx": can.context or 0, "speculative": False, "is_processing": False}
        return [{"id": id, **idle} for id in range(can.slots or 0)]

    async def change_slot(self, slot: int, action: SlotAction, name: str) -> dict[str, Any]:
        """
        Save a slot, fill it again or empty it, and tell it as llama.cpp does.

        Args:
            name: Of the file that is written or read; the caller's own.

        Raises:
            InvalidRequest: The slot is not the caller's, or answers a request, or the name is none.
            NotStored: The caller has no such file.
            UnsupportedOperation: Nothing is saved here.
        """
        raise _refuse("change slots. Ask a GGUF model")


_NO_SLOTS = "show slots. Ask a GGUF model, or GET /metrics, which counts requests that run and wait"


def _refuse(what: str) -> UnsupportedOperation:
    """The error for an operation that a backend does not have, with what to do instead."""
    return UnsupportedOperation(f"The model's backend does not {what}.")


class Report(Protocol):
    """The same for one model."""

    def __call__(self, what: str, part: float, size_bytes: int = 0, /) -> None:
        """Pass it on."""


class BackendSpec(Struct, frozen=True):
    """
    The arguments of a backend's factory.

    Attributes:
        name: The model's name.
        scheme: The scheme of its source.
        location: The rest of its source.
        config: Its settings.
        options: Its `[models.NAME.options]`, as the `Options` beside the factory; None where the backend has none.
        threads: Processor threads for an engine.
        progress: Called with the step (`loading`, `downloading`), the part of it that is done, and its size in bytes.
        shared: Objects that the backends of one configuration share, such as one base for several adapters.
        checker: Compiles the grammars and schemas of clients; the server's only one.
        engines: The number of the server's engines.
        several_callers: The server has a key, as far as is known before it starts: there may be several callers.
        memory_bytes: What all engines of the server may take together, beside pinned models; None for all that is free.
    """

    name: str
    scheme: str
    location: str
    config: ModelConfig
    threads: int
    progress: Report
    shared: dict[Any, Any] = {}
    checker: Checker = field(default_factory=Checker)
    engines: int = 1
    options: Any = None
    several_callers: bool = False
    memory_bytes: int | None = None

    def recall(self, key: Any, look: Callable[[], _Found]) -> _Found:
        """
        Return what `look` has found a moment ago for another backend of the configuration, or finds now.

        A configuration of a hundred models is read with one look at the machine's memory, or into a folder; a model that was fetched in
        between has its own.

        Args:
            key: Names what is looked for, in `shared`.
        """
        seen_at, found = self.shared.get(key, (-inf, None))
        if monotonic() - seen_at > _MOMENT_S:
            found = look()
            self.shared[key] = monotonic(), found
        return found  # type: ignore[no-any-return]
