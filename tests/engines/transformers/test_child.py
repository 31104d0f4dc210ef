"""Tests of unilect.engines.transformers.child beyond engines/transformers/test_engine.py: what comes in the wrong moment, in this process."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.models.torchside import SETTINGS, need, running

need("torch", "transformers", "llguidance", "safetensors")

from support.backends.engine import chat
from unilect.core.errors import BackendError, BackendUnavailable
from unilect.core.requests import EmbeddingRequest
from unilect.demo import FOLDER
from unilect.engines.transformers.child import AdapterParts, Child, meaning
from unilect.wire import frames

PIRATE = AdapterParts("pirate", [(str(FOLDER / "lora-pirate"), 1.0)])


class Served:
    """
    The bundled model with an adapter, on a socket.

    Args:
        child: What serves it, in this loop.
        path: The socket.
    """

    def __init__(self, child: Child, path: str) -> None:
        self.child = child
        self._path = path

    def take_away(self) -> Any:
        """Have the adapter go between two steps."""
        return self.child._batch.call(partial(self.child._change, AdapterParts("pirate")))

    async def replies(self, operation: str, body: Any) -> list[frames.Reply]:
        """All replies to a call with the adapter."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(frames.pack(frames.Call(operation, frames.raw(body), "pirate")))
            replies = [frames.reply_of(await frames.read(reader))]
            while not replies[-1].last:
                replies.append(frames.reply_of(await frames.read(reader)))
            return replies
        finally:
            writer.close()


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """The model, until the test ends."""
    child = Child(SETTINGS)
    child._loop.close()
    child._loop = asyncio.get_running_loop()
    path, serve = str(tmp_path / "s"), partial(frames.serve, answer=child._answer, meaning=meaning)
    with running(child._batch):
        await asyncio.wrap_future(child._batch.call(partial(child._change, PIRATE)))
        async with await asyncio.start_unix_server(serve, path):
            yield Served(child, path)
    child._preparers.shutdown()


async def test_an_adapter_that_goes_before_an_answer_begins(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is never made without the adapter that was asked for, in whichever moment that goes."""
    check = served.child._check_adapter
    checks: list[str | None] = []

    def checked(name: str | None) -> None:
        check(name)
        checks.append(name)
        if len(checks) == 2:  # the prompt is known by now
            served.take_away().result(60)

    monkeypatch.setattr(served.child, "_check_adapter", checked)
    with pytest.raises(BackendError, match="adapter"):
        await served.replies("chat", msgspec.structs.replace(chat("Hello!"), raw_fields={}))

    assert ["pirate"] * 2 == checks


async def test_an_adapter_that_goes_between_vectors(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs that are not embedded yet when the adapter goes are not embedded without it."""
    request = EmbeddingRequest(model="x", input=["word " * 600] * 3)
    embedding = served.child._model.embedding
    begun: list[Any] = []

    def embedded(*args: Any) -> Any:
        begun.append(args)
        if len(begun) == 2:
            served.take_away()
        return embedding(*args)

    monkeypatch.setattr(served.child._model, "embedding", embedded)
    with pytest.raises(BackendUnavailable, match="adapter"):
        await served.replies("embed", request)

    assert 2 == len(begun)
