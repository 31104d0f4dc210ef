"""Tests of unilect.engines.gguf._answers: answers that the parser of a chat template cannot read."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.engine import answer, chat, completion, engine, events_of, needs_transformers
from support.backends.scripted import delta
from support.models import f32_gguf
from unilect.config.model import ModelConfig
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import (
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    fold,
)
from unilect.core.requests import ChatRequest
from unilect.engines.gguf._answers import _public, _ReplayFilter
from unilect.engines.gguf._errors import StrayAnswer, fault
from unilect.engines.gguf.engine import GgufEngine
from unilect.wire.chunks import ChunkDecoder

in_one_loop = pytest.mark.asyncio(loop_scope="module")
#: llama.cpp takes it for gpt-oss', whose every answer begins with a channel; the bundled model knows none.
CHANNELS = (
    "{%- for m in messages -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endfor -%}"
    "{%- if tools -%}{{ tools }}{%- endif -%}"
    "{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
    "{%- if false -%}<|channel|>analysis<|channel|>final{%- endif -%}"
)
#: On a prompt like none that it has seen the model says something.
MUTTERING = {"ignore_eos": True}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[Any]:
    """The bundled model behind that template."""
    async with engine(chat_template=CHANNELS) as running:
        yield running


@in_one_loop
@pytest.mark.parametrize(
    "fields",
    [{}, {"stream": True}, {"tools": [TOOL]}, {"temperature": 1.0}, {"reasoning_format": "none"}],
    ids=str,
)
async def test_an_answer_that_strays(model: Any, fields: dict[str, Any]) -> None:
    """What a model writes outside of its template's form is told as text, and not lost."""
    whole = await answer(model.generate(chat(**MUTTERING | {"max_tokens": 12} | fields)))

    assert whole.choices[0].text
    assert ("length", 12) == (whole.choices[0].finish_reason, whole.usage.completion_tokens)


@in_one_loop
async def test_its_probabilities(model: Any) -> None:
    """Such an answer's tokens have their probabilities, each once."""
    events = await events_of(
        model.generate(chat(**MUTTERING, max_tokens=3, logprobs=True, top_logprobs=1))
    )
    tokens = [t for e in events if isinstance(e, TextDelta) for t in e.logprobs or ()]

    assert 3 == len(tokens)
    assert 1 == sum(isinstance(event, Finish) for event in events)


def told(*events: Event) -> _ReplayFilter:
    """What has been told by these events."""
    return _ReplayFilter(fold([events]))


def test_what_is_told_again() -> None:
    """Of the second making of an answer only what is new is told, however it is cut."""
    lost = StrayAnswer("lost")
    text, thought = TextDelta("Hello wor"), ReasoningDelta("Hm")
    again: list[Event] = [ReasoningDelta("Hm."), TextDelta("Hel"), TextDelta("lo world"), Finish("stop")]  # fmt: skip

    expected = [ReasoningDelta("."), TextDelta("ld"), Finish("stop")]
    assert expected == told(thought, text).filter(again, lost)
    with pytest.raises(StrayAnswer):
        told(text).filter([TextDelta("Good")], lost)
    token = TokenLogprob("a", -1.0)
    first = told(TextDelta("", logprobs=[token]))
    assert [TextDelta("ab", logprobs=[token])] == first.filter([TextDelta("ab", logprobs=[token] * 2)], lost)  # fmt: skip
    assert told(ToolCallDelta(0, "", "c", "f")).calls


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("got exception: Unexpected empty grammar stack after accepting piece: ? (30)", InvalidRequest),
        ("a text is longer than 33554432 bytes", InvalidRequest),
        ("The model produced output that does not match the expected peg-native format", StrayAnswer),
        ("out of memory", BackendError),
    ],
)  # fmt: skip
def test_whose_fault(message: str, kind: type[Exception]) -> None:
    """What llama.cpp calls its own error is told as the request's where it is."""
    assert type(fault(BackendError(message))) is kind


def test_no_request_is_changed() -> None:
    """A chat without a seed is no other request for being made with one."""
    assert ChatRequest.__struct_fields__.count("seed") == 1


@needs_transformers
@pytest.mark.heavy
async def test_probabilities_of_a_prompt_as_the_other_engine_reckons_them(tmp_path: Path) -> None:
    """Of a file of float32, each token of a prompt and its alternatives are as likely as on the transformers engine, to 3 decimals."""
    model = GgufEngine("f32", f32_gguf.make(tmp_path / "f32.gguf"), ModelConfig(cache_type_k="f32", cache_type_v="f32"))  # fmt: skip
    long = (
        "What is the capital of Germany? The capital of Germany is Berlin. " * 9
    )  # more than one piece
    try:
        async with engine("hf") as other:
            for prompt in (long, "Hi<|im_end|>\n<|im_start|>user 😀 中国"):
                asked = completion(prompt, echo=True, logprobs=3, max_tokens=0)
                [found], [wanted] = [(await answer(one.generate(asked))).choices for one in (model, other)]  # fmt: skip
                tokens = found.logprobs or []
                expected = wanted.logprobs or []
                assert [one.token for one in expected] == [one.token for one in tokens]
                for one, same in zip(tokens[1:], expected[1:], strict=True):
                    assert one.logprob == pytest.approx(same.logprob, abs=5e-4)
                    assert [top.logprob for top in one.top_logprobs] == pytest.approx([top.logprob for top in same.top_logprobs], abs=1e-3)  # fmt: skip
    finally:
        await model.aclose()


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("last", [{"content": " <"}, {"reasoning_content": "so"}, {}], ids=str)
def test_what_the_server_says_beside(last: dict[str, Any], truncated: bool) -> None:
    """Of what llama.cpp says beside an answer clients get that the context was full, in whichever frame it stands."""
    verbose = {"__verbose": {"truncated": truncated, "stopping_word": ""}}
    chunks = [delta(role="assistant", content=None), delta(content="a"), delta(**last) | verbose]
    events: list[Event] = []
    for chunk in (*chunks, delta(finish="stop")):
        ChunkDecoder().decode([msgspec.json.encode(chunk)], events)

    shown = [*_public(events)]

    extras = [one.extra.chunk for one in shown if getattr(one, "extra", None) is not None]
    assert extras == [{"truncated": True}] * truncated
    assert [TextDelta("a")] == [one for one in shown if one == TextDelta("a")]
