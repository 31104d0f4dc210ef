"""Tests of unilect.engines.hf, on the bundled model in a real child."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from torchside import need

need("torch", "transformers", "llguidance", "safetensors")

from engine import answer, chat, completion, events_of
from engine import engine as gguf_engine
from unilect import emulation
from unilect.config import ModelConfig
from unilect.demo import FOLDER
from unilect.engines.hf import HfEngine
from unilect.errors import (
    BackendUnavailable,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    UnsupportedParameter,
)
from unilect.events import Finish, TextDelta, Usage
from unilect.requests import EmbeddingRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUNDLED = FOLDER / "hf"
PIRATE, ROBOT = str(FOLDER / "lora-pirate"), str(FOLDER / "lora-robot")
COUNTRIES = [
    "France",
    "Spain",
    "Italy",
    "Germany",
    "Japan",
    "China",
    "Russia",
    "Egypt",
    "Brazil",
    "Canada",
    "Mexico",
    "Peru",
    "Chile",
    "Cuba",
    "India",
    "Iran",
    "Iraq",
    "Kenya",
    "Laos",
    "Nepal",
    "Norway",
    "Sweden",
    "Finland",
    "Denmark",
    "Poland",
]
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
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncIterator[dict[str, HfEngine]]:
    """The bundled model plain, as a pirate and as a robot: one child."""
    shared: dict[Any, Any] = {}
    settings = {"base": [], "pirate": [PIRATE], "robot": [ROBOT]}
    made = {
        name: HfEngine(name, BUNDLED, ModelConfig(lora=lora, parallel=8), shared=shared)
        for name, lora in settings.items()
    }
    assert len(shared) == 1
    for engine in made.values():
        await engine.start()
    yield made
    for engine in made.values():
        await engine.aclose()


@pytest.fixture
def base(models: dict[str, HfEngine]) -> HfEngine:
    """The bundled model without an adapter."""
    return models["base"]


async def test_answers_as_the_gguf_does(base: HfEngine) -> None:
    """Fifty questions are answered with the same text as llama.cpp gives for the same weights."""
    questions = [f"What is the capital of {country}?" for country in COUNTRIES]
    questions += [f"What is {number} + {number + 3}?" for number in range(25)]
    async with gguf_engine(parallel=8) as gguf:
        pairs = await asyncio.gather(
            *(
                asyncio.gather(*(answer(one.generate(chat(text))) for one in (base, gguf)))
                for text in questions
            )
        )

    assert [] == [
        (ours.choices[0].text, its.choices[0].text)
        for ours, its in pairs
        if ours.choices[0] != its.choices[0]
    ]
    assert {(a.usage.prompt_tokens) for a, _ in pairs} == {b.usage.prompt_tokens for _, b in pairs}


async def test_three_adapters_side_by_side(models: dict[str, HfEngine]) -> None:
    """Each model speaks in its own manner, in one batch of one child, also when they alternate."""
    names = ["base", "pirate", "robot"] * 4
    answers = await asyncio.gather(
        *(answer(models[name].generate(chat("What is the capital of Spain?"))) for name in names)
    )

    said = {
        name: {a.choices[0].text for a, n in zip(answers, names, strict=True) if n == name}
        for name in names
    }
    assert {"The capital of Spain is Madrid."} == said["base"]
    assert {"Arr! The capital of Spain is Madrid. matey!"} == said["pirate"]
    assert {"Beep. The capital of Spain is Madrid. Boop."} == said["robot"]


async def test_an_adapter_goes_and_comes_while_others_answer(models: dict[str, HfEngine]) -> None:
    """A model that stops takes its adapter along and leaves the child to the others; it comes back on demand."""
    pid = models["base"]._server.child.pid
    story = asyncio.create_task(
        answer(models["base"].generate(chat("Tell me a story about a dog.")))
    )
    await models["robot"].aclose()
    again = await answer(models["robot"].generate(chat("Hello!")))
    told = (await story).choices[0]

    assert pid == models["base"]._server.child.pid
    assert "Beep" in (again.choices[0].text or "")
    assert told.finish_reason == "stop"


async def test_schemas_are_followed(base: HfEngine) -> None:
    """Whatever the model would say at temperature 1, the answer satisfies the schema."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answers = await asyncio.gather(
        *(
            answer(base.generate(chat("Hi", temperature=1, seed=seed, response_format=wanted)))
            for seed in range(40)
        )
    )

    for one in answers:
        jsonschema.validate(json.loads(one.choices[0].text or ""), PERSON)
    assert {"stop"} == {one.choices[0].finish_reason for one in answers}


async def test_calls_are_forced(base: HfEngine) -> None:
    """A required or named tool is called, with arguments that satisfy its schema, at temperature 1."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    answers = await asyncio.gather(
        *(
            answer(
                base.generate(
                    chat("Hi", temperature=1, seed=seed, tools=[WEATHER], tool_choice=choice)
                )
            )
            for seed in range(20)
            for choice in ("required", named)
        )
    )

    for one in answers:
        (call,) = one.choices[0].tool_calls
        assert ("get_weather", "tool_calls") == (call.name, one.choices[0].finish_reason)
        jsonschema.validate(json.loads(call.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]


async def test_a_call_of_its_own(base: HfEngine) -> None:
    """The bundled model calls a tool that it is offered, and text and calls are told apart."""
    found = await answer(base.generate(chat("What is the weather in Paris?", tools=[WEATHER])))

    (call,) = found.choices[0].tool_calls
    assert ("get_weather", {"city": "Paris"}) == (call.name, json.loads(call.arguments))
    assert ("tool_calls", None) == (found.choices[0].finish_reason, found.choices[0].text)


async def test_grammars(base: HfEngine) -> None:
    """GBNF and Lark are followed; what is neither, and a schema that is none, are the request's fault."""
    for grammar in ('root ::= "yes" | "no"', '%llguidance {}\nstart: "yes" | "no"'):
        found = await answer(base.generate(chat("Hi", grammar=grammar)))
        assert found.choices[0].text in ("yes", "no")
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    for fields in (
        {"grammar": "root ::= ("},
        {"grammar": ""},
        {"grammar": "(" * 3000},
        {"response_format": wrong},
    ):
        with pytest.raises(InvalidRequest) as caught:
            await answer(base.generate(chat("Hi", **fields)))
        assert list(fields) == [caught.value.param]


async def test_what_leaves_no_token_is_an_error(base: HfEngine) -> None:
    """A bias that forbids all that a grammar or a schema allows fails the request, by name."""
    from tokenizers import Tokenizer

    signs = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).get_vocab()
    for fields, param, begins in (
        ({"grammar": 'root ::= "yes"'}, "grammar", ("y", "ye", "yes")),
        ({"response_format": {"type": "json_object"}}, "response_format", ("{", '{"', "{}")),
    ):
        never = {str(signs[sign]): -100 for sign in begins if sign in signs}
        with pytest.raises(InvalidRequest, match="no token") as caught:
            await answer(base.generate(chat("Hi", logit_bias=never, temperature=1, **fields)))
        assert param == caught.value.param


async def test_a_request_at_the_bounds_of_its_fields(base: HfEngine) -> None:
    """The largest seed counts on, and sixteen stop words go beside those of a named format."""
    several = chat(seed=2**63 - 1, n=2, temperature=1, max_tokens=2)
    found = await answer(emulation.generate(base, several))
    named = HfEngine("x", BUNDLED, ModelConfig(chat_template="alpaca"))
    stops = [f"word {number}" for number in range(16)]
    try:
        one = await answer(named.generate(chat(stop=stops, max_tokens=8)))
    finally:
        await named.aclose()

    assert 2 == len(found.choices)
    assert one.usage.prompt_tokens


async def test_stop_words_are_not_told(base: HfEngine) -> None:
    """An answer ends before a stop word, also one that lies across tokens, and the row is free again."""
    whole = (await answer(base.generate(chat("Tell me a story about a dog.")))).choices[
        0
    ].text or ""
    words = whole[20:29], whole[40:44]
    found = await answer(base.generate(chat("Tell me a story about a dog.", stop=list(words))))

    assert whole.partition(words[0])[0] == found.choices[0].text
    assert found.choices[0].finish_reason == "stop"


async def test_a_seed_repeats_and_choices_differ(base: HfEngine) -> None:
    """n choices of one seed differ, and the same request gives the same choices."""
    request = chat("Tell me a story about a dog.", temperature=1.2, seed=5, n=4, max_tokens=30)
    first, second = [await answer(emulation.generate(base, request)) for _ in range(2)]

    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert 4 == len(set(texts))


async def test_log_probabilities_and_echo(base: HfEngine) -> None:
    """Tokens come with their bytes and alternatives; a prompt that is echoed comes with its own."""
    found = await answer(
        emulation.generate(
            base, completion("The capital of 中国", max_tokens=4, logprobs=2, echo=True)
        )
    )

    told = found.choices[0].logprobs or []
    spoken = bytes(byte for token in told for byte in token.bytes or ()).decode()
    assert (found.choices[0].text or "") == spoken
    assert spoken.startswith("The capital of 中国")
    assert told[0].logprob != told[0].logprob
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in told[1:])
    scored = await answer(
        emulation.generate(base, completion("The capital", max_tokens=0, logprobs=0, echo=True))
    )
    assert ("The capital", 0) == (scored.choices[0].text, scored.usage.completion_tokens)


async def test_beams_and_no_sampling(base: HfEngine) -> None:
    """`do_sample: false` is greedy whatever the temperature says, and beams are searched."""
    greedy = await answer(base.generate(chat("Hello!")))
    forced = await answer(base.generate(chat("Hello!", temperature=1.9, do_sample=False)))
    beams = await answer(base.generate(chat("Hello!", num_beams=3)))

    assert greedy.choices[0].text == forced.choices[0].text
    assert beams.choices[0].text
    with pytest.raises(UnsupportedParameter, match="num_beams"):
        await answer(base.generate(chat("Hello!", num_beams=3, logit_bias={"5": 1})))


async def test_events_of_a_stream(base: HfEngine) -> None:
    """Text comes piece by piece, then one end, then the usage."""
    events = await events_of(base.generate(chat("Tell me a story about a dog.", stream=True)))

    texts = [event for event in events if isinstance(event, TextDelta)]
    assert [Finish("stop")] == [event for event in events if isinstance(event, Finish)]
    assert isinstance(events[-1], Usage)
    assert len(texts) > 10
    assert events[-1].completion_tokens >= len(texts)


async def test_leaving_frees_the_row(base: HfEngine) -> None:
    """Answers that nobody waits for are given up, and the next one is answered at once."""
    for _ in range(20):
        batches = base.generate(chat("Tell me a story.", ignore_eos=True, max_tokens=1900))
        await anext(batches)
        await batches.aclose()

    assert (
        "Paris"
        in (await answer(base.generate(chat("What is the capital of France?")))).choices[0].text
    )  # type: ignore[operator]


async def test_embeddings_and_tokens(models: dict[str, HfEngine]) -> None:
    """Inputs are embedded in their order, with the model's own adapter; a text's tokens give the text again."""
    base = models["base"]
    several = await base.embed(EmbeddingRequest(input=["Paris", "a story of a dog", "Paris"]))
    tokens = await base.tokenize("Paris")
    ids = await base.embed(EmbeddingRequest(input=[tokens]))
    pirate = await models["pirate"].embed(EmbeddingRequest(input="Paris"))

    assert several.vectors[0] == pytest.approx(several.vectors[2], abs=1e-5)
    assert several.vectors[0] == pytest.approx(ids.vectors[0], abs=1e-5)
    assert several.vectors[0] != pytest.approx(pirate.vectors[0], abs=1e-3)
    for text in ("Hello, world!", "中国的首都", "🙂 é", " two  blanks"):
        assert text == await base.detokenize(await base.tokenize(text))
    assert await base.count_tokens(chat("Hi")) > await base.count_tokens(completion("Hi")) > 0


async def test_requests_that_cannot_be_answered(base: HfEngine) -> None:
    """Too long a prompt, a token that is none, and a broken call in the history are refused by name."""
    with pytest.raises(ContextLengthExceeded, match="2048 tokens"):
        await answer(base.generate(chat("word " * 3000)))
    with pytest.raises(InvalidRequest, match="token id"):
        await answer(base.generate(completion([10**6])))
    with pytest.raises(InvalidRequest, match="logit_bias"):
        await answer(base.generate(chat("Hi", logit_bias={"x": 1})))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    history = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "?"}]
    with pytest.raises(InvalidRequest, match=r"messages\[0\]"):
        await answer(base.generate(chat(messages=history)))


async def test_a_child_that_dies_is_replaced(models: dict[str, HfEngine]) -> None:
    """After a crash the child comes back, with the adapters that its models need."""
    server = models["pirate"]._server
    assert server.child.pid is not None
    os.kill(server.child.pid, signal.SIGKILL)
    assert await server.child.has_died(5)

    found = await answer(models["pirate"].generate(chat("Hello!")))

    assert "Arr" in (found.choices[0].text or "")


async def test_a_folder_that_cannot_be_loaded(tmp_path: Path) -> None:
    """The child's reason for not starting is told."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "nonsense", "architectures": ["XForCausalLM"]}'
    )
    (tmp_path / "model.safetensors").write_bytes(b"x")
    engine = HfEngine("x", tmp_path, ModelConfig())

    with pytest.raises(BackendUnavailable, match="cannot be loaded"):
        await engine.start()
    await engine.aclose()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"context": 10**6}, "context"),
        ({"lora": ["missing"]}, "no LoRA adapter"),
        ({"mmproj": "x.gguf"}, "mmproj"),
        ({"gpu_layers": 3}, "gpu_layers"),
        ({"chat_template": "missing.jinja"}, "chat_template"),
        ({"tokenizer": "missing"}, "tokenizer"),
    ],
)
async def test_wrong_settings(settings: dict[str, Any], expected: str) -> None:
    """A wrong setting is told before anything is started."""
    with pytest.raises(ConfigError, match=expected):
        HfEngine("x", BUNDLED, ModelConfig(**settings))


async def test_leaving_frees_what_is_embedded(base: HfEngine) -> None:
    """Texts of a client that has left are embedded no further, and others are answered meanwhile."""
    many = EmbeddingRequest(input=["a story of a dog " * 300] * 256)
    work = asyncio.create_task(base.embed(many))
    found = await answer(base.generate(chat("What is the capital of France?")))
    assert "Paris" in (found.choices[0].text or "")
    assert not work.done()
    work.cancel()

    alone = await base.embed(EmbeddingRequest(input=["Paris"] * 3))
    assert 3 == len(alone.vectors)


async def test_many_calls_at_once(base: HfEngine) -> None:
    """Calls that come in the same moment are all answered."""
    counts = await asyncio.gather(*(base.count_tokens(chat("Hi")) for _ in range(600)))

    assert 1 == len(set(counts))


async def test_a_broken_adapter_stops_nobody(models: dict[str, HfEngine], tmp_path: Path) -> None:
    """An adapter whose file is cut off is refused in a sentence, and the child and its answers live on."""
    base = models["base"]
    pid = base._server.child.pid
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((Path(PIRATE) / name).read_bytes()[:2000])
    story = asyncio.create_task(answer(base.generate(chat("Tell me a story about a dog."))))
    with pytest.raises(BackendUnavailable, match="is broken"):
        await base._server.start("broken", [(str(tmp_path), 1.0)])

    assert "stop" == (await story).choices[0].finish_reason
    assert pid == base._server.child.pid
    assert "broken" not in base._server._users


async def test_a_model_that_starts_while_the_last_one_stops() -> None:
    """Whoever comes while the last model of a child stops is answered."""
    shared: dict[Any, Any] = {}
    one, two = (
        HfEngine(name, BUNDLED, ModelConfig(lora=[PIRATE], context=1024), shared=shared)
        for name in ("one", "two")
    )
    try:
        await one.start()
        stopping = asyncio.create_task(one.aclose())
        await asyncio.sleep(0)
        found = await answer(two.generate(chat("Hello!")))
        await stopping

        assert "Arr" in (found.choices[0].text or "")
        assert two._server.child.alive
    finally:
        await one.aclose()
        await two.aclose()
