"""What a request leaves behind when it has been answered."""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from inprocess import Site, site

from unilect.config.limits import LimitsConfig
from unilect.config.server import Config, ModelConfig, StoreConfig
from unilect.web import streaming

TIMES = 5
KEY = "sk-garbage-0123456789"
SAID = [{"role": "user", "content": "one two three"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": SAID}),
    "completion": ("/v1/completions", {"prompt": "one two three"}),
    "response": ("/v1/responses", {"input": "one two three"}),
    "unstored": ("/v1/responses", {"input": "one two three", "store": False}),
    "message": ("/v1/messages", {"messages": SAID, "max_tokens": 20}),
    "ollama": ("/api/chat", {"messages": SAID}),
    "refused": ("/v1/chat/completions", {"messages": SAID, "temperature": "hot"}),
    "unknown": ("/v1/chat/completions", {"messages": SAID, "model": "another"}),
}


def config(folder: Path, books: bool) -> Config:
    """One model with a key; with `books` its requests are limited, queued and recorded, too."""
    more: dict[str, Any] = {"max_in_flight": 4} if books else {}
    limits = LimitsConfig(tokens_per_day=10_000_000, requests_per_minute=100_000)
    return Config(
        port=0,
        api_keys=[KEY],
        store=StoreConfig(url=f"sqlite:///{folder}/s.db", ledger="required" if books else "off"),
        models={"m": ModelConfig(source="echo:", **more)},
        limits=limits if books else LimitsConfig(),
    )


async def ours_left(served: Site, path: str, body: dict[str, Any]) -> Counter[str]:
    """What of this project's requests only the garbage collector finds, by type."""

    async def ask() -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with served.client.post(served.url + path, json=body, headers=headers) as response:
            await response.read()

    gc.freeze()  # what earlier tests have left may be freed only now, and is not looked at
    await ask()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            await ask()
        over = asyncio.Event()  # a timer that was cancelled holds its context until its time
        asyncio.get_running_loop().call_later(10 * streaming.KEEP_ALIVE_S, over.set)
        await over.wait()
        gc.collect()
        return Counter(
            type(one).__qualname__
            for one in gc.garbage
            if type(one).__module__.startswith("unilect")
        )
    finally:
        gc.set_debug(0)
        gc.unfreeze()
        gc.garbage.clear()


@pytest.mark.parametrize("books", [False, True], ids=["plain", "books"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_no_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, stream: bool, books: bool
) -> None:
    """A request that is over is freed with its last reference: it leaves no cycle to the garbage collector."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    path, body = REQUESTS[kind]
    body = {"model": "m", "stream": stream} | body
    async with site(config(tmp_path, books)) as served:
        assert await ours_left(served, path, body) == Counter()
