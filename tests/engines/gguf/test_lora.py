"""Tests of unilect.engines.gguf._lora: what needs no model; dialects/llamacpp/test_adapters.py has the others."""

import asyncio
from typing import Any, cast

import pytest

from unilect.engines.gguf._lora import empty
from unilect.engines.gguf._slots import Slots
from unilect.runtime.tasks import Tasks


class Child:
    """A child that serves, and its connection, over which nothing is ever answered."""

    pid, starts = 1, 1

    def __init__(self) -> None:
        self.asked, self.process = asyncio.Event(), self

    async def connect(self) -> "Child":
        """The connection."""
        return self

    async def post(self, path: str, body: bytes) -> bytes:
        """Wait for ever."""
        self.asked.set()
        await asyncio.Event().wait()
        return body


@pytest.mark.parametrize("begun", [False, True])
async def test_a_model_that_is_stopped_meanwhile(begun: bool) -> None:
    """A slot that is being emptied, or is about to be, when its model is stopped is there again when the model is started anew."""
    slots, tasks, child = Slots(1), Tasks(), cast(Any, Child())
    empty(tasks, slots, await slots.acquire(b""), child)
    if begun:
        await child.asked.wait()

    await tasks.aclose()

    async with asyncio.timeout(60):
        assert 0 == await slots.acquire(b"")
