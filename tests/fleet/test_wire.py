"""Tests of unilect.fleet.wire: what the gateway, the process in the middle and the replicas say to each other arrives as it was."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from unilect.api.backend import Adapter, Capabilities, Description, NativeFacts
from unilect.core.errors import BackendError, UnilectError
from unilect.core.events import TextDelta
from unilect.core.ranking import Document, Ranking, RerankRequest
from unilect.core.requests import ChatRequest, EmbeddingRequest, Embeddings
from unilect.fleet import wire
from unilect.fleet.files import File, Item
from unilect.testing import chat, completion
from unilect.wire import frames

TEXT = "中🙂\u2028\x00 \ud7ff"
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": TEXT},
        {"role": "user", "content": [{"type": "text", "text": TEXT}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
        }
    ],
    "temperature": 0.1,
    "seed": 2**63 - 1,
    "logit_bias": {"5": -1.5},
    "stop": ["\n", TEXT],
}
#: What each method of a backend is given, and what it returns.
CALLS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "embed": (
        (EmbeddingRequest(input=[TEXT, "x"], dimensions=3, raw_fields={"a": Raw(b"[1]")}),),
        Embeddings([[0.1, -1e30, 3.0], []], 4),
    ),
    "rerank": (
        (RerankRequest(query=TEXT, documents=["a", Document(text="b")], top_n=1),),
        Ranking([0.5, -math.inf], 7, [1]),
    ),
    "tokenize": ((TEXT, True), [0, 5, 2**31]),
    "tokenize_plain": ((TEXT, False), []),
    "detokenize": (([1, 2, 3],), TEXT),
    "pieces": (([1, 2],), [b"\xff\x00", b""]),
    "render": ((chat(TEXT),), TEXT),
    "count_tokens": ((wire.Counted(prompt=[1, 2, 3]),), 3),
}


async def body_of(data: bytes) -> bytes:
    """The body of the only frame."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    body = await frames.read(reader)
    assert reader.at_eof()
    return body


async def through(operation: str, given: Any) -> frames.Call:
    """A call as a replica gets it, by the process in the middle."""
    call = frames.Call(operation, wire.given(given), owner="key_1", request_id="r")
    asked = wire.Asked("call", "m", "session", frames.raw(call))
    middle = wire.read(wire.Asked, msgspec.Raw(await body_of(frames.packed(asked))))
    assert ("call", "m", "session") == (middle.what, middle.model, middle.session)
    again = frames.call_of(bytes(middle.body))
    assert (operation, "key_1", "r") == (again.operation, again.owner, again.request_id)
    return again


def test_every_method_is_here() -> None:
    """The table of this test is that of the protocol."""
    assert set(wire.METHODS) == set(CALLS)


@pytest.mark.parametrize("method", CALLS)
async def test_methods(method: str) -> None:
    """What a method is given, and what it returns, arrives as it was."""
    given, returned = CALLS[method]
    takes, gives = wire.METHODS[method]

    call = await through(method, given)
    reply = frames.reply_of(await body_of(wire.value(returned)))

    assert given == wire.taken(takes, call.body)
    assert reply.last
    assert returned == msgspec.msgpack.decode(reply.value, type=gives)


@pytest.mark.parametrize(
    "counted",
    [
        wire.Counted(chat=chat(TEXT)),
        wire.Counted(completion=completion([1, 2])),
        wire.Counted(prompt=TEXT),
        wire.Counted(prompt=[1, 2]),
    ],
)
async def test_what_is_counted(counted: wire.Counted) -> None:
    """A conversation, a completion, a text and tokens are told from each other where tokens are counted."""
    (again,) = wire.taken(wire.METHODS["count_tokens"][0], (await through("x", (counted,))).body)

    assert counted == again


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("chat", chat(**CHAT)),
        ("chat", chat(**CHAT, top_k=3, grammar='root ::= "a"')),
        ("completion", completion(["a", TEXT], logprobs=3, echo=True)),
        ("completion", completion([[1, 2], [3]], suffix=TEXT)),
    ],
)
async def test_requests(operation: str, request_: Any) -> None:
    """A request arrives with all of its fields, those too that nobody here knows."""
    call = await through(operation, request_)

    assert request_ == wire.taken(wire.GENERATES[operation], call.body)


@given(st.text(), st.lists(st.integers(0, 2**31 - 1), max_size=20), st.floats(0, 2))
async def test_any_text(text: str, tokens: list[int], temperature: float) -> None:
    """Any text, tokens and numbers of a request arrive as they were."""
    text = text.encode(errors="replace").decode()
    for operation, request in (
        ("chat", chat(text, temperature=temperature)),
        ("completion", completion([tokens] if tokens else [text])),
    ):
        call = await through(operation, request)
        assert request == wire.taken(wire.GENERATES[operation], call.body)


async def test_unknown_fields() -> None:
    """Fields that only an upstream knows are in a request as they were written."""
    request = chat(**CHAT, my_field={"a": [1.5, None]})

    again = wire.taken(ChatRequest, (await through("chat", request)).body)

    assert {"a": [1.5, None]} == msgspec.json.decode(again.raw_fields["my_field"])


async def test_facts() -> None:
    """What a replica says of its engine arrives as it was: sets, tuples and what is not known."""
    facts = wire.Facts(
        Capabilities(
            parameters={"temperature": "native", "n": "emulated"},
            template_names=frozenset({"a", "b"}),
            schema_keywords=None,
            context=4096,
            resumes="both",
            adapters=(Adapter("pirate", 0.5),),
            why_not={"rerank": "it has none"},
        ),
        Description(family="llama", parameters=10**12, size_bytes=2**40),
        NativeFacts({"modalities": {"vision": False}}, {"n_vocab": 32000}),
    )

    reply = frames.reply_of(await body_of(wire.value(facts)))

    assert facts == wire.read(wire.Facts, reply.value)


async def test_a_deployment() -> None:
    """A deployment arrives with its settings, its resources and its files."""
    made = wire.Deployment(
        "m", "1", "gguf:/x", b'{"a":1}', 2, 0, 8, 2, 60, 16, 20, {"num_cpus": 0.5, "memory": 2**35}, 1.5,
        [Item("/x", False, [File("x", 2**40, "0" * 64)])], 2**37, True,
    )  # fmt: skip
    asked = wire.Asked("deploy", "m", body=frames.raw(made))

    middle = wire.read(wire.Asked, msgspec.Raw(await body_of(frames.packed(asked))))

    assert made == wire.read(wire.Deployment, middle.body)


@given(st.binary(max_size=50))
def test_what_is_no_message(body: bytes) -> None:
    """Nonsense is an error of one kind for every type, and no other."""
    for kind in (wire.Deployment, wire.Facts, wire.Asked, *(takes for takes, _ in wire.METHODS.values())):  # fmt: skip
        with suppress(msgspec.DecodeError):
            wire.read(kind, msgspec.Raw(body))


def test_the_node_of_a_call() -> None:
    """The first frame of an answer names the node of the replica."""
    assert "a1b2" == wire.node_of(wire.taken_on("a1b2"))


@given(st.binary(max_size=64))
@example(wire.value(1))
@example(frames.of_events([TextDelta("a")]))
@example(frames.of_error(BackendError("failed")))
def test_no_node(frame: bytes) -> None:
    """Anything else is an error of ours."""
    with pytest.raises(UnilectError):
        assert wire.node_of(frame) is None
