"""Engines that die, restart and are stopped, with what else goes on: several requests, adapters, callers, memory and folders."""

import asyncio

import pytest

from engine import engine
from unilect.demo import FOLDER
from unilect.requests import ChatRequest, LoraScale, Message

PIRATE = str(FOLDER / "lora-pirate.gguf")
HELLO = [Message("user", "Hello!")]


@pytest.mark.heavy
@pytest.mark.parametrize("times", [1, 2])
async def test_adapter_requests_and_clients_that_leave_twice(times: int) -> None:
    """The slot of a request with other scales is there for the next life of a model, however often the client's task is cancelled."""
    scaled = ChatRequest(messages=HELLO, max_tokens=400, lora=[LoraScale(id=0, scale=0.5)])
    async with engine(parallel=1, lora=[PIRATE]) as model:
        began = asyncio.Event()

        async def ask() -> None:
            async for _ in model.generate(scaled):
                began.set()

        asked = asyncio.create_task(ask())
        await began.wait()
        for _ in range(times):
            asked.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(asked, return_exceptions=True)
        await model.aclose()

        await model.start()
        async with asyncio.timeout(60):
            slot = await model._slots.take(b"")
        model._slots.give_back(slot)
