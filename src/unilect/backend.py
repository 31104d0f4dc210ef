"""
The Backend contract: the one seam between unilect and whatever makes answers.

A backend is an *engine* (we run the model, in a child process) or an *upstream* (a server that already runs). It knows nothing
of HTTP requests of clients, of keys or of other backends. It serves one model.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, Protocol, TypeAlias, cast

from msgspec import Struct, field

from unilect.config.model import ModelConfig
from unilect.constraints.checker import Checker
from unilect.errors import UnsupportedOperation
from unilect.events import Event
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings, Prompt

Support: TypeAlias = Literal["native", "emulated", "accepted", "refused"]
Batches: TypeAlias = AsyncGenerator[list[Event], None]


class Capabilities(Struct, frozen=True):
    """
    What a backend can do.

    Attributes:
        parameters: For each request parameter how it is honoured: *native* by the backend, *emulated* by unilect, *accepted*
            (it is about the caller and changes no answer), *refused*. One that is missing here is unknown.
        passes_unknown: Unknown fields are handed to the backend untouched; else they are reported as ignored.
        fans_out: The backend takes one prompt and makes one choice at a time; unilect runs the others beside it.
        fans_beams_out: With `num_beams` it makes all `n` choices of a prompt itself: the best of one search.
        max_in_flight: The most requests that the backend takes at a time; more wait.
        slots: How many requests it answers side by side, where it says that; it takes more and lets them wait.
        context: The most tokens of prompt and answer together, or None where the backend does not say.
        vision: Messages may hold images.
        schema_keywords: The JSON Schema keywords that the backend enforces while it generates, as `constraints.schema.Use` names
            them; finished answers are held against what they must satisfy then. None where it is not known.
        chat, completions, embeddings: Whether the backend answers these at all.
        why_not: Why it does not, in a clause for the client, by the name of what it does not answer.
        settled: What it cannot do is refused without starting it; false while `start` may find that it can do more.
    """

    parameters: Mapping[str, Support] = {}
    passes_unknown: bool = False
    fans_out: bool = False
    fans_beams_out: bool = False
    max_in_flight: int | None = None
    slots: int | None = None
    context: int | None = None
    vision: bool = False
    schema_keywords: frozenset[str] | None = None
    chat: bool = True
    completions: bool = True
    embeddings: bool = True
    why_not: Mapping[str, str] = {}
    settled: bool = True


class Description(Struct, frozen=True, omit_defaults=True):
    """
    What a model is, as far as its backend knows.

    Attributes:
        family: The kind of network, such as `llama`.
        parameters: How many it has; about, where its files do not count them.
        quantization: The type of most of its weights, such as `Q4_K_M` or `bfloat16`.
        context: The most tokens that it was made for.
    """

    family: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    context: int | None = None


class Generates(Protocol):
    """Something that answers requests for one model: a backend, or what stands in front of one."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; final once `start` has returned, and before it what is not there is refused: see `settled`."""

    def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """
        Answer a request.

        Yields batches of events: all that one read brought. Deltas and exactly one Finish per choice index, then one Usage.
        Stops the model within 100 ms of the generator's `aclose()`. Holds no lock, timeout or task group across a `yield`.

        Raises:
            UnilectError: And nothing else. Before the first batch when it can be known by then.
        """


class Backend(Generates, Protocol):
    """
    All that a backend must have. What else it has, it has by the methods of `Embeds`, `Tokenizes`, `Checks` and `Describes`.

    All methods may be called at the same time, any number of times, between `start` and `aclose`.
    """

    async def start(self) -> None:
        """
        Make ready. Idempotent: a second call waits for the first, and a backend that has died is started again.

        Raises:
            BackendUnavailable: It cannot be made ready now. The message says why.
        """

    async def aclose(self) -> None:
        """Stop, and leave nothing behind. Idempotent."""


class Embeds(Protocol):
    """A backend that embeds texts."""

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request."""


class Tokenizes(Protocol):
    """A backend that tells the tokens of its model."""

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text; with those that the model reads before a prompt, where `special` is true."""

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids."""

    async def count_tokens(self, request: ChatRequest | CompletionRequest | Prompt) -> int:
        """The number of tokens that the model would read for this request."""


class Checks(Protocol):
    """A backend that can see whether it is well; of any other that is known once it has started."""

    async def check(self) -> None:
        """
        See whether a started backend is well, without work for its model.

        Raises:
            UnilectError: It is not.
        """


class Describes(Protocol):
    """A backend that knows what its model is."""

    def describe(self) -> Description:
        """What the model is; an engine says it before its start, from its files, and an upstream after it."""


def described(backend: object) -> Description:
    """What a backend's model is; nothing of one that does not say it."""
    return cast(Describes, backend).describe() if hasattr(backend, "describe") else Description()


def embeds(backend: object) -> Embeds:
    """
    A backend as one that embeds texts.

    Raises:
        UnsupportedOperation: It does not.
    """
    if hasattr(backend, "embed"):  # an isinstance does not see what `__getattr__` gives
        return cast(Embeds, backend)
    raise UnsupportedOperation("The model's backend does not embed texts. Ask another model.")


def tokenizes(backend: object) -> Tokenizes:
    """
    A backend as one that tells tokens.

    Raises:
        UnsupportedOperation: It does not.
    """
    if hasattr(backend, "tokenize"):
        return cast(Tokenizes, backend)
    raise UnsupportedOperation("The model's backend does not tell tokens. Ask another model.")


class Report(Protocol):
    """The same for one model."""

    def __call__(self, what: str, part: float, size_bytes: int = 0, /) -> None:
        """Pass it on."""


class BackendSpec(Struct, frozen=True):
    """
    Where a backend is to be made.

    Attributes:
        name: The model's name.
        scheme: The scheme of its source.
        location: The rest of its source.
        config: Its settings.
        options: Its `[models.NAME.options]`, as the `Options` beside the factory; None where the backend has none.
        threads: Processor threads for an engine.
        progress: Told what is going on (`loading`, `downloading`), how far it is, and of how many bytes.
        shared: What the backends of one configuration share, such as one base for several adapters.
        checker: Compiles the grammars and schemas of clients; the server's only one.
        engines: How many engines the server has.
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
