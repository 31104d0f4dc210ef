"""What each endpoint does with parameters of another endpoint or another server, in front of the bundled model on each engine."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, engine
from support.servers.appserver import App, serving

in_one_loop = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NATIVE = "/completion"
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": 40},
    COMPLETIONS: {"prompt": "Once", "max_tokens": 40},
    EMBEDDINGS: {"input": "Once"},
    NATIVE: {"prompt": "Once", "n_predict": 40},
}
REFUSED: list[tuple[str, str, Any]] = [
    *((path, "tools", [TOOL]) for path in (COMPLETIONS, NATIVE, EMBEDDINGS)),
    *((path, "tool_choice", "required") for path in (COMPLETIONS, NATIVE, EMBEDDINGS)),
    *((path, "functions", [{"name": "f"}]) for path in (COMPLETIONS, NATIVE)),
    *((path, "parallel_tool_calls", False) for path in (COMPLETIONS, NATIVE)),
    *((path, "reasoning_effort", "low") for path in (COMPLETIONS, NATIVE)),
    *((path, "chat_template_kwargs", {"enable_thinking": False}) for path in (COMPLETIONS, NATIVE)),
    *((path, "top_logprobs", 2) for path in (COMPLETIONS, NATIVE)),
    *((path, "encoding_format", "base64") for path in (CHAT, COMPLETIONS, NATIVE)),
    *((path, "dimensions", 8) for path in (CHAT, COMPLETIONS, NATIVE)),
    *((path, "messages", [{"role": "user", "content": "x"}]) for path in (COMPLETIONS, EMBEDDINGS)),
    (CHAT, "echo", True),
    (CHAT, "suffix", "x"),
    (CHAT, "best_of", 2),
    (CHAT, "prompt", "x"),
    (CHAT, "input", "x"),
    (EMBEDDINGS, "stop", ["x"]),
    (EMBEDDINGS, "n", 2),
    (EMBEDDINGS, "max_tokens", 5),
    (EMBEDDINGS, "stream", True),
    (EMBEDDINGS, "guided_json", SCHEMA),
    *((path, "min_tokens", 5) for path in (CHAT, COMPLETIONS, NATIVE)),
    *((path, "stop_token_ids", [5]) for path in (CHAT, COMPLETIONS)),
    *((path, "prompt_logprobs", 0) for path in (CHAT, COMPLETIONS)),
    (CHAT, "skip_special_tokens", False),
    (COMPLETIONS, "add_generation_prompt", False),
    (COMPLETIONS, "continue_final_message", True),
    (CHAT, "enable_thinking", False),
]  # fmt: skip
#: What SillyTavern sends to llama.cpp, but for what is about nothing there and is named as ignored.
SILLY_TAVERN: dict[str, Any] = {
    "n_predict": 8, "num_predict": 8, "max_new_tokens": 8, "max_tokens": 8, "n": 1, "seed": -1, "stream": False, "stop": [],
    "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 1, "typical": 1, "top_a": 0, "tfs": 1, "skew": 0,
    "repetition_penalty": 1.1, "repeat_penalty": 1.1, "rep_pen": 1.1, "repeat_last_n": 64, "frequency_penalty": 0,
    "presence_penalty": 0, "min_tokens": 0, "add_bos_token": True, "skip_special_tokens": True, "include_reasoning": True,
    "smoothing_factor": 0, "mirostat": 0, "mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "ban_eos_token": False,
    "ignore_eos": False, "custom_token_bans": "", "banned_strings": [], "guidance_scale": 1, "negative_prompt": "",
    "grammar": "", "grammar_string": "", "logit_bias": [], "cache_prompt": True, "n_probs": 0, "min_keep": 0, "nsigma": 0,
    "top_n_sigma": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 0,
    "dry_sequence_breakers": ["\n", ":"], "xtc_threshold": 0.1, "xtc_probability": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "xtc", "top_p", "min_p", "adaptive_p", "temperature"],
}  # fmt: skip
NEUTRAL: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"echo": False, "suffix": None, "best_of": 1, "encoding_format": "float", "prompt": ""}),
    (CHAT, {"min_tokens": 0, "skip_special_tokens": True, "length_penalty": 1.0, "documents": []}),
    (CHAT, {"guided_json": None, "guided_regex": None, "format": "", "add_special_tokens": False}),
    (CHAT, {"top_a": 0, "tfs": 1, "nsigma": 0, "adaptive_target": -0.01, "guidance_scale": 1}),
    (NATIVE, SILLY_TAVERN),
    (COMPLETIONS, {"tools": [], "tool_choice": "auto", "top_logprobs": 0, "functions": None}),
    (COMPLETIONS, {"add_special_tokens": True, "include_stop_str_in_output": False, "top_a": 0}),
    (EMBEDDINGS, {"n": 1, "stream": False, "stop": [], "tools": [], "tool_choice": "none"}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An application in front of the bundled model on each engine."""
    async with engine(request.param, parallel=4) as running, serving(running) as app:
        yield app


async def post(app: App, path: str, **body: Any) -> tuple[int, Any, str]:
    """The status of a POST, its answer, and what it names as ignored."""
    async with app.post(path, **BASE[path] | body) as response:
        return response.status, await response.json(), response.headers.get("X-Unilect-Ignored", "")


def text(answer: Any) -> str:
    """The text of an answer in any endpoint's form."""
    choice = answer["choices"][0] if "choices" in answer else {"text": answer["content"]}
    found = choice["message"]["content"] if "message" in choice else choice["text"]
    assert isinstance(found, str)
    return found


@in_one_loop
@pytest.mark.parametrize(("path", "name", "value"), REFUSED)
async def test_refused(app: App, path: str, name: str, value: Any) -> None:
    """A parameter that has no place at an endpoint and would matter is refused by name."""
    status, answer, _ = await post(app, path, **{name: value})

    assert (400, name) == (status, answer["error"]["param"])
    assert "unsupported_parameter" == answer["error"]["code"]


@in_one_loop
@pytest.mark.parametrize(("path", "fields"), NEUTRAL)
async def test_neutral(app: App, path: str, fields: dict[str, Any]) -> None:
    """The values that clients send unasked are no request, and nothing is named as ignored."""
    status, _, ignored = await post(app, path, **fields)

    assert (200, "") == (status, ignored)


@in_one_loop
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, NATIVE])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"format": SCHEMA},
        {"json_schema": SCHEMA},
    ],
)
async def test_schemas(app: App, path: str, fields: dict[str, Any]) -> None:
    """An answer satisfies the schema by whatever name it was sent, at every endpoint."""
    status, answer, ignored = await post(app, path, **fields, temperature=0)

    assert (200, "") == (status, ignored)
    assert {bool} == set(map(type, json.loads(text(answer)).values()))


@in_one_loop
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["maybe so", 'no "never"']}, 'maybe so|no "never"'),
        ({"guided_regex": r"[A-C]{2}-\d{3}"}, r"[A-C]{2}-\d{3}"),
        ({"regex": "^é[^a-z]x$"}, "é[^a-z]x"),
        ({"ebnf": 'root ::= "a" ("b" | "c")'}, "a(b|c)"),
        ({"response_format": {"type": "regex", "value": "ab?c"}}, "ab?c"),
    ],
)
async def test_grammars(app: App, path: str, fields: dict[str, Any], pattern: str) -> None:
    """An answer has the form that was asked for by another server's name."""
    status, answer, ignored = await post(app, path, **fields, temperature=0)

    assert (200, "") == (status, ignored)
    assert re.fullmatch(pattern, text(answer))


@in_one_loop
async def test_a_grammar_that_cannot_be_followed(app: App) -> None:
    """An error of the backend about a constraint names it as the client does."""
    status, answer, _ = await post(app, CHAT, guided_grammar="root ::= (((")

    assert (400, "guided_grammar") == (status, answer["error"]["param"])
    assert "`guided_grammar`" in answer["error"]["message"]


@in_one_loop
async def test_max_completion_tokens(app: App) -> None:
    """A plain completion takes a chat's name for the limit, which is the stronger one there too."""
    _, answer, _ = await post(app, COMPLETIONS, max_tokens=9, max_completion_tokens=3)

    assert (3, "length") == (
        answer["usage"]["completion_tokens"],
        answer["choices"][0]["finish_reason"],
    )


@in_one_loop
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, NATIVE])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_no_limit(app: App, path: str, name: str) -> None:
    """A limit of -1 is none, as llama.cpp has it: the answer ends where the model ends it."""
    base = {"max_tokens": None, "n_predict": None, "stop": [".", " the"], "temperature": 0}
    _, free, _ = await post(app, path, **base)
    status, answer, ignored = await post(app, path, **base | {name: -1})

    assert (200, "", text(free)) == (status, ignored, text(answer))


@in_one_loop
async def test_times_of_tokens(app: App) -> None:
    """The times of an answer are told, or are named as what is not; the answer comes in any case."""
    status, answer, ignored = await post(app, CHAT, timings_per_token=True)

    assert (200, True) == (status, ("timings" in answer) != (ignored == "timings_per_token"))


@in_one_loop
async def test_kinds_of_inputs(app: App) -> None:
    """Where a model has no prompts for kinds of inputs it is told where to write them."""
    _, answer, _ = await post(app, EMBEDDINGS, input_type="query")

    assert "write the prefix into `input`" in answer["error"]["message"]


@pytest.mark.parametrize("kind", ENGINES_IN_CI)
async def test_thinking_that_a_template_switches(kind: str) -> None:
    """`enable_thinking` by itself is told to a template that knows it, as `chat_template_kwargs` are."""
    template = "{% if enable_thinking %}Think of it. {% endif %}{{ messages[0].content }}"
    async with engine(kind, chat_template=template) as running, serving(running) as app:
        counts = []
        for fields in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
            by_name = {"chat_template_kwargs": fields}
            for body in (fields, by_name):
                status, answer, ignored = await post(app, CHAT, **body, max_tokens=1)
                assert (200, "") == (status, ignored)
                counts.append(answer["usage"]["prompt_tokens"])

    assert 1 == len({*counts[:4]})
    assert [counts[0] + 4] * 2 <= counts[4:]
    assert counts[4] == counts[5]


@in_one_loop
async def test_what_cannot_change_the_answer(app: App) -> None:
    """A field that nobody knows, or that has no effect at an endpoint, is ignored and named."""
    _, _, chat = await post(app, CHAT, keep_alive=5, x_new=1)
    _, _, embedding = await post(app, EMBEDDINGS, stream_options={"include_usage": True})

    assert ("keep_alive, x_new", "stream_options") == (chat, embedding)


@in_one_loop
async def test_a_refusal_costs_no_digest(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused is not passed over once more to tell it apart from others."""
    monkeypatch.setattr("unilect.scheduling.pool._digest", None)
    status, answer, _ = await post(app, CHAT, min_tokens=5)

    assert (400, "min_tokens") == (status, answer["error"]["param"])
