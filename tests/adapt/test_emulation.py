"""Tests of unilect.adapt.emulation, on the bundled model's engines."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, Spy, answer, chat, completion, engine, events_of
from unilect.adapt import emulation
from unilect.adapt.emulation import generate
from unilect.api.backend import Backend
from unilect.core.errors import BackendError, InvalidRequest, UnsupportedParameter
from unilect.core.events import Choice, Finish, TextDelta, TokenLogprob, Usage

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def demo(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """The bundled model on each engine, four requests at a time."""
    async with engine(request.param, parallel=4) as running:
        yield running


async def test_one_choice_is_the_backends(demo: Backend) -> None:
    """A request for one choice is handed on as it is."""
    spy = Spy(demo)
    request = chat(max_tokens=8)
    await events_of(generate(spy, request))

    assert [request] == spy.asked


async def test_n(demo: Backend) -> None:
    """Each of `n` choices is a whole answer, and the prompt is counted once."""
    one = await answer(generate(demo, chat(max_tokens=8)))
    three = await answer(generate(demo, chat(max_tokens=8, n=3)))

    assert [0, 1, 2] == [choice.index for choice in three.choices]
    assert [one.choices[0].text] * 3 == [choice.text for choice in three.choices]
    assert [one.choices[0].finish_reason] * 3 == [c.finish_reason for c in three.choices]
    assert (one.usage.prompt_tokens, one.usage.completion_tokens * 3) == (
        three.usage.prompt_tokens,
        three.usage.completion_tokens,
    )


async def test_the_events_of_n(demo: Backend) -> None:
    """Each choice has one finish, after its own text, and the usage is last and told once."""
    events = await events_of(generate(demo, chat(max_tokens=8, n=3)))

    finished: set[int] = set()
    for event in events[:-1]:
        if isinstance(event, TextDelta | Finish):
            assert event.index not in finished
        if isinstance(event, Finish):
            finished.add(event.index)
    assert {0, 1, 2} == finished
    assert [events[-1]] == [event for event in events if isinstance(event, Usage)]


async def test_seeds_of_n(demo: Backend) -> None:
    """Choices with a seed differ from each other, and come again with the same seed."""
    spy = Spy(demo)
    request = chat("Tell me a story.", max_tokens=16, n=3, seed=7, temperature=1.5)
    first = await answer(generate(spy, request))
    second = await answer(generate(demo, request))

    assert [7, 8, 9] == [asked.seed for asked in spy.asked]
    assert [c.text for c in first.choices] == [c.text for c in second.choices]
    assert len({choice.text for choice in first.choices}) > 1


async def test_a_prompt_is_written_once(demo: Backend) -> None:
    """However many choices a plain completion has, its prompt is encoded once, and so is each of several."""
    spy = Spy(demo)
    raw_fields = {"prompt": msgspec.Raw(b'"A"'), "n": msgspec.Raw(b"4")}
    one = completion("A", max_tokens=1, n=4, seed=1)
    several = completion(["A", "B"], max_tokens=1, n=3, seed=1)
    await answer(generate(spy, msgspec.structs.replace(one, raw_fields=raw_fields)))
    await answer(generate(spy, msgspec.structs.replace(several, raw_fields=raw_fields)))

    written = [asked.raw_fields["prompt"] for asked in spy.asked]
    assert (10, {id(raw_fields["prompt"])}) == (len(written), {id(raw) for raw in written[:4]})
    assert 2 == len({id(raw) for raw in written[4:]})
    assert {b'"A"', b'"B"'} == {bytes(raw) for raw in written[4:]}


async def test_equal_prompts(demo: Backend) -> None:
    """Two prompts are counted as two, also where they are the same text."""
    one = await answer(generate(demo, completion("The capital", max_tokens=1)))
    two = await answer(generate(demo, completion(["The capital"] * 2, max_tokens=1)))

    assert 2 * one.usage.prompt_tokens == two.usage.prompt_tokens


async def test_several_prompts(demo: Backend) -> None:
    """Each prompt has `n` answers in a row, and each prompt's tokens are counted once."""
    prompts = ["The capital of France", "Once upon a time"]
    singles = [await answer(generate(demo, completion(p, max_tokens=6))) for p in prompts]
    both = await answer(generate(demo, completion(prompts, max_tokens=6, n=2)))

    texts = [single.choices[0].text for single in singles]
    assert [texts[0], texts[0], texts[1], texts[1]] == [choice.text for choice in both.choices]
    assert sum(s.usage.prompt_tokens for s in singles) == both.usage.prompt_tokens
    assert 2 * sum(s.usage.completion_tokens for s in singles) == both.usage.completion_tokens


async def test_token_ids(demo: Backend) -> None:
    """A prompt of token ids is answered as its text."""
    ids = await demo.tokenize("The capital of")
    texts = [
        (await answer(generate(demo, completion(prompt, max_tokens=6)))).choices[0].text
        for prompt in ("The capital of", ids, [ids])
    ]

    assert len(set(texts)) == 1


@pytest.mark.parametrize("tokens", [6, 0])
async def test_echo(demo: Backend, tokens: int) -> None:
    """`echo` puts the prompt before its answer, that of token ids too."""
    plain = await answer(generate(demo, completion(max_tokens=tokens)))
    ids = await demo.tokenize("The capital of")
    for prompt in ("The capital of", ids):
        echoed = await answer(generate(demo, completion(prompt, max_tokens=tokens, echo=True)))
        assert "The capital of" + (plain.choices[0].text or "") == echoed.choices[0].text


async def test_no_tokens(demo: Backend) -> None:
    """`max_tokens: 0` reads and counts the prompt and tells nothing, in a chat and a completion."""
    for request, none in (
        (chat(max_tokens=1), chat(max_tokens=0)),
        (completion(max_tokens=1), completion(max_tokens=0)),
    ):
        counted = (await answer(generate(demo, request))).usage.prompt_tokens
        finish, usage = await events_of(generate(demo, none))
        assert isinstance(finish, Finish)
        assert isinstance(usage, Usage)
        assert ("length", counted, 0) == (
            finish.reason,
            usage.prompt_tokens,
            usage.completion_tokens,
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}},
        {"grammar": "root ::= ("},
    ],
)
async def test_no_tokens_of_what_cannot_be(demo: Backend, fields: dict[str, Any]) -> None:
    """`max_tokens: 0` checks what any other request is checked for."""
    with pytest.raises(InvalidRequest):
        await answer(generate(demo, chat(max_tokens=0, **fields)))


async def test_no_tokens_of_several(demo: Backend) -> None:
    """`max_tokens: 0` with `n` finishes every choice."""
    events = await events_of(generate(demo, chat(max_tokens=0, n=2)))

    assert {0, 1} == {event.index for event in events if isinstance(event, Finish)}


async def test_best_of(demo: Backend) -> None:
    """Of `best_of` answers the likeliest are given, without log probabilities nobody asked for."""
    asked = {"max_tokens": 8, "temperature": 1.5, "seed": 7}
    all_four = await answer(generate(demo, completion(n=4, logprobs=0, **asked)))
    best = await answer(generate(demo, completion(n=1, best_of=4, **asked)))

    def mean(choice: Any) -> float:
        values = [token.logprob for token in choice.logprobs]
        return sum(values) / len(values)

    assert max(all_four.choices, key=mean).text == best.choices[0].text
    assert (1, None) == (len(best.choices), best.choices[0].logprobs)
    assert all_four.usage.completion_tokens == best.usage.completion_tokens


async def test_best_of_several_prompts(demo: Backend) -> None:
    """Each prompt has its own best answers, with the indices of `n`."""
    request = completion(["a", "b"], n=2, best_of=3, max_tokens=3, temperature=1, logprobs=1)
    best = await answer(generate(demo, request))

    assert [0, 1, 2, 3] == [choice.index for choice in best.choices]
    assert all(choice.logprobs and choice.finish_reason for choice in best.choices)


@pytest.mark.parametrize("fields", [{"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}])
async def test_what_cannot_be_made_up_for(demo: Backend, fields: dict[str, Any]) -> None:
    """What cannot be made up for is refused by name, before anything is made."""
    spy = Spy(demo)
    with pytest.raises(InvalidRequest) as raised:
        await events_of(generate(spy, completion(**fields)))

    assert ("best_of", []) == (raised.value.param, spy.asked)


class Unscored(Spy):
    """A backend that knows no log probabilities of a prompt."""

    @property
    def capabilities(self) -> Any:
        """Those of the other, with echoes that are made up for."""
        known = self._backend.capabilities
        return msgspec.structs.replace(known, parameters={**known.parameters, "echo": "emulated"})


async def test_log_probabilities_of_a_prompt(demo: Backend) -> None:
    """Where a backend knows none of a prompt's log probabilities, they are refused by name; else it echoes where they are wanted."""
    with pytest.raises(UnsupportedParameter) as raised:
        await events_of(generate(Unscored(demo), completion(echo=True, logprobs=1)))
    spy = Spy(demo)
    for logprobs in (None, 1):
        await events_of(generate(spy, completion(echo=True, logprobs=logprobs)))

    assert "echo" == raised.value.param
    assert [None, True] == [getattr(request, "echo", None) for request in spy.asked]


class Searching(Spy):
    """A backend that makes all choices of a beam search, and echoes nothing."""

    @property
    def capabilities(self) -> Any:
        """Those of the other, and beams."""
        return msgspec.structs.replace(self._backend.capabilities, fans_beams_out=True)

    async def generate(self, request: Any) -> Any:
        """Each choice is its index."""
        self.asked.append(request)
        for index in range(request.n):
            yield [TextDelta(f" {index}", index), Finish("stop", index)]
        yield [Usage(1, request.n)]


async def test_each_choice_of_a_search_echoes() -> None:
    """A search is asked for once for each prompt, and each of its choices begins with the prompt where that is to be echoed."""
    async with engine() as gguf:
        spy = Searching(gguf)
        found = await answer(
            generate(spy, completion(["a", "b"], n=2, num_beams=2, echo=True, max_tokens=2))
        )

    assert [2, 2] == [request.n for request in spy.asked]
    assert ["a 0", "a 1", "b 0", "b 1"] == [choice.text for choice in found.choices]


async def test_closing_stops_every_choice(demo: Backend) -> None:
    """Whoever stops reading ends all choices, and leaves no task behind."""
    before = asyncio.all_tasks()
    async with aclosing(generate(demo, chat(n=4, max_tokens=512, ignore_eos=True))) as batches:
        await anext(batches)

    assert before == asyncio.all_tasks()


class Failing(Spy):
    """A backend whose second answer fails."""

    def __init__(self, backend: Any, error: Exception) -> None:
        super().__init__(backend)
        self._error = error

    async def generate(self, request: Any) -> Any:
        """Fail for the second request."""
        self.asked.append(request)
        if len(self.asked) == 2:
            raise self._error
        async with aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                yield batch


@pytest.mark.parametrize("error", [BackendError("No."), ValueError("a flaw")])
async def test_one_choice_fails(demo: Backend, error: Exception) -> None:
    """An error of one choice, a flaw too, is the request's, and ends the others."""
    before = asyncio.all_tasks()
    with pytest.raises(type(error)):
        async with asyncio.timeout(60):
            await events_of(generate(Failing(demo, error), chat(n=3, max_tokens=400)))

    assert before == asyncio.all_tasks()


async def test_forced_calls(demo: Backend) -> None:
    """A call that is required comes from the model itself, its arguments as the schema says, for each choice."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    request = chat("Weather in Paris?", tools=[tool], tool_choice="required", n=2, max_tokens=200)
    called = await answer(generate(demo, request))

    for choice in called.choices:
        (call,) = choice.tool_calls
        assert ("get_weather", "tool_calls") == (call.name, choice.finish_reason)
        assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    assert len({choice.tool_calls[0].id for choice in called.choices}) == 2


@pytest.mark.parametrize(
    "request_",
    [
        chat("Hello!", max_tokens=2, tokenize=True),
        chat("Hello!", max_tokens=2, tokenize=True, n=3),
        completion("Hello world", max_tokens=2, tokenize=True, n=1, best_of=2),
        completion(["Hello world", "b"], max_tokens=2, tokenize=True),
    ],
)
async def test_the_ids_of_a_prompt(demo: Backend, request_: Any) -> None:
    """The ids of a prompt are told once, those of the first where there are many."""
    told = (await answer(generate(demo, request_))).extra["promptToken"]
    text = "Hello world" if hasattr(request_, "prompt") else PROMPT

    assert text == await demo.detokenize(told)
    assert await demo.tokenize(text) == told


async def test_the_best_of_echoes() -> None:
    """The best choice is found although a prompt's first token, which has no log probability, is told with each."""
    nothing = TokenLogprob("The", float("nan"))
    worse, better = (
        Choice(index, "x", logprobs=[nothing, TokenLogprob("x", logprob)])
        for index, logprob in enumerate((-3.0, -1.0))
    )

    assert [-3.0, -1.0] == list(map(emulation._mean_logprob, (worse, better)))
