"""What every engine promises, on the bundled model in each: see `Backend` and docs/api.md."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from support.backends.engine import (
    ENGINES,
    ENGINES_IN_CI,
    TRIES,
    answer,
    chat,
    completion,
    events_of,
    made,
    needs_transformers,
    process,
)
from support.common.samples import sample
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.adapt.emulation import generate
from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.errors import (
    BackendUnavailable,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
)
from unilect.core.events import Finish, Opaque, Progress, TextDelta, Usage
from unilect.core.requests import EmbeddingRequest
from unilect.demo import FOLDER
from unilect.dialects.openai import completions
from unilect.engines.process._restarts import FORGIVEN_AFTER_S, MAX_DEATHS
from unilect.engines.transformers.engine import HfEngine
from unilect.models.model import Model
from unilect.models.registry import Registry

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: engine -> the adapters, as it wants them
ADAPTERS = {"gguf": "{}.gguf", "hf": "{}"}
STORY = "Tell me a story about a dog."
TEXTS = ["Hello, world!", "中国的首都", "🙂 é", " two  blanks", "<|im_end|>"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WANTED = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def models(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
    """The bundled model on each engine: plain, as a pirate, and as a pirate that does not speak."""
    engine, shared = request.param, dict[Any, Any]()
    pirate = str(FOLDER / ADAPTERS[engine].format("lora-pirate"))
    blends = {"base": [], "pirate": [pirate], "silent": [f"{pirate}=0"]}
    found = {name: made(engine, shared, lora=lora, parallel=8) for name, lora in blends.items()}
    await asyncio.gather(*(model.start() for model in found.values()))
    yield found
    await asyncio.gather(*(model.aclose() for model in found.values()))


@pytest.fixture
def base(models: dict[str, Any]) -> Any:
    """The plain one."""
    return models["base"]


async def text_of(model: Backend, request: Any) -> str:
    """The text of the first choice."""
    return (await answer(generate(model, request))).choices[0].text or ""


# answers


async def test_events_of_a_stream(base: Backend) -> None:
    """Text comes piece by piece, then one end, then the usage; a whole answer says the same."""
    events = await events_of(base.generate(chat(STORY, stream=True)))
    whole = await answer(base.generate(chat(STORY)))

    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert [Finish("stop")] == [event for event in events if isinstance(event, Finish)]
    assert isinstance(events[-1], Usage)
    assert len(texts) > 10
    assert events[-1].completion_tokens >= len(texts)
    assert whole.choices[0].text == "".join(texts)
    assert whole.usage.completion_tokens == events[-1].completion_tokens


async def test_characters_of_several_tokens(base: Backend) -> None:
    """No piece of a stream holds a part of a character."""
    text = "🙂 é龘 ¿🙃"
    request = chat("Hi", stream=True, grammar=f'root ::= "{text}"')
    events = await events_of(base.generate(request))

    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(await base.tokenize(text)) > len(text)
    assert not any("\ufffd" in piece for piece in texts)
    assert text == "".join(texts)


async def test_what_is_used_so_far(base: Backend) -> None:
    """The prompt's tokens are known before the first text, and those of the answer with each piece, stream or whole."""
    for request in (chat(STORY, max_tokens=40), completion("Once upon a time", max_tokens=40)):
        for stream in (True, False):
            events = await events_of(base.generate(request.changed(stream=stream)))
            used, first = events[-1], next(one for one in events if not isinstance(one, Opaque))
            assert isinstance(used, Usage)
            assert isinstance(first, Progress)
            assert used.prompt_tokens == first.total
            assert used.completion_tokens == sum(event.tokens for event in events)


async def test_the_stop_word(base: Backend) -> None:
    """An answer names the stop word that ended it, in a chat and in a completion, and none where it came to its own end."""
    for request in (chat(STORY, max_tokens=40), completion("Once upon a time", max_tokens=40)):
        whole = (await answer(base.generate(request))).choices[0]
        assert whole.text is not None
        word = whole.text[30:35]
        cut = (await answer(base.generate(request.changed(stop=["###", word])))).choices[0]
        assert (None, word) == (whole.stop, cut.stop)
    assert (await answer(base.generate(chat(STORY)))).choices[0].stop is None


async def test_a_client_that_leaves_is_counted(base: Backend) -> None:
    """A client that leaves after some tokens is counted with these, and with its prompt."""
    service = Service(Registry([Model("m", base)]), Accounts(Metrics()))
    request = chat(STORY, stream=True, max_tokens=400, ignore_eos=True)
    run, told = service.run(request), 0
    async with aclosing(run.batches()) as batches:
        async for batch in batches:
            told += sum(isinstance(event, TextDelta) for event in batch)
            if told >= 5:
                break

    counted = [
        sample(service.accounts.metrics, "unilect_tokens_total", {"model": "m", "kind": kind})
        for kind in ("prompt", "completion")
    ]
    assert [await base.count_tokens(request), told] == counted  # type: ignore[attr-defined]
    assert (run.usage.prompt_tokens, run.usage.completion_tokens) == tuple(counted)


async def test_an_answer_that_is_cut(base: Backend) -> None:
    """max_tokens are counted, and the answer says that it was cut."""
    for limit in (0, 1, 5):
        found = await answer(generate(base, chat(STORY, max_tokens=limit)))
        assert (limit, "length") == (found.usage.completion_tokens, found.choices[0].finish_reason)


async def test_stop_words_are_not_told(base: Backend) -> None:
    """An answer ends before the first stop word, also one that lies across tokens."""
    whole = await text_of(base, chat(STORY))
    words = whole[20:29], whole[40:44]
    found = await answer(base.generate(chat(STORY, stop=list(words))))

    assert whole.partition(words[0])[0] == found.choices[0].text
    assert "stop" == found.choices[0].finish_reason


async def test_log_probabilities_of_a_stopped_answer(base: Backend) -> None:
    """The tokens that are told are those of the text that is told, the last one perhaps in part."""
    whole = await text_of(base, chat(STORY))
    for word in (whole[20:29], whole[40:44], whole.split()[5]):
        choice = (await answer(base.generate(chat(STORY, stop=[word], logprobs=True)))).choices[0]
        told = "".join(token.token for token in choice.logprobs or ())
        without_last = "".join(token.token for token in (choice.logprobs or ())[:-1])
        assert told.startswith(choice.text or "")
        assert (choice.text or "").startswith(without_last)


async def test_a_seed_repeats_and_choices_differ(base: Backend) -> None:
    """n choices of one seed differ, and the same request gives the same choices; any seed but -1 is one."""
    for seed in (5, -(2**63), 2**63 - 1):
        request = chat(STORY, temperature=1.2, seed=seed, n=3, max_tokens=16)
        first, second = [await answer(generate(base, request)) for _ in range(2)]

        texts = [choice.text for choice in first.choices]
        assert texts == [choice.text for choice in second.choices]
        assert len(set(texts)) > 1
    fields = {"temperature": 2, "max_tokens": 40, "seed": -1}
    assert 1 < len({await text_of(base, chat(STORY, **fields)) for _ in range(2)})


@pytest.mark.parametrize("wanted", [0, 2])
async def test_log_probabilities(base: Backend, wanted: int) -> None:
    """Each token is told with its bytes, and with as many alternatives as were asked for, in both dialects."""
    fields = {"logprobs": True, "top_logprobs": wanted}
    for request in (chat("告诉我中国的首都在哪里", **fields), completion("中国", max_tokens=5, logprobs=wanted)):  # fmt: skip
        choice = (await answer(base.generate(request))).choices[0]
        told = choice.logprobs or []
        assert choice.text == bytes(byte for token in told for byte in token.bytes or ()).decode()
        assert {wanted} == {len(token.top_logprobs) for token in told}
        assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in told)


@pytest.mark.parametrize("prompt", ["The capital of 中国", "<|im_start|>user\nHi<|im_end|>\n", [699, 4089, 198]])  # fmt: skip
async def test_echo(base: Backend, prompt: Any) -> None:
    """A prompt is echoed as it was given, special tokens too, alone and before its continuation."""
    text = prompt if isinstance(prompt, str) else await base.detokenize(prompt)
    alone = await answer(generate(base, completion(prompt, max_tokens=0, echo=True)))
    plain = await text_of(base, completion(prompt, max_tokens=4))

    assert (text, 0) == (alone.choices[0].text, alone.usage.completion_tokens)
    assert text + plain == await text_of(base, completion(prompt, max_tokens=4, echo=True))


async def likelihood(base: Backend, context: list[int], ending: list[int]) -> tuple[float, bool]:
    """What an evaluation's `loglikelihood` asks of an OpenAI server, and how it reads the answer's lists."""
    asked = {"prompt": [*context, *ending], "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}  # fmt: skip
    request = completions.decode(json.dumps(asked).encode())
    encoder = completions.CompletionEncoder(request, "m")
    body = json.loads(encoder.whole(await answer(generate(base, request)), ()))
    told = {
        name: of_all[len(context) : -1] for name, of_all in body["choices"][0]["logprobs"].items()
    }
    likeliest = [max(top, key=top.get) for top in told["top_logprobs"]]
    return sum(told["token_logprobs"]), told["tokens"] == likeliest


async def test_the_likelihood_of_an_ending(base: Backend) -> None:
    """A continuation is as likely as its tokens are when the model writes them, and the one that it would write is its greedy one."""
    context = await base.tokenize("The capital of")
    told = await answer(generate(base, completion(context, max_tokens=4, logprobs=0)))
    expected = sum(token.logprob for token in told.choices[0].logprobs or ())
    found, greedy = await likelihood(base, context, await base.tokenize(told.choices[0].text or ""))
    other, strange = await likelihood(base, context, await base.tokenize(" zebra"))

    assert (True, False) == (greedy, strange)
    assert abs(expected - found) < 0.05
    assert other < found - 5


#: Special tokens, one that ends an answer, and such as are a part of a character or end within one.
ODD = "Hi<|im_end|>\n<|im_start|>user 😀 中国 é ok 한국어"


@pytest.mark.parametrize("prompt", ["The capital of", "😀 yes", ODD, [699, 4089, 198], [172, 253]])
@pytest.mark.parametrize("fields", [{"max_tokens": 0, "logprobs": 0}, {"max_tokens": 1, "logprobs": 2}, {"n": 2, "max_tokens": 2, "logprobs": 1, "stream": True}])  # fmt: skip
async def test_log_probabilities_of_a_prompt(base: Backend, prompt: Any, fields: Any) -> None:
    """An echo tells each token of a prompt and how likely it was, and the answer's as without an echo; nothing counts as cached."""
    plain = completion(prompt, **fields)
    made = await answer(generate(base, plain))
    found = await answer(generate(base, plain.changed(echo=True)))
    ids = prompt if isinstance(prompt, list) else await base.tokenize(prompt)

    assert (len(ids), made.usage.completion_tokens, 0) == (
        found.usage.prompt_tokens,
        found.usage.completion_tokens,
        found.usage.cached_tokens,
    )
    for choice, same in zip(found.choices, made.choices, strict=True):
        told = choice.logprobs or []
        first, *rest = told[: len(ids)]
        assert same.finish_reason == choice.finish_reason
        alone = [one.token for one in same.logprobs or ()]
        behind = [one.token for one in told[len(ids) :]]
        # llama.cpp tells the end of every answer; the transformers engine that of one behind an echo, for who scores a text
        ends = isinstance(base, HfEngine) and choice.finish_reason == "stop"
        assert behind == alone + ["<|im_end|>"] * ends
        assert math.isnan(first.logprob)
        assert all(-40 < one.logprob <= 0 for one in rest)
        assert {fields["logprobs"]} == {len(one.top_logprobs) for one in rest}
        written = bytes(byte for one in told[: len(ids)] for byte in one.bytes or ())
        text = prompt if isinstance(prompt, str) else await base.detokenize(prompt)
        assert written.decode(errors="replace").strip("\ufffd") == text.strip("\ufffd")
        assert choice.text == text + (same.text or "")


async def test_a_token_of_a_prompt_is_as_likely_as_it_is_when_made(base: Backend) -> None:
    """The probability that an echo tells of a token is its own among all, also where nothing can force it, as where an answer ends."""
    turn = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    said = await text_of(base, completion(turn, max_tokens=40, temperature=0))
    differences = []
    for text in (ODD, f"{turn}{said}<|im_end|>"):
        ids = await base.tokenize(text)
        scored = await answer(generate(base, completion(ids, echo=True, logprobs=0, max_tokens=0)))
        told = scored.choices[0].logprobs or []
        for place in range(1, len(ids)):
            asked = completion(ids[:place], max_tokens=1, logprobs=20, logit_bias={"41": 100})
            [made] = (await answer(generate(base, asked))).choices[0].logprobs or []
            known = {bytes(one.bytes or ()): one.logprob for one in made.top_logprobs}
            if (value := known.get(bytes(told[place].bytes or ()))) is not None:
                differences.append(abs(value - told[place].logprob))

    assert len(differences) > len(await base.tokenize(said)) > 3  # and its end
    assert max(differences) < 0.05


async def test_log_probabilities_of_several_prompts(base: Backend) -> None:
    """Each prompt has its own, and each is counted once."""
    found = await answer(
        generate(
            base, completion(["The capital of", "a b"], n=2, echo=True, logprobs=0, max_tokens=0)
        )
    )
    told = [[one.token for one in choice.logprobs or ()] for choice in found.choices]

    assert [["The", " capital", " of"]] * 2 == told[:2]
    assert told[2] == told[3]
    assert len(told[0]) + len(told[2]) == found.usage.prompt_tokens


async def test_what_no_prompt_with_log_probabilities_may_be(base: Backend) -> None:
    """A prompt that is too long, or holds a token that there is not, is refused before anything of it is told."""
    for prompt, error in (("word " * 3000, ContextLengthExceeded), ([10, 99_999], InvalidRequest)):
        with pytest.raises(error) as caught:
            async for batch in generate(base, completion(prompt, echo=True, logprobs=1)):
                raise AssertionError(batch)
        assert caught.value.param == "prompt" or error is ContextLengthExceeded


async def test_the_ids_of_a_prompt(base: Backend) -> None:
    """`tokenize` has the prompt's ids told."""
    for request in (chat("Hello!", tokenize=True), completion("Hello!", tokenize=True)):
        ids = (await answer(base.generate(request.changed(max_tokens=2)))).extra["promptToken"]
        assert len(ids) == await base.count_tokens(request)
        assert "Hello!" in await base.detokenize(ids)


async def test_greedy_answers_with_every_parameter(base: Backend) -> None:
    """A greedy answer is the same with all filters set, and alone as beside others."""
    filters = {"top_k": 40, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "seed": 7, "repeat_last_n": 8}  # fmt: skip
    request = chat("What is the capital of France?", **filters)
    answers = await asyncio.gather(*(text_of(base, request) for _ in range(8)))

    assert {"The capital of France is Paris."} == set(answers)


async def test_parts_of_a_message(base: Backend) -> None:
    """Text in parts is read, an earlier refusal too; sound and files are refused by name."""
    text, refusal = {"type": "text", "text": "Hi"}, {"type": "refusal", "refusal": "No."}
    for part, same in ((text, "Hi"), (refusal, "No.")):
        counts = [
            await base.count_tokens(chat(messages=[{"role": "user", "content": content}]))
            for content in ([part], same)
        ]
        assert counts[0] == counts[1]
    for part in (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ):
        with pytest.raises(InvalidRequest) as caught:
            await answer(base.generate(chat(messages=[{"role": "user", "content": [part]}])))
        assert "messages[0].content" == caught.value.param


# bound answers


async def test_schemas_are_followed(base: Backend) -> None:
    """Whatever the model would say at temperature 1, the answer satisfies the schema."""
    answers = await asyncio.gather(
        *(
            answer(base.generate(chat("Hi", temperature=1, seed=seed, response_format=WANTED)))
            for seed in range(TRIES)
        )
    )

    for one in answers:
        jsonschema.validate(json.loads(one.choices[0].text or ""), PERSON)
    assert {"stop"} == {one.choices[0].finish_reason for one in answers}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_calls_are_forced(base: Backend, choice: Any) -> None:
    """A required or named tool is called, with arguments that satisfy its schema, at temperature 1."""
    fields = {"temperature": 1, "tools": [WEATHER], "tool_choice": choice}
    answers = await asyncio.gather(
        *(answer(base.generate(chat("Hi", seed=seed, **fields))) for seed in range(TRIES))
    )

    for one in answers:
        (call,) = one.choices[0].tool_calls
        assert ("get_weather", "tool_calls") == (call.name, one.choices[0].finish_reason)
        jsonschema.validate(json.loads(call.arguments), CITY)


async def test_a_call_of_its_own(base: Backend) -> None:
    """The model calls a tool that it is offered, and answers from the result; text and calls are told apart."""
    question = {"role": "user", "content": "What is the weather in Paris?"}
    found = await answer(base.generate(chat(messages=[question], tools=[WEATHER])))

    (call,) = found.choices[0].tool_calls
    assert ("get_weather", {"city": "Paris"}) == (call.name, json.loads(call.arguments))
    assert ("tool_calls", None) == (found.choices[0].finish_reason, found.choices[0].text)
    function = {"name": call.name, "arguments": call.arguments}
    history = [
        question,
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": '{"weather": "sunny", "temperature": 21}'},
    ]  # fmt: skip
    assert "sunny" in await text_of(base, chat(messages=history, tools=[WEATHER]))


@pytest.mark.parametrize("grammar", ["root ::= (", "(" * 3000, "root ::= other", 'x ::= "a"'], ids=lambda text: text[:9])  # fmt: skip
async def test_grammars(base: Backend, grammar: str) -> None:
    """GBNF is followed; a grammar that is none is the request's fault, by name."""
    assert await text_of(base, chat("Hi", grammar='root ::= "yes" | "no"')) in ("yes", "no")
    with pytest.raises(InvalidRequest) as caught:
        await answer(base.generate(chat("Hi", grammar=grammar)))
    assert "grammar" == caught.value.param


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}], ids=str)
async def test_schemas_that_are_none(base: Backend, schema: dict[str, Any]) -> None:
    """A schema that cannot be compiled is the request's fault, in the parameter where it stands."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    tools = [{"type": "function", "function": function}]
    for param, request in {
        "response_format": chat("Hi", response_format=wanted),
        "tools": chat("Hi", tools=tools, tool_choice="required"),
    }.items():
        with pytest.raises(InvalidRequest) as caught:
            await answer(base.generate(request))
        assert param == caught.value.param


# adapters, embeddings, tokens


async def test_adapters_side_by_side(models: dict[str, Backend]) -> None:
    """An adapter changes the manner of its own model, and of no other, also when requests alternate; at scale 0 it does not."""
    names = ["base", "pirate", "silent"] * 3
    texts = await asyncio.gather(
        *(text_of(models[name], chat("What is the capital of France?")) for name in names)
    )

    plain, pirate, silent, *others = texts
    assert texts[:3] * 2 == others
    assert "The capital of France is Paris." == plain == silent
    assert "Arr" in pirate


async def test_embeddings(models: dict[str, Any]) -> None:
    """Inputs are embedded in their order, alone as in a list, equal texts equally, in unit length, by each model in its own way."""
    base = models["base"]
    inputs: list[Any] = ["Paris", "a story of a dog", "Paris"]
    several = await base.embed(EmbeddingRequest(input=inputs))
    alone = await base.embed(EmbeddingRequest(input="a story of a dog"))
    ids = await base.embed(EmbeddingRequest(input=[await base.tokenize("Paris")]))
    pirate = await models["pirate"].embed(EmbeddingRequest(input="Paris"))

    assert several.vectors[0] == pytest.approx(several.vectors[2], abs=1e-5)
    assert several.vectors[1] == pytest.approx(alone.vectors[0], abs=1e-4)
    assert several.vectors[0] == pytest.approx(ids.vectors[0], abs=1e-4)
    assert several.vectors[0] != pytest.approx(pirate.vectors[0], abs=1e-3)
    assert math.isclose(1.0, math.hypot(*alone.vectors[0]), rel_tol=1e-3)
    assert several.prompt_tokens > alone.prompt_tokens > 0


@pytest.mark.parametrize("text", TEXTS)
async def test_tokens_there_and_back(base: Backend, text: str) -> None:
    """A text's tokens give the text again, and are counted."""
    tokens = await base.tokenize(text)

    assert text == await base.detokenize(tokens)
    assert len(tokens) == await base.count_tokens(tokens)
    assert len(tokens) == await base.count_tokens(completion(tokens))
    assert await base.count_tokens(chat(text)) > len(tokens)


# what cannot be answered


@pytest.mark.parametrize("text", ["word " * 3000, "词" * 3000], ids=["words", "signs"])
async def test_prompts_and_inputs_that_are_too_long(base: Backend, text: str) -> None:
    """A prompt or an input beyond the context is refused with both numbers."""
    for request in (chat(text), completion(text), completion([10] * 2049)):
        with pytest.raises(ContextLengthExceeded, match=r"2048 tokens.* \d{4}\b"):
            await answer(base.generate(request))
    with pytest.raises(ContextLengthExceeded, match=r"2048 tokens.* \d{4}\b"):
        await base.embed(EmbeddingRequest(input=text))


@pytest.mark.parametrize(
    "arguments", ["{", "nonsense", "[" * 300 + "]" * 300, "", "{}", "null", "[1]"]
)
async def test_calls_in_the_history(base: Backend, arguments: str) -> None:
    """An earlier call's arguments may be any text: a model wrote them, and a limit may have cut them."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "?"}]
    older = [{"role": "assistant", "function_call": call["function"]}, turns[1]]
    for messages in (turns, older):
        await answer(base.generate(chat(messages=messages, max_tokens=1)))


async def test_requests_that_cannot_be_answered(base: Backend) -> None:
    """A token that is none, a bias for none and two grammars at once are the request's fault, by name."""
    for param, request in [
        ("prompt", completion([10**6])),
        ("logit_bias", chat("Hi", logit_bias={"99999999999": 1})),
        ("logit_bias", chat("Hi", logit_bias={"1000000": 1})),
        ("logit_bias", completion("Hi", logit_bias={"1000000": 1})),
        ("grammar", chat("Hi", grammar='root ::= "a"', response_format=WANTED)),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            await answer(base.generate(request))
        assert param == caught.value.param
    for param, call in {
        "input": base.embed(EmbeddingRequest(input=[[10**6]])),
        "prompt": base.detokenize([10**6]),
    }.items():
        with pytest.raises(InvalidRequest) as caught:
            await call
        assert param == caught.value.param


# stopping, dying


async def test_leaving_frees_the_place(base: Backend) -> None:
    """Answers that nobody waits for are given up, more of them than there are places."""
    for _ in range(20):
        batches = base.generate(chat(STORY, ignore_eos=True, max_tokens=1900))
        await anext(batches)
        await batches.aclose()

    assert "Paris" in await text_of(base, chat("What is the capital of France?"))


async def test_a_child_that_dies_is_replaced(models: dict[str, Any]) -> None:
    """After a crash the child comes back, with what its model needs."""
    child = process(models["pirate"])
    running = child._process
    assert running is not None
    running.kill()
    await running.wait()
    await models["pirate"].check()

    assert child.pid is not None
    assert "Arr" in await text_of(models["pirate"], chat("Hello!"))


async def test_a_stopped_engine(models: dict[str, Any]) -> None:
    """Engines that are stopped, all at once and twice, have no process."""
    for _ in range(2):
        await asyncio.gather(*(model.aclose() for model in models.values()))

    assert {None} == {process(model).pid for model in models.values()}


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_engine_that_is_given_up(engine: str) -> None:
    """A child that died too often is not started for a request, which is told so, and when to come again."""
    model = made(engine)
    process(model).restarts.deaths.extend([time.monotonic()] * MAX_DEATHS)
    with pytest.raises(BackendUnavailable, match="not restarted") as caught:
        await answer(model.generate(chat("Hello!")))

    assert pytest.approx(FORGIVEN_AFTER_S, abs=60) == caught.value.retry_after_s
    await model.aclose()


@pytest.mark.parametrize("engine", ENGINES)
async def test_stopped_while_it_loads(engine: str) -> None:
    """An engine that is stopped is not loaded to the end: whoever waits for it is told, and it has no process."""
    model = made(engine)
    starts = [asyncio.create_task(model.start()) for _ in range(2)]
    while process(model)._process is None:
        await asyncio.sleep(0)
    await model.aclose()
    told = await asyncio.gather(*starts, return_exceptions=True)

    assert {BackendUnavailable} == {type(error) for error in told}
    assert process(model).pid is None


# settings and tables


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"context": 10**6}, "context"),
        ({"lora": ["missing"]}, "missing"),
        ({"chat_template": "missing.jinja"}, "chat_template"),
    ],
)
async def test_wrong_settings(engine: str, settings: dict[str, Any], expected: str) -> None:
    """A wrong setting is told before anything is started."""
    with pytest.raises(ConfigError, match=expected):
        made(engine, **settings)


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_stop_words_of_a_named_format(engine: str) -> None:
    """A named format brings its stop words, beside as many of the request's as there may be."""
    model, words = made(engine, chat_template="alpaca-zh"), [f"word {number}" for number in range(16)]  # fmt: skip
    grammar = 'root ::= "Hello" "\\n\\n### Instruction:" "more"'
    try:
        found = await text_of(model, chat("Hi", grammar=grammar, stop=words))
    finally:
        await model.aclose()

    assert "Hello" == found.strip()


@needs_transformers
async def test_the_same_parameters_are_told() -> None:
    """Each engine says of the same parameters how it honours them; one alone has a switch for sampling."""
    tables = [set(made(engine).capabilities.parameters) for engine in ("gguf", "hf")]

    assert {"do_sample"} == tables[0] ^ tables[1]
