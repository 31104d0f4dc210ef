"""Tests of the estimates of unilect.answers.calls: what a request may use at most, by its texts and by the model's own count."""

from typing import Any

import pytest
from hypothesis import strategies as st

from support.backends.engine import engine
from support.common.properties import given
from unilect.adapt import tools as _tools
from unilect.answers.calls import TokenEstimator
from unilect.api.backend import Capabilities
from unilect.api.parameters.support import declare_support, names
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonObjectFormat,
    Message,
    Request,
    Tool,
)
from unilect.families import FAMILIES
from unilect.limits.claims import TokenEstimate
from unilect.models import sources
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options

SEEN = ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:image/png;base64,AA"))])])


def measures(backend: Any = None, **model: Any) -> TokenEstimator:
    """What measures requests for one model, `m`."""
    made = Model("m", backend or Echo(Options(context=4096)), **model)
    return TokenEstimator(Registry([made]))


def chat(text: str = "Hi", **given: Any) -> ChatRequest:
    """A chat of one message."""
    return ChatRequest(messages=[Message("user", text)], **given)


async def test_counted() -> None:
    """A prompt is counted as the model reads it, and each choice has its limit."""
    measured = measures()
    asked = chat("x" * 100, max_tokens=50, n=3)
    bound = measured.size("m", asked)
    assert 100 < bound.prompt < 400
    assert not bound.is_counted
    size = await measured.count("m", asked, bound)
    assert (100, True, 3, 50) == (size.prompt, size.is_counted, size.choices, size.limit)
    assert 100 + 3 * 50 == size.most(None)[0]

    asked = CompletionRequest(prompt=["abc", "de"], max_tokens=10, best_of=4, n=2)
    size = await measured.count("m", asked, measured.size("m", asked))
    assert (5, 8) == (size.prompt, size.choices)


@pytest.mark.parametrize(
    "request_",
    [
        SEEN,
        CompletionRequest(prompt="a", suffix="b"),
        CompletionRequest(prompt=["a"] * 100),
        RerankRequest(query="a", documents=["b"]),
        EmbeddingRequest(input=["a"] * 100),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_not_counted(request_: Request) -> None:
    """What the model would not count as it reads it keeps its bound."""
    measured = measures()
    bound = measured.size("m", request_)
    assert bound == await measured.count("m", request_, bound)


async def test_a_model_that_does_not_count() -> None:
    """Where no backend can be asked, or the model is gone, the bound stays."""
    measured = measures(Echo(Options(failing_starts=100)))
    bound = measured.size("m", chat())
    assert bound == await measured.count("m", chat(), bound)
    assert (16_384, False) == (measured.size("gone", chat()).room, False)
    assert bound == await measured.count("gone", chat(), bound)


def test_rooms() -> None:
    """An answer without a limit may fill the context, the longest among the model and its fallbacks that the key may use; a guess where one is not known."""
    size = measures().size("m", chat())
    assert (None, 4096, True) == (size.limit, size.room, size.knows_room)
    assert 4096 == size.most(None)[0]
    assert 4096 == measures().size("m", chat(max_tokens=100_000)).limit
    long = Model("other", [PooledBackend(Echo(Options(context=9000)))], fallback="m")
    short = Model("m", [PooledBackend(Echo(Options(context=100)))], fallback="other")
    size = TokenEstimator(Registry([short, long])).size("m", chat())
    assert (9000, True) == (size.room, size.knows_room)
    CURRENT_REQUEST.set(Context(models=frozenset({"m"})))
    assert 100 == TokenEstimator(Registry([short, long])).size("m", chat()).room
    unknown = measures(Echo()).size("m", chat())
    assert (16_384, False) == (unknown.room, unknown.knows_room)
    assert unknown.prompt + 16_384 == unknown.most(None)[0]


def test_what_a_model_adds() -> None:
    """Defaults of the model count, an answer that is validated may be made three times, images may fill the context."""
    assert 7 == measures(defaults={"max_tokens": 7}).size("m", chat()).limit
    size = measures().size("m", chat(response_format=JsonObjectFormat(), max_tokens=5))
    assert 3 == size.choices
    assert size.prompt >= 3 * measures().size("m", chat()).prompt
    assert 4096 == measures().size("m", SEEN).prompt
    tool = Tool(FunctionDefinition("look", "y" * 1000))
    assert measures().size("m", chat(tools=[tool])).prompt > 2000


async def test_what_a_model_makes_of_a_completion() -> None:
    """The defaults of a model's completions count, and the template that it writes around each prompt."""
    config = Config(
        models={
            "four": ModelConfig(source="echo:", completion_defaults={"n": 4, "max_tokens": 50}),
            "chat": ModelConfig(source="echo:", completion_template="chatml"),
        }
    )
    registry = sources.registry(config)
    measured, asked = TokenEstimator(registry), CompletionRequest(prompt="Hi")
    four, wrapped = measured.size("four", asked), measured.size("chat", asked)
    assert (4, 50) == (four.choices, four.limit)
    sent = registry.get("chat").settings.apply(asked).prompts[0]
    assert len("Hi") < len(sent) <= wrapped.prompt
    await registry.aclose()


@pytest.mark.parametrize("form", [family.name for family in FAMILIES])
def test_tools_in_the_prompt(form: str) -> None:
    """What is written around tools into the prompt of a backend that has none is part of the bound; a call that must come is asked for three times."""
    can = Capabilities(
        parameters=declare_support(names("max_tokens"), []), tool_form=form, context=4096
    )

    class Bare(Echo):
        capabilities = can

    for number, choice in ((1, "auto"), (1, "required"), (30, "auto")):
        tools = [Tool(FunctionDefinition(f"look{n}", "Looks.", {"type": "object"})) for n in range(number)]  # fmt: skip
        asked = chat(tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=9)
        size = measures(Bare()).size("m", asked)
        told = _tools.build_request(asked, can)
        written = sum(len(str(message.content).encode()) for message in told.messages)
        attempts = 3 if choice == "required" else 1
        assert attempts == size.choices
        assert written <= size.prompt // attempts


async def test_a_bound_is_one() -> None:
    """No prompt has more tokens than its bound, whatever its texts: the bundled model's tokenizer knows bytes."""
    texts = ["", "Hello!", "\u2603" * 50, "\U0001f600 \x00\x07\ufffd", "a" * 999, "漢字かな", "<|im_end|>" * 9]  # fmt: skip
    async with engine() as backend:
        measured = measures(backend)
        for text in texts:
            for asked in (
                chat(text),
                ChatRequest(messages=[Message("system", text), *[Message("user", text)] * 9]),
                CompletionRequest(prompt=[text, text]),
                EmbeddingRequest(input=text or "a"),
            ):
                bound = measured.size("m", asked)
                size = await measured.count("m", asked, bound)
                assert size.is_counted, type(asked)
                assert size.prompt <= bound.prompt, (text, size, bound)


@given(st.integers(0, 9000), st.integers(0, 9), st.none() | st.integers(0, 9000), st.integers(1, 9000), st.booleans())  # fmt: skip
def test_more_is_more(prompt: int, choices: int, limit: int | None, room: int, knows: bool) -> None:
    """Less room for an answer never needs more, and what an answer may use is part of the whole."""
    size = TokenEstimate(prompt=prompt, choices=choices, limit=limit, room=room, knows_room=knows)
    for allowed in (0, room // 2, room):
        assert size.most(allowed // 2)[0] <= size.most(allowed)[0]
    assert size.most(None)[0] >= prompt
