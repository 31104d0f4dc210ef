"""Tests of unilect.fleet.wire: what the gateway, its driver and the replicas say to each other arrives as it was."""

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
from unilect.config.model import ModelConfig, Replicas
from unilect.core.errors import BackendError, UnilectError
from unilect.core.events import TextDelta
from unilect.core.ranking import Document, Ranking, RerankRequest
from unilect.core.requests import ChatRequest, EmbeddingRequest, Embeddings
from unilect.fleet import wire
from unilect.fleet.files import File, Item
from unilect.templates.chat import Variables
from unilect.testing import chat, completion
from unilect.testing.echo import Echo
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
    "count_tokens:chat": ((chat(TEXT),), 3),
    "count_tokens:completion": ((completion([1, 2]),), 2),
    "count_tokens:prompt": (([1, 2, 3],), 3),
}


async def body_of(data: bytes) -> bytes:
    """The body of the only frame."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    body = await frames.read(reader)
    assert reader.at_eof()
    return body


async def driver_request(request: wire.DriverRequest) -> wire.DriverRequest:
    """A request as the process that holds the connection gets it."""
    return msgspec.msgpack.decode(await body_of(frames.pack(request)), type=wire.DriverRequest)


async def through(operation: str, given: Any) -> frames.Call:
    """A call as a replica gets it, by the driver."""
    call = frames.Call(operation, wire.encode_arguments(given), owner="key_1", request_id="r")
    request = wire.DriverRequest("call", "m", frames.raw(call), "session")
    driven = await driver_request(request)
    assert ("call", "m", "session") == (driven.action, driven.model, driven.session)
    again = frames.call_of(bytes(driven.body))
    assert (operation, "key_1", "r") == (again.operation, again.owner, again.request_id)
    return again


def test_every_method_is_here() -> None:
    """The table of this test is that of the protocol."""
    assert set(wire.METHODS) == set(CALLS)


@pytest.mark.parametrize("method", CALLS)
async def test_methods(method: str) -> None:
    """What a method is given, and what it returns, arrives as it was."""
    given, returned = CALLS[method]
    takes, gives = wire.METHODS[method], list[Any] if isinstance(returned, list) else type(returned)

    call = await through(method, given)
    reply = frames.reply_of(await body_of(wire.value(returned)))

    assert given == wire.decode_arguments(takes, call.body)
    assert reply.last
    assert returned == msgspec.msgpack.decode(reply.value, type=gives)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("chat", chat(TEXT)),
        ("completion", completion([1, 2])),
        ("prompt", TEXT),
        ("prompt", [1, 2]),
    ],
)
async def test_what_is_counted(kind: str, text: Any) -> None:
    """A conversation, a completion, a text and tokens are told from each other where tokens are counted."""
    operation = f"count_tokens:{wire.kind_of(text)}"
    (again,) = wire.decode_arguments(wire.METHODS[operation], (await through("x", (text,))).body)

    assert (kind, text) == (wire.kind_of(text), again)


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

    assert request_ == wire.decode_arguments(wire.GENERATES[operation], call.body)


@given(st.text(), st.lists(st.integers(0, 2**31 - 1), max_size=20), st.floats(0, 2))
async def test_any_text(text: str, tokens: list[int], temperature: float) -> None:
    """Any text, tokens and numbers of a request arrive as they were."""
    text = text.encode(errors="replace").decode()
    for operation, request in (
        ("chat", chat(text, temperature=temperature)),
        ("completion", completion([tokens] if tokens else [text])),
    ):
        call = await through(operation, request)
        assert request == wire.decode_arguments(wire.GENERATES[operation], call.body)


async def test_unknown_fields() -> None:
    """Fields that only an upstream knows are in a request as they were written."""
    request = chat(**CHAT, my_field={"a": [1.5, None]})

    again = wire.decode_arguments(ChatRequest, (await through("chat", request)).body)

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

    assert facts == msgspec.msgpack.decode(reply.value, type=wire.Facts)


async def test_a_deployment() -> None:
    """A deployment arrives with its settings, its resources and its files."""
    made = wire.Deployment(
        "m", "1", ModelConfig(source="gguf:/x", threads=2, options={"a": 1}), Replicas(min=0, max=8),
        {"num_cpus": 0.5, "memory": 2**35}, [Item("/x", False, [File("x", 2**40, "0" * 64)])], 2**37, True,
    )  # fmt: skip
    driven = await driver_request(wire.DriverRequest("deploy", "m", frames.raw(made)))

    assert made == msgspec.msgpack.decode(driven.body, type=wire.Deployment)


@given(st.binary(max_size=50))
def test_what_is_no_message(body: bytes) -> None:
    """Nonsense is an error of one kind for every type, and no other."""
    for kind in (wire.Deployment, wire.Facts, wire.DriverRequest, *wire.METHODS.values()):  # fmt: skip
        with suppress(msgspec.DecodeError):
            msgspec.msgpack.decode(body, type=kind)


def test_the_node_of_a_call() -> None:
    """The first frame of an answer names the node of the replica."""
    assert "a1b2" == wire.node_of(wire.value("a1b2"))


@given(st.binary(max_size=64))
@example(wire.value(1))
@example(frames.of_events([TextDelta("a")]))
@example(frames.of_error(BackendError("failed")))
def test_no_node(frame: bytes) -> None:
    """Anything else is an error of ours."""
    with pytest.raises(UnilectError):
        assert wire.node_of(frame) is None


def test_facts_of_engine() -> None:
    """The names of a template that nobody has looked into arrive as those that the template asks for."""
    engine = Echo()
    engine.capabilities = msgspec.structs.replace(
        engine.capabilities, template_names=Variables("{{ messages }}{{ tools }}")
    )
    reply = frames.reply_in(wire.value(wire.facts_of(engine)))
    facts = msgspec.msgpack.decode(reply.value, type=wire.Facts)
    assert {"messages", "tools"} == facts.capabilities.template_names
