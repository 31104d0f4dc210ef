"""A GGUF model and llama.cpp's own server, asked the same in the native protocol: they say the same."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import engine
from support.backends.llama_server import CONTEXT, llama_server
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import App, chunks, serving
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PROMPT = "The capital of"
STORY = "Once upon a time"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
#: What both say in the same words.
SAME = (
    "content",
    "stop_type",
    "stopping_word",
    "truncated",
    "tokens_predicted",
    "tokens_evaluated",
    "has_new_line",
    "tokens",
)


@pytest.fixture(scope="module")
def reference() -> Any:
    """The URL of llama.cpp's own server with the bundled model."""
    with llama_server() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    """An application in front of the same model as a GGUF file."""
    async with engine(context=CONTEXT, parallel=2) as running:
        async with serving(running) as app:
            yield app


async def post(app: App, path: str = "/completion", **body: Any) -> Any:
    """The answer to a POST that succeeds: an object, or the frames of a stream."""
    async with app.post(path, **body) as response:
        text = (await response.read()).decode()
        assert 200 == response.status, text
        lowered = "n_predict" if body.get("n_predict", 0) > CONTEXT else None
        assert lowered == response.headers.get("X-Unilect-Ignored")
    if not body.get("stream"):
        return json.loads(text)
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@in_one_loop
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "What is the capital of France?", "stop": ["Paris", "the"]},
        {"prompt": STORY, "stop": [" a", " the"], "n_predict": 60},
        {"prompt": PROMPT, "n_predict": 600, "ignore_eos": True},
        {"prompt": [PROMPT, 301]},
        {"prompt": [PROMPT, 301, " of"]},
        {"prompt": "Hello", "return_tokens": True},
        {"dynatemp_range": 0.7, "dynatemp_exponent": 2.0},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"dry_multiplier": 5.0, "dry_base": 3.0, "dry_allowed_length": 1},
        {"dry_multiplier": 5.0, "dry_penalty_last_n": 4, "dry_sequence_breakers": [" "]},
        {"samplers": ["top_k"], "top_k": 3},
        {"samplers": "kt", "top_k": 3},
        {"min_keep": 5, "top_p": 0.01},
        {"adaptive_target": 0.3, "adaptive_decay": 0.5, "samplers": ["adaptive_p"]},
        {"t_max_predict_ms": 100_000},
        {"n_indent": 4},
        {"n_keep": 2, "n_discard": 1},
        {"logit_bias": [[" the", False], [" a", -50], [".", 2.5]]},
        {"logit_bias": {" the": -100, " dog": 1}},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
async def test_the_same_answer(app: App, reference: str, fields: dict[str, Any]) -> None:
    """The text, why it ended, what was cut and every count are llama.cpp's own."""
    body = {"prompt": STORY, "n_predict": 24, "temperature": 1.5, "seed": 5} | fields
    theirs = ask(f"{reference}/completion", body).body
    ours = await post(app, **body)

    assert {name: theirs[name] for name in SAME} == {name: ours[name] for name in SAME}


@in_one_loop
async def test_ids_in_streams(app: App, reference: str) -> None:
    """Each piece of a stream has the ids of its tokens, asked for or not, as llama.cpp's server has it; whole answers have them if asked."""
    body = {"prompt": STORY, "n_predict": 24, "temperature": 1.5, "seed": 5}
    theirs = ask(f"{reference}/completion", body | {"return_tokens": True}).body["tokens"]
    for more in ({}, {"return_tokens": True}):
        pieces = await post(app, **body, **more, stream=True)
        assert theirs == [id for piece in pieces for id in piece["tokens"]]
        assert (theirs if more else []) == (await post(app, **body, **more))["tokens"]


@in_one_loop
async def test_how_much_too_long(app: App) -> None:
    """The refusal of a long prompt has its tokens and the context's as numbers, whole and streamed."""
    asked = {"/completion": {"prompt": "word " * 5000}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "word " * 5000}]}}  # fmt: skip
    for path, body in asked.items():
        for stream in (False, True):
            async with app.post(path, **body, stream=stream) as response:
                error = (await response.json())["error"]
            assert (400, "context_length_exceeded", CONTEXT) == (response.status, error["code"], error["n_ctx"])  # fmt: skip
            assert 5000 <= error["n_prompt_tokens"]


@in_one_loop
async def test_the_list_of_models(app: App) -> None:
    """The list has llama.cpp's second one, in which its clients see what a model reads."""
    listed = json.loads((await app.get("/models"))[1])

    assert [("m", ["completion"])] == [(one["name"], one["capabilities"]) for one in listed["models"]]  # fmt: skip
    assert (["m"], []) == (listed["data"][0]["aliases"], listed["data"][0]["tags"])


@in_one_loop
async def test_mixed_inputs(app: App) -> None:
    """Texts and token ids are embedded beside one another, and as one input, at each URL."""
    ids = (await post(app, "/tokenize", content=" of France"))["tokens"]
    hello = (await post(app, "/tokenize", content="Hello", add_special=True))["tokens"]

    async def vectors(input: Any) -> Any:
        told = (await post(app, "/v1/embeddings", input=input))["data"]
        native = await post(app, "/embedding", content=input)
        native = native if isinstance(native, list) else [native]
        found = [one["embedding"] for one in told]
        assert found == [one["embedding"] for one in native]
        return found

    one, other, both, turned = [await vectors([each]) for each in ("Hello", ids, hello + ids, ids + ids)]  # fmt: skip
    assert one + other == await vectors(["Hello", ids])
    assert both == await vectors(["Hello", *ids])
    assert turned == await vectors([*ids, " of France"])


@in_one_loop
async def test_the_engines_clock(app: App) -> None:
    """The timings are those that the engine took, also in OpenAI's answers."""
    whole = await post(app, prompt="I believe the meaning of life is", n_predict=3)
    spoken = await post(app, "/v1/completions", prompt=STORY, max_tokens=3)

    for timings in (whole["timings"], spoken["timings"]):
        assert 0 < timings["prompt_ms"]
        assert 3 == timings["predicted_n"]
        assert timings["predicted_ms"] / 3 == pytest.approx(timings["predicted_per_token_ms"], rel=0.6)  # fmt: skip


@in_one_loop
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("full", [True, False])
async def test_a_context_that_was_full(app: App, path: str, full: bool) -> None:
    """OpenAI's answers say whether the context ended them."""
    limit = {} if full else {"max_tokens": 3}
    body = await post(app, path, **{"prompt": PROMPT} | limit, ignore_eos=True) if "chat" not in path else await post(app, path, **limit, ignore_eos=True)  # fmt: skip

    assert full == body["truncated"]
    assert "length" == body["choices"][0]["finish_reason"]


@in_one_loop
async def test_counts_of_each(app: App) -> None:
    """Of several prompts and choices each says its own counts, and not those of all together."""
    several = await post(app, prompt=["a", "Once upon a time"], n_predict=6, ignore_eos=True)
    twice = await post(app, prompt="a", n_cmpl=2, n_predict=6, ignore_eos=True)

    assert [1, 4] == [one["tokens_evaluated"] for one in several]
    assert [6, 6, 6, 6] == [one["tokens_predicted"] for one in (*several, *twice)]


@in_one_loop
async def test_slots(app: App) -> None:
    """The server says how many requests it answers at a time; a slot that is asked for is given, and told in whole answers and in each piece."""
    status, body = await app.get("/props")
    assert (200, 2) == (status, json.loads(body)["total_slots"])
    for slot in (1, 0, 1):
        told = await post(app, prompt="a", n_predict=2, id_slot=slot)
        async with app.post("/completion", prompt="a", n_predict=2, id_slot=slot, stream=True, return_progress=True) as response:  # fmt: skip
            pieces = await chunks(response)
        assert (slot, {slot}) == (told["id_slot"], {piece["id_slot"] for piece in pieces})
    elsewhere = await post(app, prompt="a", n_predict=2, id_slot=99)
    assert elsewhere["id_slot"] in (0, 1)


@in_one_loop
async def test_the_build(app: App) -> None:
    """Chats and completions tell llama.cpp's build as their fingerprint, whole and in each chunk, for several choices, too."""
    for path, body in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "a", "n": 2})):
        whole = await post(app, path, **body, max_tokens=2)
        async with app.post(path, **body, max_tokens=2, stream=True) as response:
            *pieces, done = await chunks(response)
        assert "[DONE]" == done
        [build] = {one["system_fingerprint"] for one in (whole, *pieces)}
        assert re.fullmatch(r"b[1-9]\d{3,}", build)


@in_one_loop
async def test_ids_of_tokens(app: App, reference: str) -> None:
    """Ids are told with probabilities, of many tokens and after sampling, as the reference tells them."""
    for fields in ({"n_probs": 30}, {"n_probs": 3, "post_sampling_probs": True, "top_k": 5}):
        body = {"prompt": PROMPT, "n_predict": 2, "temperature": 1, "seed": 1, "cache_prompt": False, "stream": True} | fields  # fmt: skip
        told = ask(f"{reference}/completion", body).text.splitlines()
        theirs = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
        ours = await post(app, **body)

        for one, other in zip(theirs[:2], ours[:2], strict=True):
            wanted, had = one["completion_probabilities"][0], other["completion_probabilities"][0]
            assert wanted["id"] == had["id"]
            for name in wanted.keys() & {"top_probs", "top_logprobs"}:
                assert [top["id"] for top in wanted[name]] == [top["id"] for top in had[name]]


@in_one_loop
async def test_chosen_fields(app: App, reference: str) -> None:
    """`response_fields` chooses what an answer's end says, by paths."""
    fields = ["content", "generation_settings/n_predict", "timings/prompt_n", "none/such"]
    body = {"prompt": PROMPT, "n_predict": 2, "temperature": 0, "response_fields": fields}
    theirs = ask(f"{reference}/completion", body).body

    assert theirs.keys() == (await post(app, **body)).keys() == {*fields} - {"none/such"}
    assert theirs.keys() == (await post(app, **body, stream=True))[-1].keys()


@in_one_loop
async def test_progress_and_timings(app: App) -> None:
    """A stream tells how far the prompt has been read, and the time of each token, where that is wanted."""
    frames = await post(app, prompt=STORY, n_predict=3, stream=True, return_progress=True, timings_per_token=True, cache_prompt=False)  # fmt: skip
    quiet = await post(app, prompt=STORY, n_predict=3, stream=True)

    assert 4 == frames[0]["prompt_progress"]["total"]
    assert [1, 2, 3] == [frame["timings"]["predicted_n"] for frame in frames[-4:-1]]
    assert not any("prompt_progress" in frame for frame in quiet)
    assert not any("timings" in frame for frame in quiet[:-1])


@in_one_loop
async def test_a_prompt_that_is_only_read(app: App) -> None:
    """`n_predict: 0` reads the prompt into the cache, says so, and writes nothing."""
    text = "Tell me a story about a dog and its seven friends."
    read = await post(app, prompt=text, n_predict=0)
    again = await post(app, prompt=text, n_predict=1)

    assert ("", 0, "limit") == (read["content"], read["tokens_predicted"], read["stop_type"])
    assert read["timings"]["prompt_n"] + read["timings"]["cache_n"] == read["tokens_evaluated"]
    assert read["tokens_evaluated"] - 1 == again["timings"]["cache_n"]


async def test_mixed_prompts_of_a_model_with_a_beginning(tmp_path: Path) -> None:
    """A mixed prompt that begins with a text begins as every prompt of the model does, and one of ids does not."""
    path = tiny_gguf.make(tmp_path / "tiny.gguf")
    model = GgufEngine("tiny", path, ModelConfig(context=CONTEXT, parallel=2))
    await model.start()
    try:
        async with serving(model) as app:
            with llama_server(path) as url:
                for prompt in (["one day", 5], [5, "one day"], ["", 5, "sun"], "one day"):
                    body = {"prompt": prompt, "n_predict": 6, "temperature": 0}
                    theirs, ours = ask(f"{url}/completion", body).body, await post(app, **body)
                    assert {n: theirs[n] for n in SAME} == {n: ours[n] for n in SAME}, prompt
    finally:
        await model.aclose()


async def test_a_seed_at_random() -> None:
    """`seed: -1` is a client's own choice of no seed, also where the model has one by default."""
    fields = {"prompt": STORY, "n_predict": 12, "temperature": 2}
    async with engine(context=CONTEXT) as running, serving(running, defaults={"seed": 42}) as app:
        left_out = [(await post(app, **fields))["content"] for _ in range(2)]
        at_random = [(await post(app, **fields, seed=seed))["content"] for seed in (-1, -1, 2**32 - 1)]  # fmt: skip

    assert 1 == len({*left_out})
    assert 1 < len({*at_random})


@in_one_loop
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_a_schema(app: App, path: str) -> None:
    """`json_schema` binds the answer at every endpoint."""
    prompt = {} if "chat" in path else {"prompt": "JSON:"}
    body = await post(app, path, json_schema=SCHEMA, max_tokens=60, temperature=1, **prompt)
    choice = body["choices"][0] if "choices" in body else body
    text = choice.get("content") or choice.get("text") or choice["message"]["content"]

    assert json.loads(text)["a"] in (1, 2)


@in_one_loop
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/completion", {"json_schema": SCHEMA, "grammar": "root ::= [a]"}, "grammar"),
        ("/v1/chat/completions", {"json_schema": SCHEMA, "response_format": {"type": "json_object"}}, "json_schema"),
        ("/v1/chat/completions", {"return_tokens": True}, "return_tokens"),
        ("/v1/chat/completions", {"post_sampling_probs": True}, "post_sampling_probs"),
        ("/v1/chat/completions", {"response_fields": ["a"]}, "response_fields"),
        ("/completion", {"samplers": ["top_k", "mirostat"]}, "samplers[1]"),
        ("/completion", {"samplers": "kz"}, "samplers"),
        ("/completion", {"xtc_probability": 2}, "xtc_probability"),
        ("/completion", {"dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ("/completion", {"n": 2, "n_cmpl": 3}, "n_cmpl"),
        ("/completion", {"json_schema": {"type": "hiccup"}, "n_predict": 0}, "json_schema"),
        ("/completion", {"grammar": "root ::= [z-a]"}, "grammar"),
        ("/completion", {"grammar": 'root ::= "\\UFFFFFFFF"'}, "grammar"),
        ("/completion", {"grammar": "%llguidance {}\nstart: /(a?){2000}a{2000}/"}, "grammar"),
    ],
)  # fmt: skip
async def test_what_is_refused(app: App, path: str, fields: dict[str, Any], param: str) -> None:
    """What cannot be compiled, or would change nothing, is refused by its name and is no failure of the engine."""
    prompt = {} if "chat" in path else {"prompt": "a"}
    async with app.post(path, **prompt, **fields) as response:
        told = await response.json()

    assert (400, param) == (response.status, told["error"]["param"]), told
