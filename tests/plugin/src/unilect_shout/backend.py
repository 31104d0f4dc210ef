"""The backend: it answers what it was told in capital letters, a word at a time."""

from typing import Annotated

from msgspec import Meta, Struct

from unilect.api.backend import Backend, BackendSpec, Batches, Capabilities
from unilect.core.errors import ConfigError
from unilect.core.events import Event, Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, CompletionRequest


class Options(Struct, frozen=True):
    """What `[models.NAME.options]` may hold: the marks at the end, and what is said before all else."""

    volume: Annotated[int, Meta(ge=0, le=10)] = 1
    greeting: str = ""


def backend(spec: BackendSpec) -> "Shout":
    """The backend for `shout:`."""
    if spec.location:
        raise ConfigError(f"{spec.location}: `shout:` stands alone. Leave the rest out.")
    return Shout(spec.options)


class Shout(Backend):
    """Answers in capital letters."""

    capabilities = Capabilities(
        parameters={"max_tokens": "native", "stop": "refused"}, completions=False, embeddings=False
    )

    def __init__(self, options: Options) -> None:
        self._options = options

    async def start(self) -> None:
        """Nothing is needed."""

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Shout the last message."""
        assert isinstance(request, ChatRequest)
        words = f"{self._options.greeting} {request.messages[-1].content}".upper().split()
        said = words[: len(words) if request.token_limit is None else request.token_limit]
        for number, word in enumerate(said):
            yield [TextDelta(f" {word}" if number else word)]
        end: list[Event] = [TextDelta("!" * self._options.volume)] if said == words else []
        reason = Finish("stop" if said == words else "length")
        yield [*end, reason, Usage(len(words), len(said))]

    async def aclose(self) -> None:
        """Nothing is left behind."""
