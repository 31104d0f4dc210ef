"""
Tests of unilect.fleet.backend, ._link and ._child without a cluster: a gateway's model, its connection, and the process that holds it.

Real are the backend, the link and the process's side of a unix socket; the replicas are functions of this module.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.servers.clusters import need_serve

need_serve()

import grpc
from ray.exceptions import ActorUnavailableError

from unilect.api.backend import Capabilities, Description, NativeFacts
from unilect.config.fleet import FleetConfig
from unilect.config.model import ModelConfig
from unilect.config.model import Replicas as ReplicaCount
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    EngineDied,
    UnilectError,
)
from unilect.core.events import Event
from unilect.core.requests import EmbeddingRequest, Embeddings
from unilect.fleet import wire
from unilect.fleet.backend import RayBackend
from unilect.fleet.driver import child, rollout
from unilect.fleet.driver.nodes import Nodes
from unilect.fleet.link import Link
from unilect.testing import chat
from unilect.wire import frames

NODE = "n1"
Replica = Callable[[frames.Call], AsyncIterator[bytes]]


class Answer:
    """What a handle's call returns."""

    def __init__(self, items: AsyncIterator[bytes]) -> None:
        self.items, self.cancelled = items, False

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self.items)

    def cancel(self) -> None:
        """Nobody waits any longer."""
        self.cancelled = True


class Replicas:
    """
    A handle of replicas that all answer alike.

    Attributes:
        calls: Those that they got, but for facts.
        answers: What they gave.
    """

    def __init__(self) -> None:
        self.replica: Replica = taken
        self.calls, self.answers = list[frames.Call](), list[Answer]()
        self.answer = self

    def options(self, **_: Any) -> "Replicas":
        """As a handle's."""
        return self

    def remote(self, body: bytes) -> Answer:
        """A call."""
        call = frames.call_of(body)
        if call.operation == wire.FACTS:
            return Answer(facts())
        self.calls.append(call)
        self.answers.append(Answer(self.replica(call)))
        return self.answers[-1]


async def facts() -> AsyncIterator[bytes]:
    """What a replica says of its engine."""
    yield wire.value(NODE)
    yield wire.value(wire.Facts(Capabilities(slots=1), Description(), NativeFacts()))


async def taken(_: frames.Call) -> AsyncIterator[bytes]:
    """A replica that takes a call and then says nothing."""
    yield wire.value(NODE)
    await asyncio.Event().wait()


async def nobody(_: frames.Call) -> AsyncIterator[bytes]:
    """No replica takes the call."""
    await asyncio.Event().wait()
    yield b""


class Connection:
    """In place of the child process: the same, in this one."""

    def __init__(self, replicas: Replicas, folder: Path) -> None:
        self.starts, self.alive = 0, False
        self.socket_path = str(folder / "s")
        self._replicas = replicas
        self._writers = list[asyncio.StreamWriter]()

    async def start(self) -> None:
        """Serve."""
        if self.alive:
            return
        driver = object.__new__(child.RayDriver)
        driver._models, driver._locks, driver._looks, driver._offers = {}, {}, {}, None
        driver._nodes = Nodes(asyncio.get_running_loop(), "own")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            await frames.serve(reader, writer, driver._answer, child._meaning)

        self._server = await asyncio.start_unix_server(serve, self.socket_path)
        self.starts, self.alive = self.starts + 1, True

    async def aclose(self) -> None:
        """End, and all connections with it."""
        self.alive = False
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


class Rig:
    """A model of a gateway, and its replicas."""

    def __init__(self, folder: Path, **config: float) -> None:
        self.replicas = Replicas()
        settings = ModelConfig(source="echo:", replicas=1, **config)  # type: ignore[arg-type]
        made = wire.Deployment("m", version("unilect"), settings, ReplicaCount(), {})
        link = Link(FleetConfig())
        self.child: Any = Connection(self.replicas, folder)
        link.child = self.child
        self.backend: Any = RayBackend(made, link)

    async def events(self) -> list[Event]:
        """All events of an answer."""
        return [event async for batch in self.backend.generate(chat("Hi!")) for event in batch]


@pytest_asyncio.fixture
async def made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Rig]]:
    """Makes a model whose replicas are there at once."""
    rigs = list[Rig]()

    async def deploy(*_: Any) -> Replicas:
        return rigs[-1].replicas

    def of(**config: float) -> Rig:
        rigs.append(Rig(tmp_path, **config))
        return rigs[-1]

    monkeypatch.setattr(rollout, "deploy", deploy)
    yield of
    for rig in rigs:
        if rig.child.alive:
            await rig.child.aclose()


async def died(_: frames.Call) -> AsyncIterator[bytes]:
    """A replica that dies of a call."""
    yield wire.value(NODE)
    raise ActorUnavailableError("Actor is unavailable.", b"0" * 16)


async def engine_died(_: frames.Call) -> AsyncIterator[bytes]:
    """A replica whose engine dies of a call."""
    yield wire.value(NODE)
    yield frames.of_error(EngineDied("The engine died."))


@pytest.mark.parametrize("replica", [died, engine_died])
async def test_a_call_that_kills(made: Callable[..., Rig], replica: Replica) -> None:
    """A call that a replica had when it died is sent to no other one here: whoever counts deaths decides that."""
    rig = made()
    rig.replicas.replica = replica

    with pytest.raises(EngineDied):
        await rig.events()
    assert 1 == len(rig.replicas.calls)


async def test_a_replica_that_says_nothing(made: Callable[..., Rig]) -> None:
    """A replica that has taken a call and says nothing is given up after the time for its turn and `timeout_s`, and told so."""
    rig = made(timeout_s=0.02, queue_timeout_s=0.02, start_timeout_s=3600)

    with pytest.raises(BackendTimeout):
        await rig.events()
    while not rig.replicas.answers[0].cancelled:
        await asyncio.sleep(0)


async def test_a_model_that_is_removed(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for a replica of a model that was taken off the cluster is told so, though the removal waits for other answers."""
    monkeypatch.setattr(child, "LOOK_S", 0.001)
    gone, looks = False, list[str]()

    def is_gone(model: str) -> bool:
        nonlocal gone
        looks.append(model)
        was, gone = gone, True
        return was

    monkeypatch.setattr(rollout, "is_gone", is_gone)
    rig = made()
    rig.replicas.replica = nobody

    with pytest.raises(BackendUnavailable, match="`unilect fleet remove`") as told:
        await rig.events()
    assert (60, ["m", "m"]) == (told.value.retry_after_s, looks)


async def test_a_model_that_is_stopped(made: Callable[..., Rig]) -> None:
    """A request of a model that is stopped is told so, and does not start it again."""
    rig = made()
    rig.replicas.replica = nobody
    asking = asyncio.create_task(rig.events())
    while not rig.replicas.calls:
        await asyncio.sleep(0)
    await rig.backend.aclose()

    with pytest.raises(BackendUnavailable, match="The model was stopped"):
        await asking
    assert 1 == rig.child.starts


async def test_settings_of_another_gateway(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that runs tells the cluster its settings again, and one that does not run tells nothing."""
    told = list[wire.Deployment]()

    async def deploy(deployment: wire.Deployment, _: bytes) -> Replicas:
        told.append(deployment)
        return rig.replicas

    monkeypatch.setattr(rollout, "deploy", deploy)
    rig = made()
    await rig.backend.restore()
    assert [] == told
    await rig.backend.start()
    await rig.backend.restore()
    assert told[0] == told[1]
    await rig.backend.aclose()
    await rig.backend.restore()
    assert len(told) == 2


async def test_many_inputs(made: Callable[..., Rig]) -> None:
    """More texts than one answer holds are embedded some after the others, in their order."""
    rig = made()

    async def embeds(call: frames.Call) -> AsyncIterator[bytes]:
        yield wire.value(NODE)
        (request,) = wire.decode_arguments(tuple[EmbeddingRequest], call.body)
        vectors = [[float(text)] for text in request.inputs]
        yield wire.value(Embeddings(vectors, len(vectors)))

    rig.replicas.replica = embeds
    await rig.backend.start()
    told = await rig.backend.embed(EmbeddingRequest(input=[str(number) for number in range(150)]))

    assert (150, [[float(number)] for number in range(150)]) == (told.prompt_tokens, told.vectors)
    assert 3 == len(rig.replicas.calls)


async def test_a_connection_that_is_lost_at_the_start(made: Callable[..., Rig]) -> None:
    """A model whose connection is lost while it starts can be tried again."""
    rig = made()

    async def start() -> None:
        rig.child.starts, rig.child.socket_path = 1, "/nowhere"

    rig.child.start = start
    with pytest.raises(BackendUnavailable, match="was lost while the model started"):
        await rig.backend.start()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.CANCELLED, EngineDied),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, BackendError),
        (grpc.StatusCode.UNKNOWN, BackendError),
    ],
)
def test_what_grpc_says(code: grpc.StatusCode, kind: type[UnilectError]) -> None:
    """A connection of gRPC that breaks is a death; any other error is named by its code, and its details are for the operator."""
    empty = grpc.aio.Metadata()
    error = child._meaning(grpc.aio.AioRpcError(code, empty, empty, "of 10.0.0.1"))

    assert type(error) is kind
    assert "10.0.0.1" not in error.message
    assert kind is EngineDied or (code.name in error.message and "10.0.0.1" in error.for_log)
