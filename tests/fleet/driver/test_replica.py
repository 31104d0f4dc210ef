"""Tests of unilect.fleet.driver.replica without Ray: the class that Ray makes an actor of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.servers.clusters import need_ray
from unilect.config.model import ModelConfig, Replicas
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import BackendError, ContextLengthExceeded, UnsupportedOperation
from unilect.core.events import Event, Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, EmbeddingRequest
from unilect.demo import MODEL
from unilect.fleet import wire
from unilect.fleet.driver.replica import FAILED, Replica, StartFailed, _gather
from unilect.fleet.files import Item, list_items
from unilect.models import sources
from unilect.testing import chat
from unilect.wire import frames

LIMIT_S = 30.0
NODE = "a1b2"


def deployment(source: str = "echo:", **changes: Any) -> bytes:
    """A model as it is told to Ray."""
    config = ModelConfig(source=source, start_timeout_s=LIMIT_S, **changes.pop("options", {}))
    made = wire.Deployment("m", version("unilect"), config, Replicas(), {})
    return msgspec.msgpack.encode(msgspec.structs.replace(made, **changes))


async def started(*args: Any, **changes: Any) -> Any:
    """A replica that is ready."""
    replica: Any = object.__new__(Replica)
    replica.node = NODE
    await replica.__init__(deployment(*args, **changes))
    return replica


def call(operation: str, given: Any = None, **fields: str) -> bytes:
    """A call as it comes to a replica."""
    return msgspec.msgpack.encode(frames.Call(operation, wire.encode_arguments(given), **fields))


async def replies(replica: Any, body: bytes) -> list[frames.Reply]:
    """All that a replica answers."""
    items = [item async for item in replica.answer(body)]
    assert NODE == wire.node_of(items[0])
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(items[1:]))
    reader.feed_eof()
    found = list[frames.Reply]()
    while not reader.at_eof():
        found.append(frames.reply_of(await frames.read(reader)))
    return found


async def value(replica: Any, operation: str, given: Any, kind: Any) -> Any:
    """The value that a call is answered with."""
    (reply,) = await replies(replica, call(operation, given))
    assert reply.last
    return msgspec.msgpack.decode(reply.value, type=kind)


async def test_an_answer() -> None:
    """A chat is answered with events and an end, once; its facts say what it can do, and a count of tokens counts."""
    replica = await started()

    told = await replies(replica, call("chat", chat("Hello!")))
    facts = await value(replica, wire.FACTS, None, wire.Facts)
    counted = await value(replica, "count_tokens:prompt", ("abc",), int)

    events = [event for reply in told for event in frames.events_of(reply)]
    assert "Hello!" == "".join(event.text for event in events if isinstance(event, TextDelta))
    assert [True] == [isinstance(event, Finish) for event in events if isinstance(event, Finish)]
    assert isinstance(events[-1], Usage)
    assert [False] * (len(told) - 1) + [True] == [reply.last for reply in told]
    assert facts.capabilities.fans_out
    assert 3 == counted
    await replica.check_health()


async def test_another_version() -> None:
    """A node with another version of unilect is told with both versions, before anything is loaded."""
    with pytest.raises(StartFailed, match=r"this node has unilect .*, and the gateway 0\.0\.0") as failure:  # fmt: skip
        await started(source="gguf:/nowhere.gguf", version="0.0.0")
    assert str(failure.value).startswith(FAILED)


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("gguf:/nowhere/x.gguf", {}, "/nowhere/x.gguf"),
        ("echo:", {"options": {"failing_starts": 1}}, r"\w"),
        ("echo:", {"options": {"nothing": 1}}, "nothing"),
        ("nothing-of-the-kind", {}, "nothing-of-the-kind"),
    ],
)
async def test_a_model_that_does_not_load(source: str, options: Any, why: str) -> None:
    """A model that does not load is told in words for the operator, in one line that is found in Ray's report."""
    with pytest.raises(StartFailed, match=f"^{FAILED}.*{why}"):
        await started(source, options=options)


async def test_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica on the machine that has a model's file uses that file, and asks nobody for it."""
    need_ray()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    items = list_items(ModelConfig(source=str(MODEL)), None)

    replica = await started(str(MODEL), files=items, cache_bytes=2**30)

    try:
        told = await replies(replica, call("chat", chat("Hello!", max_tokens=3)))
        assert [usage.completion_tokens for reply in told for usage in frames.events_of(reply) if isinstance(usage, Usage)] == [3]  # fmt: skip
        assert not (tmp_path / "unilect" / "fleet" / "items").exists()
    finally:
        await replica._backend.aclose()


@pytest.mark.parametrize("keys", [[], ["a"]])
async def test_several_callers(keys: list[str]) -> None:
    """An engine in a replica knows before its start whether the gateway has several callers, as it does in the gateway itself."""
    need_ray()
    config = ModelConfig(source=str(MODEL), replicas=1)
    store = StoreConfig(keys=False)
    gateway = sources.registry(Config(api_keys=keys, store=store, models={"m": config}))
    told: Any = gateway.get("m").pool.members[0].backend

    replica = await started(str(MODEL), several_callers=told._deployment.several_callers)

    try:
        several = replica._backend._isolation.at_start({"cache_ram_mib": None})
        assert ({"cache_ram_mib": 0} if keys else {}) == several
    finally:
        await replica._backend.aclose()


async def test_no_folder_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a home has no place for files that are sent, and says so."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StartFailed, match="neither HOME nor XDG_CACHE_HOME"):
        await started(files=[Item("/x", False, [])])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (call("embed", (EmbeddingRequest(input="x"),)), UnsupportedOperation),
        (call("__init__", (b"",)), UnsupportedOperation),
        (call("aclose", ()), UnsupportedOperation),
        (call("chat", {"messages": 3}), BackendError),
        (b"\xc1", BackendError),
        (b"", BackendError),
        (call("chat", chat("much too long")), ContextLengthExceeded),
    ],
)
async def test_what_it_refuses(body: bytes, error: type[Exception]) -> None:
    """What a replica cannot do, and what is no call, is an error; only the methods of the protocol are called."""
    replica = await started(options={"options": {"context": 3}})
    with pytest.raises(error):
        await replies(replica, body)


async def test_a_caller_that_leaves() -> None:
    """When nobody listens any longer, the engine is stopped before the replica goes on."""
    stopped = asyncio.Event()

    class Endless:
        async def generate(self, request: ChatRequest) -> AsyncIterator[list[Event]]:
            try:
                while True:
                    yield [TextDelta("x")]
                    await asyncio.sleep(0)
            finally:
                stopped.set()

    replica = await started()
    replica._backend = Endless()
    async with asyncio.timeout(LIMIT_S), aclosing(replica.answer(call("chat", chat()))) as answer:
        await anext(answer)  # that it is taken
        await anext(answer)
    assert stopped.is_set()


async def test_a_call_that_is_cancelled() -> None:
    """A call that waits for its first event and is cancelled, as Ray does it, stops the engine and leaves no task."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    class Silent:
        async def generate(self, request: ChatRequest) -> AsyncIterator[list[Event]]:
            try:
                begun.set()
                await asyncio.Event().wait()
                yield []
            finally:
                stopped.set()

    replica = await started()
    replica._backend = Silent()
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(replies(replica, call("chat", chat())))
    async with asyncio.timeout(LIMIT_S):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stopped.wait()
    assert before == asyncio.all_tasks()


async def made(batches: list[list[Event]], error: Exception | None) -> AsyncIterator[list[Event]]:
    """An engine's batches, and then an error."""
    for batch in batches:
        yield batch
    if error is not None:
        raise error


TEXTS = st.lists(st.lists(st.text(max_size=3).map(TextDelta), max_size=4), max_size=8)


@settings(deadline=None)
@given(TEXTS, st.booleans())
async def test_gather(batches: Any, fails: bool) -> None:
    """All events come, in their order and in no more batches than before, and then the engine's error where it has one."""
    error = BackendError("It broke.") if fails else None
    came = list[list[Event]]()
    caught: Exception | None = None
    try:
        async for batch in _gather(made(batches, error)):  # type: ignore[arg-type]
            came.append(batch)
    except BackendError as failure:
        caught = failure

    assert [event for batch in batches for event in batch] == [
        one for batch in came for one in batch
    ]
    assert len(came) <= sum(1 for batch in batches if batch)
    assert all(came)
    assert error is caught


async def test_events_that_wait_come_together() -> None:
    """What an engine makes while nobody takes it is one batch, and what is taken at once is sent at once."""
    go = asyncio.Event()

    async def engine() -> AsyncIterator[list[Event]]:
        yield [TextDelta("a")]
        await go.wait()
        for text in "bcd":
            yield [TextDelta(text)]
        all_made.set()

    all_made = asyncio.Event()
    async with asyncio.timeout(LIMIT_S), aclosing(_gather(engine())) as batches:  # type: ignore[arg-type]
        assert [TextDelta("a")] == await anext(batches)
        go.set()
        await all_made.wait()
        assert [TextDelta(text) for text in "bcd"] == await anext(batches)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
