"""Tests of unilect.web.decode."""

import asyncio
import json
import socket
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.bounds import LARGE_BYTES, check_body, check_free_form
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest
from unilect.web.decode import (
    BodyDecoder,
    check_one_kind,
    decode_request,
    raw_fields_of,
    wrong_field,
)
from unilect.web.streaming import SHORTENED

DECODER = BodyDecoder(ChatRequest)
BODY = b'{"messages":[{"role":"user","content":"Hi"}],"x":1.50, "y" : {"a": [1, 2]}}'
IDS = msgspec.json.encode([12345] * 20_000)
#: What the parser may say of a text.
FORMS = [
    "{0}",
    "{0} - at `$.a`",
    "Wrong - at `$.{0}`",
    "Object missing required field `{0}` - at `$.{0}`",
    "Expected `{0}`, got `str` - at `$.a`",
    "Expected `str` matching regex '{0}' - at `$.a`",
]


def test_decode() -> None:
    """A body becomes a request, and its fields are kept as they were written."""
    request = DECODER.decode(BODY)

    assert request.messages[0].content == "Hi"
    assert {"x": b"1.50", "y": b'{"a": [1, 2]}'} == {
        name: bytes(raw) for name, raw in request.raw_fields.items() if name != "messages"
    }


def test_a_byte_order_mark() -> None:
    """A byte order mark before the JSON, as some Windows clients send, is skipped."""
    assert DECODER.decode(b"\xef\xbb\xbf" + BODY).messages[0].content == "Hi"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"\xff",
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        rb'{"messages":[{"role":"user","content":"\ud83d"}]}',
        BODY + b"x",
        BODY + BODY,
        b"[" * 100_000,
        b'{"x":' * 100_000,
        BODY[:-1] + b',"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"{" + b'"a":1,' * 10 + b"}",
        b'{"messages":NaN}',
        BODY.decode().encode("utf-16"),
    ],
)
def test_no_json_object(body: bytes) -> None:
    """What is no JSON object, or nested without end, is refused with a sentence."""
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(body)

    assert raised.value.message.endswith(".")
    assert len(raised.value.message) < 500


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [1]}, "stop[0]"),
        ({"tools": [{"function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"n": 0}, "n"),
    ],
)  # fmt: skip
def test_wrong_fields(fields: dict[str, Any], param: str) -> None:
    """An error names the field that is wrong, however deep it stands."""
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(msgspec.json.encode(body))

    assert param == raised.value.param
    assert f"`{param}`" in raised.value.message


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"tools": [{"function": {"name": "f"}}] * 129}, "tools", "expected at most 128 items; it has 129."),
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages", "expected at most 2048 items; it has 2049."),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}]}, "messages[0].content", "expected at most 1024 items; it has 1025."),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}] * 129}]}, "messages[0].tool_calls", "expected at most 128 items; it has 129."),
        ({"stop": ["x"] * 17}, "stop", "expected at most 16 items; it has 17."),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "expected at most 1024 fields; it has 1025."),
        ({"stop": "x" * 257}, "stop", "expected at most 256 characters."),
    ],
)  # fmt: skip
def test_too_many(fields: dict[str, Any], param: str, told: str) -> None:
    """What is too long is told with its name, what is read, and how much there is."""
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(msgspec.json.encode(json.loads(BODY) | fields))

    assert (param, True) == (raised.value.param, raised.value.message.endswith(told))


def test_too_many_fields() -> None:
    """A body of 50,000 fields is refused with their number, and no field of it is looked at."""
    body = {"messages": []} | {f"k{i}": 1 for i in range(50_000)}
    with pytest.raises(InvalidRequest, match="has 50001 fields; the maximum is 256"):
        raw_fields_of(msgspec.json.encode(body))

    with pytest.raises(InvalidRequest, match="has 257 fields"):
        DECODER.decode(msgspec.json.encode(json.loads(BODY) | {f"k{i}": 1 for i in range(254)}))
    assert 256 == len(
        DECODER.decode(
            msgspec.json.encode(json.loads(BODY) | {f"k{i}": 1 for i in range(253)})
        ).raw_fields
    )


def test_a_text_in_a_message_of_the_parser() -> None:
    """A client's text that looks like the parser's words is cut short, and the field is still named."""
    body = {"messages": [{"role": " - at `$.x`" * 100_000, "content": ""}]}
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(msgspec.json.encode(body))

    assert "messages[0].role" == raised.value.param
    assert len(raised.value.message) < 500


class Asked(dict[Any, Any]):
    """What a handler is given, as far as `decode_request` looks at it."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    async def read(self) -> bytes:
        """The body."""
        return self._body


@pytest.mark.parametrize(
    ("more", "turns"),
    [
        (b'""', 0),
        (b'"' + b"A text, which has commas. " * 9_000 + b'"', 0),
        (IDS, 3),
        (b'"' + b"y" * LARGE_BYTES + b'"', 7),
    ],
    ids=["small", "a text", "ids", "large"],
)
async def test_others_are_served_between_the_passes(more: bytes, turns: int) -> None:
    """Others are let in after each pass over a large body or one of many values; a smaller one is read at once."""
    seen = 0

    async def others() -> None:
        nonlocal seen
        while True:
            seen += 1
            await asyncio.sleep(0)

    body = b'{"x":' + more + b',"messages":[{"role":"user","content":"Hi"}]}'
    task = asyncio.create_task(others())
    request: Any = Asked(body)
    asked = await decode_request(request, DECODER.decode)
    task.cancel()

    assert (turns, DECODER.decode(body)) == (seen, asked)


@pytest.mark.parametrize(
    ("before", "behind", "param"),
    [
        (b'{"messages":[{"role":"', b'","content":"a"}]}', "messages[0].role"),
        (b'{"messages":[{"role":"user', b'","content":"a"}]}', "messages[0].role"),
        (b'{"messages":[{"role":"user","content":"', b'"}],"n":true}', "n"),
    ],
)
@pytest.mark.parametrize("text", [rb"\n", b"\x7f", "\u202e".encode(), b"y"])
async def test_what_is_wrong_beside_a_long_text(
    before: bytes, behind: bytes, param: str, text: bytes
) -> None:
    """A field that is wrong in a large body is told before the parser is given the long text, whatever is in it."""
    sizes: list[int] = []

    def decode(body: bytes, raw_fields: Any) -> ChatRequest:
        sizes.append(len(body))
        return DECODER.decode(body, raw_fields)

    body = before + text * (LARGE_BYTES // len(text)) + behind
    request: Any = Asked(body)
    request[SHORTENED] = await check_body(body)
    with pytest.raises(InvalidRequest) as raised:
        await decode_request(request, decode)

    assert param == raised.value.param
    assert max(sizes) < LARGE_BYTES // 10


@pytest.mark.parametrize("more", [IDS, b'"' + b"y" * LARGE_BYTES + b'"'], ids=["ids", "text"])
@pytest.mark.parametrize("last", [b"}", b',"n":"x"}', b",}"], ids=["right", "wrong", "no json"])
async def test_one_pass_in_a_turn(more: bytes, last: bytes) -> None:
    """Between the passes over two large bodies others have a turn, also when one is wrong or its client leaves."""
    turn, passes = 0, list[int]()

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def decode(body: bytes, raw_fields: Any) -> ChatRequest:
        passes.append(turn)
        return DECODER.decode(body, raw_fields)

    body = BODY[:-1] + b',"z":' + more + last
    ticking = asyncio.create_task(turns())
    asked = [asyncio.create_task(decode_request(Asked(body), decode)) for _ in range(8)]  # type: ignore[arg-type]
    while not passes and not any(one.done() for one in asked):
        await asyncio.sleep(0)
    asked[3].cancel()
    done, _ = await asyncio.wait(asked)
    ticking.cancel()

    assert (8, 1) == (len(done), sum(one.cancelled() for one in done))
    assert (0 if last == b"}" else 7) == sum(
        isinstance(one.exception(), InvalidRequest) for one in done if not one.cancelled()
    )
    assert all(after - before > 2 for before, after in pairwise(passes))


async def test_a_large_body_lets_others_pass() -> None:
    """What comes while a large body is passed over is answered before the next pass, also where that is over the same body."""
    loop, order, tasks = asyncio.get_running_loop(), list[str](), list[asyncio.Task[None]]()
    theirs, ours = socket.socketpair()

    async def answer() -> None:
        order.append("another")

    def read() -> None:
        ours.recv(1)
        tasks.append(loop.create_task(answer()))

    def decode(body: bytes, raw_fields: Any) -> ChatRequest:
        order.append("a pass")
        theirs.send(b"a")
        return DECODER.decode(body, raw_fields)

    body = BODY[:-1] + b',"z":"' + b"y" * LARGE_BYTES + b'"}'
    request: Any = Asked(body)
    request[SHORTENED] = await check_body(body)
    loop.add_reader(ours, read)
    try:
        await asyncio.gather(decode_request(request, decode), decode_request(request, decode))
    finally:
        loop.remove_reader(ours)
        theirs.close()
        ours.close()
    await asyncio.gather(*tasks)

    assert ["a pass", "another"] * 4 == order


@pytest.mark.parametrize("mixed", [["a", 1], [1, "a"], [1, [2]], ["a", [1]], [[1], "a"]])
def test_mixed_prompts(mixed: Any) -> None:
    """Texts, ids and lists of ids in one list are refused, by the name of the field."""
    with pytest.raises(InvalidRequest, match="token ids are mixed") as raised:
        check_one_kind("prompt", mixed)

    assert "prompt" == raised.value.param


async def test_no_json_behind_a_long_text() -> None:
    """Where a large body is no JSON is told of the body as it came."""
    body = b'{"x":"' + b"y" * LARGE_BYTES + b'",}'
    request: Any = Asked(body)
    request[SHORTENED] = await check_body(body)
    with pytest.raises(InvalidRequest, match=rf"byte {len(body) - 1}\b"):
        await decode_request(request, DECODER.decode)


def test_a_missing_field() -> None:
    """A missing field is named."""
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(b"{}")

    assert ("messages", "`messages` is missing; it is required.") == (
        raised.value.param,
        raised.value.message,
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Expected `int`, got `str` - at `$.max_tokens`", "max_tokens"),
        ("Expected `int`, got `str` - at `$[...]`", "[...]"),
        ("Expected `object`, got `array`", None),
        ("Expected `str` of length <= 256 - at `$.logit_bias[...]`", "logit_bias[...]"),
        ("Object missing required field `a` - at `$.b[0]`", "b[0].a"),
        ("", None),
    ],
)
def test_messages_of_the_parser(message: str, param: str | None) -> None:
    """The parser's message becomes ours, with the field that it names."""
    assert param == wrong_field(message).param


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (b'"temperature":"hot"', "`temperature`: expected a number (or null), got a string."),
        (b'"temperature":9', "`temperature`: expected a number <= 2.0."),
        (b'"stream":"yes"', "`stream`: expected a boolean (or null), got a string."),
        (b'"messages":[]', "`messages`: expected at least 1 item."),
        (b'"seed":1.5', "`seed`: expected an integer (or null), got a number."),
        (b'"user":{}', "`user`: expected a string (or null), got an object."),
        (b'"messages":[3]', "`messages[0]`: expected an object, got an integer."),
        (
            b'"messages":[{"role":"user","content":3}]',
            "`messages[0].content`: expected a string or an array (or null), got an integer.",
        ),
    ],
)
def test_words_of_json(field: bytes, told: str) -> None:
    """A field of the wrong type, range or length is told in the words of JSON."""
    with pytest.raises(InvalidRequest) as raised:
        DECODER.decode(b'{"messages":[{"role":"user","content":"Hi"}],%s}' % field)

    assert told == raised.value.message


@given(st.sampled_from(FORMS), st.text(max_size=20), st.integers(0, 100))
def test_any_message_of_the_parser(form: str, text: str, times: int) -> None:
    """Any message becomes a short error."""
    assert len(wrong_field(form.format(text * times)).message) < 500


@given(st.binary(max_size=100))
def test_any_bytes(body: bytes) -> None:
    """Any bytes are a request or an error that says why not."""
    try:
        DECODER.decode(body)
    except InvalidRequest:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(sorted(set(ChatRequest.__struct_fields__) - {"raw_fields"}))


@given(st.dictionaries(fields, json_values, max_size=4))
def test_any_fields(given_fields: dict[str, Any]) -> None:
    """Any JSON in any field is a request, or an error that names a field of it."""
    body = {"messages": [{"role": "user", "content": "Hi"}]} | given_fields
    try:
        request = DECODER.decode(json.dumps(body).encode())
    except InvalidRequest as error:
        names = [name for name in body if (error.param or name).startswith(name)]
        assert names
        return
    assert set(body) == set(request.raw_fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": [{"role": "usr", "content": "x"}]}, "`messages[0].role`: expected one of `system`, `developer`, `user`, `assistant`, `tool`, `function`, found 'usr'."),
        ({"messages": [{"role": "user", "content": [{"type": "img"}]}]}, "`messages[0].content[0].type`: expected one of `text`, `image_url`, `input_audio`, `file`, `refusal`, found 'img'."),
        ({"reasoning_effort": "huge"}, "`reasoning_effort`: expected one of `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, found 'huge'."),
        ({"mirostat": 7}, "`mirostat`: expected one of `0`, `1`, `2`, found 7."),
        ({"tool_choice": "must"}, "`tool_choice`: expected one of `none`, `auto`, `required`, found 'must'."),
    ],
)  # fmt: skip
def test_values_of_an_enumeration(fields: dict[str, Any], told: str) -> None:
    """A value that is none of an enumeration is told with those that are."""
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(InvalidRequest) as raised:
        BodyDecoder(ChatRequest).decode(msgspec.json.encode(body))

    assert told == raised.value.message


def test_annotations_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of an enumeration are looked up in annotations that an earlier mistake, at any place of the body, has had evaluated."""

    def found(**body: Any) -> str:
        with pytest.raises(InvalidRequest) as error:
            DECODER.decode(json.dumps(body).encode())
        return str(error.value)

    message = {"role": "user", "content": "x"}
    first = found(messages=[{"role": "usr"}])
    monkeypatch.setattr("unilect.web.decode.get_type_hints", None)

    assert first.replace("[0]", "[1]") == found(messages=[message, {"role": "usr"}])


def test_free_forms() -> None:
    """A schema of a sensible size and depth is taken."""
    check_free_form("x", {"type": "object", "properties": {"a": {"enum": ["b"] * 1000}}})
    check_free_form("x", None)


@pytest.mark.parametrize("size", [33, 900])
def test_deep_free_forms(size: int) -> None:
    """A schema that is nested too deep is refused by name."""
    value: Any = {}
    for _ in range(size):
        value = {"a": value}
    with pytest.raises(InvalidRequest) as raised:
        check_free_form("tools[0]", value)

    assert raised.value.param == "tools[0]"


def test_large_free_forms() -> None:
    """A schema that is too large is refused by name."""
    with pytest.raises(InvalidRequest):
        check_free_form("x", {"a": "b" * 70_000})
