"""_failure.py: what is kept and logged of a failed request, and what is not."""

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.backends.loopback import free_port
from support.servers.appserver import App, serving, upstream
from unilect.accounting.failures import MOST_CHARACTERS, Failure
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options
from unilect.web.failure import LEFT_OUT, sentence

MARK = "zebra quux"
LONG = f"zébra \"{MARK}\n' {MARK}\x07 {MARK * 40}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
            "stop": ["x"],
            "logit_bias": {"5": 1},
            "temperature": 1,
            "user": "u",
        },
    ),
    ("/v1/completions", {"prompt": ["a"], "suffix": "b", "echo": True}),
    ("/v1/embeddings", {"input": ["a"], "encoding_format": "float"}),
    (
        "/v1/responses",
        {
            "input": [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "c", "output": "o"}],
            "previous_response_id": "r",
            "instructions": "i",
            "text": {"format": {"type": "text"}},
        },
    ),
    ("/v1/messages", {"max_tokens": 5, "system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["b"]}], "format": "json", "options": {"stop": "x"}}),
    ("/rerank", {"query": "q", "documents": ["d"], "top_n": 1}),
]  # fmt: skip


async def last(app: App) -> Failure:
    """The only failure, once it is kept."""
    async with asyncio.timeout(20):
        while not (found := app.failures.latest(2)):
            await asyncio.sleep(0.005)
    (one,) = found
    return one


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a body."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for name, one in parts:
        yield from places(one, (*path, name))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The body with another value at a path."""
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], new)
    return value


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_no_text_of_the_request(path: str, body: dict[str, Any]) -> None:
    """Whatever is wrong with a request, and wherever, its failure has none of its text."""
    async with serving(Echo()) as app:
        for place in places(body):
            for new in (MARK, {"type": LONG}):
                data = json.dumps(changed(body, place, new))
                url = f"http://127.0.0.1:{app.port}{path}"
                async with app.session.post(url, data=data) as response:
                    await response.read()
        found = app.failures.latest(1000)

    assert len(found) > 3
    for word in ("zebra", "quux", "zébra"):
        assert [] == [one for one in found if word in repr(one)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("`stop`: found 'secret words'.", f"`stop`: found '{LEFT_OUT}'."),
        ("`a`: it's 'secret words', isn't it?", f"`a`: it's '{LEFT_OUT}', isn't it?"),
        ("found 'secret wo'...", f"found '{LEFT_OUT}'..."),
        ("found 'cr\\x1b secret words'", "found 'cr\\x1b\u2026'"),
        ("the model `m-1` and `temperature`", "the model `m-1` and `temperature`"),
        ("two\nlines\x1b[2J", "two\\nlines\\x1b[2J"),
        ("expected `string`", "expected `string`"),
    ],
)
def test_sentences(text: str, told: str) -> None:
    """A sentence loses the values of the request, but for the model, and keeps names of fields; control characters are visible."""
    body = b'{"model": "m-1", "temperature": 2, "stop": "secret words", "type": "string"}'
    assert told == sentence(text, body, {"m-1"})


def test_long_sentences() -> None:
    """A sentence is bounded; of a request too large to look into nothing quoted is told."""
    assert MOST_CHARACTERS == len(sentence("word " * 1000, b"{}", ()))
    assert f"`{LEFT_OUT}" == sentence("`stop`: found 'secret'", None, ())


@pytest.mark.parametrize(
    ("body", "model", "code"),
    [
        ({"model": "nosuch"}, "nosuch", "model_not_found"),
        ({"model": "m", "temperature": "hot"}, "m", "invalid_value"),
        ({"model": "m\x1b[31m" + "a" * 500}, "m\\x1b[31m" + "a" * 80, "model_not_found"),
        ({"model": 5}, "", "invalid_value"),
    ],
)
async def test_the_model(body: dict[str, Any], model: str, code: str) -> None:
    """The model is told that was asked for, also where it is not served or the rest of the body is wrong; bounded and visible."""
    async with serving(Echo()) as app:
        async with app.chat(**body) as response:
            await response.read()
        failure = await last(app)

    assert code == failure.code
    assert failure.model.startswith(model)
    assert len(failure.model) <= 110
    assert bool(failure.model) == bool(model)


async def test_what_is_known() -> None:
    """Status, code, parameter, sentence, caller, address and time of a failed request are kept, and of no other."""
    async with serving(Echo()) as app:
        async with app.chat() as response:
            await response.read()
        async with app.chat(temperature=9) as response:
            request_id = response.headers["X-Request-Id"]
        failure = await last(app)

    assert request_id == failure.request_id
    assert (400, "invalid_value", "temperature") == (failure.status, failure.code, failure.param)
    assert "temperature" in failure.reason
    assert ("anonymous", "127.0.0.1") == (failure.caller, failure.address)
    assert ("POST", "/v1/chat/completions", "") == (failure.method, failure.path, failure.ended)


async def test_a_backend_that_is_not_there() -> None:
    """A request that no backend took says which, and why."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    async with serving([PooledBackend(upstream(url), url)]) as app:
        async with app.chat() as response:
            assert 503 == response.status
        failure = await last(app)

    assert "backend_unreachable" == failure.code
    assert url.removesuffix("/v1") == failure.backend
    assert "refused" in failure.reason
    assert [failure.backend] == [one.backend for one in failure.attempts]


async def test_a_client_that_leaves() -> None:
    """An answer whose client leaves is told to have ended by that."""
    async with serving(Echo(Options(text="word " * 100, tokens_per_s=20))) as app:
        async with app.chat() as response:
            await response.content.readany()
            response.close()
        failure = await last(app)

    assert (499, "client", "") == (failure.status, failure.ended, failure.code)
