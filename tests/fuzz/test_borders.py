"""
Tests of the borders between processes: what comes of any body is read on the other side.

A dialect makes typed requests without checking them again; a child and a replica check each. So whatever a dialect takes has to fit the
types, or a client's fault is one of the engine. llama.cpp and chatglm.cpp read JSON of another form, so their children are asked themselves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.backends.engine import Spy
from support.common.properties import given
from support.models import tiny_chatglm, tiny_gguf
from support.models.tiny_chatglm import need_library
from support.servers.appserver import serving
from unilect.api.parameters.support import TOOL_PARAMETERS
from unilect.config.server import ModelConfig
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.engines.chatglm.engine import ChatglmEngine
from unilect.engines.gguf.engine import GgufEngine
from unilect.fleet import wire
from unilect.testing.echo import CAPABILITIES, Echo, Options
from unilect.wire import frames

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["f", "a.b-c_D9", "mcp__" + "x" * 60, "y" * 128])
NUMBERS = st.integers(-(2**66), 2**66) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=3)
SCHEMAS = st.fixed_dictionaries({"type": st.just("object")}, optional={"properties": st.just({}), "maximum": NUMBERS, "title": WORDS})  # fmt: skip
STOPS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=20)
IDS = st.text("ab_1é", min_size=1, max_size=80)
LIMIT = st.integers(0, 4)
#: A chat template with a place for tools, calls and results.
TALK = (
    "{%- if tools -%}<tool_call>{{ tools | tojson }}</tool_call>{%- endif -%}"
    "{%- for m in messages -%}[{{ m.role }}] {{ m.content or '' }}{%- for c in m.tool_calls or [] -%}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}}\n'
    "</tool_call>{%- endfor -%}{%- endfor -%}{%- if add_generation_prompt -%}[assistant] {%- endif -%}"
)


def some(**fields: Any) -> Any:
    """Some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def with_some(must: dict[str, Any], **fields: Any) -> Any:
    """These fields, and some of others."""
    return st.fixed_dictionaries({name: st.just(value) if not isinstance(value, st.SearchStrategy) else value for name, value in must.items()}, optional=fields)  # fmt: skip


def talks(called: Any, answered: Any) -> Any:
    """A conversation with a call and its result."""
    turns = st.sampled_from(["user", "assistant"])
    said = st.fixed_dictionaries({"role": turns, "content": WORDS})
    last = st.just([{"role": "user", "content": "x"}])
    return st.tuples(
        st.lists(said, max_size=2), st.just([]) | st.tuples(called, answered).map(list), last
    ).map(lambda parts: [turn for part in parts for turn in part])


def chats(form: Any = None) -> Any:
    """Bodies of OpenAI's chats."""
    function = st.fixed_dictionaries({"name": NAMES, "arguments": WORDS | OBJECTS.map(lambda one: msgspec.json.encode(one).decode())})  # fmt: skip
    call = st.fixed_dictionaries({"id": IDS, "type": st.just("function"), "function": function})
    tool = st.fixed_dictionaries({"type": st.just("function"), "function": with_some({"name": NAMES}, description=WORDS, parameters=SCHEMAS)})  # fmt: skip
    schema = st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": with_some({"name": NAMES}, schema=SCHEMAS)})  # fmt: skip
    return with_some(
        {
            "messages": talks(
                st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none() | WORDS, "tool_calls": st.lists(call, min_size=1, max_size=2)}),
                st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": IDS, "content": WORDS}),
            )
        },
        tools=st.lists(tool, min_size=1, max_size=2),
        response_format=schema,
        stop=STOPS,
        max_tokens=LIMIT,
        seed=NUMBERS,
        temperature=st.floats(0, 2),
        logit_bias=st.dictionaries(st.integers(0, 99).map(str), st.integers(-100, 100), max_size=2),
        metadata=OBJECTS,
        chat_template_kwargs=OBJECTS,
    )  # fmt: skip


def messages() -> Any:
    """Bodies of Anthropic's Messages."""
    use = st.fixed_dictionaries({"type": st.just("tool_use"), "id": IDS, "name": NAMES, "input": OBJECTS})  # fmt: skip
    result = with_some({"type": "tool_result", "tool_use_id": IDS}, content=WORDS, is_error=st.booleans())  # fmt: skip
    tool = with_some({"name": NAMES, "input_schema": SCHEMAS}, description=WORDS)
    return with_some(
        {
            "max_tokens": LIMIT,
            "messages": talks(
                st.fixed_dictionaries({"role": st.just("assistant"), "content": st.lists(use, min_size=1, max_size=2)}),
                st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(result, min_size=1, max_size=2)}),
            ),
        },
        system=WORDS,
        tools=st.lists(tool, min_size=1, max_size=2),
        stop_sequences=STOPS,
        temperature=st.floats(0, 1),
        top_k=st.integers(0, 100),
        thinking=st.just({"type": "enabled", "budget_tokens": 1024}),
        output_config=some(effort=st.sampled_from(["low", "max"])),
    )  # fmt: skip


def responses() -> Any:
    """Bodies of OpenAI's Responses."""
    tool = with_some({"type": "function", "name": NAMES}, description=WORDS, parameters=SCHEMAS)
    custom = with_some({"type": "custom", "name": NAMES}, description=WORDS)
    schema = with_some({"type": "json_schema", "name": NAMES, "schema": SCHEMAS})
    called = st.tuples(IDS, NAMES, WORDS | OBJECTS.map(lambda one: msgspec.json.encode(one).decode()), WORDS).map(
        lambda one: [
            {"type": "function_call", "call_id": one[0], "name": one[1], "arguments": one[2]},
            {"type": "function_call_output", "call_id": one[0], "output": one[3]},
        ]
    )  # fmt: skip
    return with_some(
        {"input": WORDS | called, "store": False},
        instructions=WORDS,
        tools=st.lists(tool | custom, min_size=1, max_size=2),
        text=st.fixed_dictionaries({"format": schema}),
        max_output_tokens=st.integers(16, 20),
        temperature=st.floats(0, 2),
        metadata=st.dictionaries(WORDS, WORDS, max_size=2),
    )


def of_ollama() -> Any:
    """Bodies of Ollama's chats."""
    call = st.fixed_dictionaries({"function": with_some({"name": NAMES}, arguments=OBJECTS | WORDS)})  # fmt: skip
    tool = st.fixed_dictionaries({"type": st.just("function"), "function": with_some({"name": NAMES}, description=WORDS, parameters=SCHEMAS)})  # fmt: skip
    options = some(stop=STOPS, num_predict=st.integers(-2, 4), seed=NUMBERS, top_k=st.integers(0, 50), temperature=st.floats(0, 3))  # fmt: skip
    return with_some(
        {
            "messages": talks(
                st.fixed_dictionaries({"role": st.just("Assistant"), "tool_calls": st.lists(call, min_size=1, max_size=2)}),
                with_some({"role": "tool", "content": WORDS}, tool_name=NAMES, tool_call_id=IDS),
            ),
            "stream": False,
        },
        tools=st.lists(tool, min_size=1, max_size=2),
        format=st.just("json") | SCHEMAS,
        options=options,
        think=st.booleans(),
    )  # fmt: skip


def completions() -> Any:
    """Bodies of OpenAI's completions."""
    return with_some(
        {"prompt": WORDS | st.lists(st.integers(0, 99), min_size=1, max_size=3)},
        stop=STOPS,
        max_tokens=LIMIT,
        suffix=WORDS,
        logprobs=st.integers(0, 5),
        seed=NUMBERS,
    )


class Native(Echo):
    """An engine that takes everything itself, as one in another process may."""

    def __init__(self) -> None:
        super().__init__(Options(text="x"))
        known = {*CAPABILITIES.parameters, *TOOL_PARAMETERS, "response_format", "seed", "temperature", "logit_bias", "top_k", "thinking_budget_tokens", "reasoning_effort"}  # fmt: skip
        self.capabilities = msgspec.structs.replace(
            CAPABILITIES, parameters=dict.fromkeys(known, "native"), passes_unknown=True
        )


def cross(request: ChatRequest | CompletionRequest) -> None:
    """Have a request read by the other side of each border."""
    kind, bare = type(request), msgspec.structs.replace(request, raw_fields={})
    try:
        packed, given_to_replica = frames.raw(bare), wire.encode_arguments(request)
    except InvalidRequest:  # a number of more than 64 bits, which the client is told
        return
    assert bare == msgspec.msgpack.decode(packed, type=kind)
    assert request == wire.decode_arguments(kind, given_to_replica)


BODIES = {
    "/v1/chat/completions": chats(),
    "/v1/completions": completions(),
    "/v1/messages": messages(),
    "/v1/responses": responses(),
    "/api/chat": of_ollama(),
}


def send(
    backend: Any, path: str, look: Callable[[list[Any]], None], examples: int | None = None
) -> None:
    """
    Send bodies to a model, of which none may be a fault of ours.

    Args:
        look: Is given the requests that came of each body.
        examples: How many; by default as many as of any test.
    """
    spy = Spy(backend)
    taken = 0

    async def app() -> AsyncIterator[Any]:
        async with serving(spy) as running:
            yield running

    with asyncio.Runner() as runner:
        opened = app()
        running = runner.run(anext(opened))

        async def asked(body: dict[str, Any]) -> tuple[int, bytes]:
            async with running.post(path, **{"model": "m"} | body) as response:
                return int(response.status), await response.read()

        @given(BODIES[path], examples=examples)
        def answered(body: dict[str, Any]) -> None:
            nonlocal taken
            spy.asked.clear()
            status, told = runner.run(asked(body))
            assert status < 500, told
            taken += bool(spy.asked)
            look(spy.asked)

        try:
            answered()
        finally:
            runner.run(opened.aclose())
    assert taken > 0


@pytest.mark.parametrize("path", BODIES)
def test_what_comes_of_a_body_is_read_in_every_process(path: str) -> None:
    """Whatever a dialect makes of a body that it takes, the types of the other side take it, too; and no body is a fault of ours."""

    def look(requests: list[Any]) -> None:
        for request in requests:
            cross(request)

    send(Native(), path, look)


@pytest.mark.heavy
@pytest.mark.parametrize("path", BODIES)
def test_gguf_child(path: str, tmp_path: Path) -> None:
    """What comes of any body llama.cpp takes, or refuses as the client's fault: a small model answers, or a 4xx does."""
    model = tiny_gguf.make(tmp_path / "m.gguf", template=TALK)
    backend = GgufEngine("m", model, ModelConfig(context=1024, parallel=1))
    send(backend, path, lambda requests: None, examples=90)


@pytest.mark.heavy
@pytest.mark.parametrize("path", BODIES)
def test_chatglm_child(path: str, tmp_path: Path) -> None:
    """The same of chatglm.cpp."""
    need_library()
    model = tiny_chatglm.write(tmp_path / "m.bin", ["Hello"], tiny_chatglm.EOS)
    send(ChatglmEngine("m", model, ModelConfig()), path, lambda requests: None, examples=90)
