"""Random and mutated bodies: whatever a client sends, the answer is an answer or says what is wrong with the request."""

import copy
import json
import os
from typing import Any

import pytest
from attack import Attacker, Request, assert_sound, many
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import THOROUGH

BODIES = int(os.environ.get("UNILECT_FUZZ", "1600" if THOROUGH else "400"))
BATCH = 8  # bodies that are under way at the same time

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}
SAMPLING: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "seed": 7,
    "stop": ["x"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1},
    "top_k": 40,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "user": "someone",
    "metadata": {"a": "b"},
}
NATIVE: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 40,
    "mirostat": 0,
    "stop": ["x"],
    "cache_prompt": True,
    "id_slot": -1,
    "n_keep": 0,
    "grammar": "",
    "image_data": [],
}
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        SAMPLING
        | {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "bob"},
            ],
            "max_completion_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "text"},
            "reasoning_effort": "none",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "parallel_tool_calls": False,
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "function_call": CALL["function"]},
                {"role": "function", "name": "get_weather", "content": "sunny"},
            ],
            "functions": [TOOL["function"]],
            "function_call": "auto",
            "max_tokens": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "A colour?"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "colour",
                    "strict": True,
                    "schema": {"type": "object", "properties": {"name": {"enum": ["red"]}}},
                },
            },
            "max_tokens": 2,
        },
    ),
    (
        "/v1/completions",
        SAMPLING | {"prompt": ["Once", "One day"], "echo": True, "best_of": 1, "suffix": None},
    ),
    ("/v1/completions", SAMPLING | {"prompt": [5, 6, 7], "logprobs": 2}),
    (
        "/v1/embeddings",
        {"model": "demo", "input": ["a", "b"], "encoding_format": "float", "dimensions": 4},
    ),
    (
        "/",
        {"prompt": "Hi", "history": [["a", "b"]], "max_length": 2, "top_p": 0.7, "temperature": 1},
    ),
    (
        "/completion",
        NATIVE
        | {"prompt": "Once", "n_predict": 2, "n_probs": 2, "logit_bias": [[5, 1.5], [6, False]]},
    ),
    ("/completion", NATIVE | {"prompt": ["Once", 5, "day"], "n_predict": 2, "stream": True}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ("/tokenize", {"content": "Hello", "add_special": False, "with_pieces": False}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/embedding", {"content": ["a", "b"]}),
]
#: Values at the edges of what JSON can say.
JSON = [
    "-1", "0", "1", "0.5", "-0", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1e18", "1e308", "1E-999", "true", "false", "null",
    '"x"', '""', "[]", "{}", "[null]", "[[]]", '{"a": 1}', '"5"', '"auto"', '"none"', '"\\u0000"', '"\\ud83d\\ude00"',
    "[" * 40 + "]" * 40, '{"a":' * 500 + "1" + "}" * 500, '"' + "long " * 4000 + '"',
    '"' + "é" * 300 + '"', '"\u2028\u202e"', '"\ufeff"',
]  # fmt: skip
#: Texts that stand in a body as they are: no encoder would write them, and no decoder should take most of them.
RAW = [
    "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "9" * 400, '"\\ud800"',
    '"\\udc00\\ud800"', '"\ud800"', "[" * 2000 + "]" * 2000, "[" * 100_000, "'x'", "/**/1", '"\t"', '"\\x41"',
]  # fmt: skip
NAMED = ("-1", "2147483648", "true", '"x"', "1.5")  # JSON, so that the parameter can be named
NAMES = [
    "",
    "raw_fields",
    "own",
    "prompts",
    "__class__",
    "a\nb",
    "日本",
    "api_base",
    "x" * 300,
    "\x7f",
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "none", "required", "user", "text", "json_object", "float"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [p for key, child in items for p in [(*path, key), *places(child, (*path, key))]]


class Raw:
    """A text that is written into the body as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def encode(value: Any) -> str:
    """JSON, in which a `Raw` is what it says and a list of pairs in a tuple is an object with repeated keys."""
    match value:
        case Raw():
            return value.text
        case dict():
            value = tuple(value.items())
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{json.dumps(key)}: {encode(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    return json.dumps(value)


@st.composite
def mutated(draw: st.DrawFn) -> Request:
    """A valid body with up to three things wrong, and the path that it is sent to."""
    path, body = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        _mutate(draw, body)
    data = encode(body).encode("utf-8", "surrogatepass")
    return Request(path, _spoiled(draw, data))


def _mutate(draw: st.DrawFn, body: dict[str, Any]) -> None:
    kind = draw(st.sampled_from(["raw", "raw", "raw", "value", "drop", "add", "double", "grow"]))
    where = draw(st.sampled_from(places(body) or [("x",)]))
    holder: Any = body
    for key in where[:-1]:
        holder = holder[key]
    key = where[-1]
    match kind:
        case "raw":
            holder[key] = Raw(draw(st.sampled_from(draw(st.sampled_from([JSON, JSON, RAW])))))
        case "value":
            holder[key] = Raw(json.dumps(draw(json_values)))
        case "drop" if isinstance(holder, dict):
            holder.pop(key, None)
        case "add":
            body[draw(st.sampled_from(NAMES) | st.text(max_size=10))] = draw(json_values)
        case "double" if isinstance(holder, dict) and key in holder:
            holder[key] = Raw(f"{encode(holder[key])}, {json.dumps(key)}: {encode(holder[key])}")
        case "grow" if isinstance(holder, list):
            holder *= draw(st.sampled_from([0, 2, 20, 2000])) // max(1, len(holder) // 10)


def _spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes as they are, most of the time; or cut, with a byte changed, or with something before or after."""
    kind = draw(st.integers(0, 40))
    place = draw(st.integers(0, len(data)))
    match kind:
        case 0:
            return data[:place]
        case 1:
            return data[:place] + draw(st.binary(min_size=1, max_size=3)) + data[place:]
        case 2:
            return b"\xef\xbb\xbf" + data
        case 3:
            return data + draw(st.sampled_from([b"\x00", b"{}", b" ", b"\n\n", b",", b"]"]))
        case 4:
            return data.decode("utf-8", "replace").encode(
                draw(st.sampled_from(["utf-16", "utf-32", "latin-1"])), "replace"
            )
    return data


bodies = (
    mutated()
    | mutated()
    | mutated()
    | st.builds(
        Request,
        st.sampled_from([path for path, _ in VALID]),
        st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()),
    )
)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # bodies are large
@many
@settings(max_examples=max(1, BODIES // BATCH))
@given(batch=st.lists(bodies, min_size=BATCH, max_size=BATCH))
def test_random_bodies(attacker: Attacker, batch: list[Request]) -> None:
    """Random and mutated bodies, eight at a time, are answered or refused, never with a failure of the server's."""
    for request, reply in zip(batch, attacker.send(batch), strict=True):
        assert_sound(reply, request)


def numeric_fields() -> list[tuple[str, dict[str, Any], tuple[Any, ...]]]:
    """Every place of the valid bodies that holds a number."""
    found = []
    for path, body in VALID:
        for where in places(body):
            value: Any = body
            for key in where:
                value = value[key]
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.append((path, body, where))
    return found


@pytest.mark.parametrize(
    "raw",
    ["-1", "0", "1", "2", "16", "17", "20", "21", "128", "2147483647", "2147483648", "1e18", "1e999",
     "-1e999", "NaN", "true", '"x"', "null", "1.5", "9" * 400],
)  # fmt: skip
def test_numbers(attacker: Attacker, raw: str) -> None:
    """Every numeric field, at the edge of what is allowed and beyond, is taken or refused by name."""
    fields, requests = numeric_fields(), []
    for path, body, where in fields:
        changed = copy.deepcopy(body)
        holder: Any = changed
        for key in where[:-1]:
            holder = holder[key]
        holder[where[-1]] = Raw(raw)
        requests.append(Request(path, encode(changed).encode()))
    replies = attacker.send(requests)
    for (_, _, where), request, reply in zip(fields, requests, replies, strict=True):
        assert_sound(reply, request)
        if reply.status == 400 and len(where) == 1 and raw in NAMED:
            assert where[0] == reply.error["param"], (request, reply)
