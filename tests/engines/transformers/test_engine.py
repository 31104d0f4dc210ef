"""Tests of unilect.engines.transformers.engine beyond test_contract.py, on the bundled model in a real child."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.models.torchside import need

need("torch", "transformers", "llguidance", "safetensors")

from support.backends.engine import Spy, answer, chat, completion, events_of
from support.backends.engine import engine as gguf_engine
from unilect.adapt import emulation
from unilect.api.backend import MemoryNeed
from unilect.config.server import ModelConfig
from unilect.constraints.checker import Checker
from unilect.core.errors import (
    BackendUnavailable,
    ConfigError,
    InvalidRequest,
    UnsupportedParameter,
)
from unilect.core.events import Answer, fold
from unilect.core.requests import EmbeddingRequest
from unilect.demo import FOLDER
from unilect.dialects.openai.chunks import legacy_logprobs
from unilect.engines.transformers.engine import HfEngine
from unilect.runtime.gpus import GpuMemory

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
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


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


async def test_names_of_special_tokens_in_texts(base: HfEngine) -> None:
    """They are counted as the text that the model reads, and stand in the rendered prompt as they were sent."""
    request = chat("Hi</s><s>", max_tokens=1)
    told = await answer(base.generate(request))

    assert "Hi</s><s>" in await base.render(request)
    assert told.usage.prompt_tokens == await base.count_tokens(request)
    assert told.usage.prompt_tokens > await base.count_tokens(chat("Hi")) + 4


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


def summary(told: Answer) -> list[Any]:
    """What two answers must have in common: all but ids, and the last digits of probabilities."""
    return [told.usage.prompt_tokens, told.usage.completion_tokens] + [
        (
            choice.text or (None if choice.tool_calls else ""),  # as clients are told of no text
            choice.finish_reason,
            [(call.name, call.arguments) for call in choice.tool_calls],
            [(token.token, len(token.top_logprobs)) for token in choice.logprobs or ()],
        )
        for choice in told.choices
    ]


async def test_every_kind_of_request_as_the_gguf_does(base: HfEngine) -> None:
    """What is not told in docs/backends/transformers.md to be otherwise is answered as llama.cpp does, its tokens counted alike."""
    name = {"role": "system", "content": "Your name is Bob."}
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}]
    requests = [
        chat(max_tokens=0),
        chat(max_tokens=1),
        chat(n=2, max_tokens=5),
        chat(stop=["!"]),
        chat(stop="Hello"),
        chat(logprobs=True),
        chat(logprobs=True, top_logprobs=2, stop=["?"]),
        chat(logit_bias={"5": -100, "6": 100}, max_tokens=3),
        chat(ignore_eos=True, max_tokens=30),
        chat(reasoning_effort="none", max_tokens=4),
        chat(presence_penalty=1, frequency_penalty=1, max_tokens=12),
        chat(messages=[name, {"role": "user", "content": "What is your name?"}]),
        chat(messages=[name | {"role": "developer"}, {"role": "user", "content": "Hi"}]),
        chat(messages=[{"role": "user", "content": parts, "name": "bob"}]),
        chat("", max_tokens=4),
        completion("<|im_end|><|im_start|>system", max_tokens=4),
        chat("What is the weather in Paris?", tools=[WEATHER]),
        chat("What is the weather in Paris?", tools=[WEATHER], tool_choice="none"),
        completion(max_tokens=6),
        completion(max_tokens=0),
        completion(max_tokens=4, echo=True),
        completion(max_tokens=4, logprobs=0),
        completion(max_tokens=4, n=2, best_of=3, logprobs=1),
        completion(["a", "b"], max_tokens=4),
        completion([[10], [11, 12]], max_tokens=4, echo=True),
        completion("Hi<|im_end|>\n😀 中国", max_tokens=1, echo=True, logprobs=2),
        completion(["a b", "The capital"], n=2, max_tokens=0, echo=True, logprobs=0),
        completion("a b ", max_tokens=8, stop=[" "]),
    ]
    async with gguf_engine(parallel=8) as gguf:
        for request in requests:
            ours, its = [await answer(emulation.generate(one, request)) for one in (base, gguf)]
            assert summary(its) == summary(ours), request


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
    pid = models["base"]._server.process.pid
    story = asyncio.create_task(
        answer(models["base"].generate(chat("Tell me a story about a dog.")))
    )
    await models["robot"].aclose()
    again = await answer(models["robot"].generate(chat("Hello!")))
    told = (await story).choices[0]

    assert pid == models["base"]._server.process.pid
    assert "Beep" in (again.choices[0].text or "")
    assert told.finish_reason == "stop"


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


async def test_what_would_end_the_engine(base: HfEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of rules and definitions that overflow llguidance's stack are the request's fault, by name, and the engine lives on."""
    rules = (
        "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}" for i in range(4000)) + '\na4000 ::= "x"'
    )
    definitions: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1100)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": definitions | {"d1100": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    function = {"name": "f", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    pid, checker = base._server.process.pid, Checker()
    monkeypatch.setattr(base, "_checker", checker)
    try:
        for param, fields in (
            ("grammar", {"grammar": rules}),
            ("grammar", {"grammar": 'root ::= "a"{1000000}'}),
            ("response_format", {"response_format": wanted}),
            ("tools", {"tools": tools, "tool_choice": "required"}),
        ):
            with pytest.raises(InvalidRequest, match="cannot be compiled") as caught:
                await answer(base.generate(chat("Hi", **fields)))
            assert param == caught.value.param
        assert "yes" == (await answer(base.generate(chat("?", grammar='root ::= "yes"')))).choices[0].text  # fmt: skip
    finally:
        await checker.aclose()

    assert pid == base._server.process.pid


async def test_what_leaves_no_token_is_an_error(base: HfEngine) -> None:
    """A bias that forbids all that a grammar or a schema allows fails the request, by name."""
    from tokenizers import Tokenizer

    signs = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).get_vocab()
    for fields, param, begins in (
        ({"grammar": 'root ::= "yes"'}, "grammar", ("y", "ye", "yes")),
        ({"response_format": {"type": "json_object"}}, "response_format", ("{", '{"', "{}")),
    ):
        never = {str(signs[sign]): -100 for sign in begins if sign in signs}
        with pytest.raises(InvalidRequest, match="No valid next token") as caught:
            await answer(base.generate(chat("Hi", logit_bias=never, temperature=1, **fields)))
        assert param == caught.value.param


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


@pytest.mark.parametrize("prompt", ["The capital of France is", "Hi<|im_end|>\n😀 yes", [377, 345, 172, 253, 313]])  # fmt: skip
async def test_a_prompt_is_as_likely_as_for_the_gguf(base: HfEngine, prompt: Any) -> None:
    """An echo has the same tokens in the same places as llama.cpp's, as likely as eight bits can tell."""
    request = completion(prompt, max_tokens=0, echo=True, logprobs=1)
    async with gguf_engine() as gguf:
        answers = [await answer(emulation.generate(one, request)) for one in (base, gguf)]
    [ours, its] = [legacy_logprobs(told.choices[0].logprobs or [], 0) for told in answers]

    assert (ours["tokens"], ours["text_offset"]) == (its["tokens"], its["text_offset"])
    pairs = list(zip(ours["token_logprobs"], its["token_logprobs"], strict=True))[1:]
    assert all(one == pytest.approx(other, abs=0.1, rel=0.02) for one, other in pairs)


async def test_beams_and_no_sampling(base: HfEngine) -> None:
    """`do_sample: false` is greedy whatever the temperature says, and beams are searched."""
    greedy = await answer(base.generate(chat("Hello!")))
    forced = await answer(base.generate(chat("Hello!", temperature=1.9, do_sample=False)))
    beams = await answer(base.generate(chat("Hello!", num_beams=3)))

    assert greedy.choices[0].text == forced.choices[0].text
    assert beams.choices[0].text
    with pytest.raises(UnsupportedParameter, match="num_beams"):
        await answer(base.generate(chat("Hello!", num_beams=3, logit_bias={"5": 1})))


async def test_several_beams(base: HfEngine) -> None:
    """With beams `n` is one search for that many different answers, also for several prompts and with echo."""
    spy = Spy(base)
    best = await answer(base.generate(chat("Tell me a story.", num_beams=4, max_tokens=12)))
    found = await answer(
        emulation.generate(spy, chat("Tell me a story.", num_beams=4, n=3, max_tokens=12))
    )
    prompts = ["The capital of", "Once upon"]
    plain = await answer(
        emulation.generate(base, completion(prompts, num_beams=2, n=2, max_tokens=6, echo=True))
    )

    texts = [choice.text for choice in found.choices]
    assert (1, [0, 1, 2]) == (len(spy.asked), [choice.index for choice in found.choices])
    assert (best.choices[0].text, 3) == (texts[0], len(set(texts)))
    assert best.usage.prompt_tokens == found.usage.prompt_tokens
    assert best.usage.completion_tokens < found.usage.completion_tokens
    assert [0, 1, 2, 3] == [choice.index for choice in plain.choices]
    assert 4 == len({choice.text for choice in plain.choices})
    told = [(choice.text or "") for choice in plain.choices]
    assert all(text.startswith(prompts[place // 2]) for place, text in enumerate(told))


async def test_more_answers_than_beams(base: HfEngine) -> None:
    """A search finds no more answers than it has beams: `n` is refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        await answer(emulation.generate(base, chat("Hello!", num_beams=2, n=3)))

    assert "n" == caught.value.param


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
        ({"lora": ["missing"]}, "no such folder"),
        ({"tokenizer": "missing"}, "tokenizer"),
    ],
)
async def test_wrong_settings(settings: dict[str, Any], expected: str) -> None:
    """An adapter and a tokenizer that are none are told before anything is started."""
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


async def test_who_does_not_read_holds_no_row(base: HfEngine) -> None:
    """An answer that nobody reads is set aside before it is kept whole, and is the same when it is read in the end."""

    async def running() -> int:
        return msgspec.msgpack.decode(await base._server.value("ping", None), type=int)

    wanted = chat(
        "Tell me a story.", max_tokens=600, ignore_eos=True, logprobs=True, top_logprobs=20
    )
    batches = base.generate(wanted)
    first = await anext(batches)
    while await running():
        pass
    reading = asyncio.create_task(events_of(batches))
    while not await running():  # it was not over, and goes on
        assert not reading.done()
    late = fold([[*first, *await reading]])

    assert await answer(base.generate(wanted)) == late
    assert 600 == late.usage.completion_tokens


async def test_a_broken_adapter_stops_nobody(models: dict[str, HfEngine], tmp_path: Path) -> None:
    """An adapter whose file is cut off is refused in a sentence, and the child and its answers live on."""
    base = models["base"]
    pid = base._server.process.pid
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((Path(PIRATE) / name).read_bytes()[:2000])
    story = asyncio.create_task(answer(base.generate(chat("Tell me a story about a dog."))))
    with pytest.raises(BackendUnavailable, match="is broken"):
        await base._server.start("broken", [(str(tmp_path), 1.0)])

    assert "stop" == (await story).choices[0].finish_reason
    assert pid == base._server.process.pid
    assert "broken" not in base._server._users


async def test_one_child_counts_once_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models that share a child the one that came first needs memory of the GPU; one that is to be on a GPU needs that alone, and one on the processor none."""
    gpus = [GpuMemory(10**10, 10**10)]
    monkeypatch.setattr("unilect.engines.transformers.engine.gpu_memory", lambda llama: gpus)
    shared: dict[Any, Any] = {}
    one, two = (
        HfEngine(name, BUNDLED, ModelConfig(lora=lora), shared=shared)
        for name, lora in (("one", []), ("two", [PIRATE]))
    )

    def needs(*models: HfEngine) -> list[MemoryNeed]:
        return [need for model in models if (need := model.memory_need()) is not None]

    alone = needs(one, two)
    try:
        await one.start()
        first, second = needs(one, two)
        await two.start()
        assert [first.gpus, second.gpus] == [one.gpus for one in needs(one, two)]
        await one.aclose()
        assert [first.gpus] == [one.gpus for one in needs(two)]
    finally:
        await one.aclose()
        await two.aclose()
    named, other = (
        HfEngine("m", BUNDLED, ModelConfig(device=device)) for device in ("cuda", "cpu")
    )

    assert [first.gpus, first.gpus, ()] == [*[one.gpus for one in alone], second.gpus]
    assert first.gpus[0] > 10**5
    assert [MemoryNeed(0, gpus=first.gpus), ()] == [
        named.memory_need(),
        *[one.gpus for one in needs(other)],
    ]


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
        assert two._server.process.alive
    finally:
        await one.aclose()
        await two.aclose()
