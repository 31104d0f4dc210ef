"""Reloads with answers that are held for clients that have left."""

from pathlib import Path

import aiohttp
import pytest

from support.common.waiting import until
from support.servers.reloading import Reloadable

TOP = "port = 0\napi_keys = ['sk-a-key-of-a-test']\nrejoin_s = 30.0\n[store]\nurl = 'sqlite://'\n"
SLOW = "[models.slow]\nsource = 'echo:'\noptions = { text = '%s', tokens_per_s = 150.0 }\n" % (
    "y" * 60
)
OTHER = "[models.other]\nsource = 'echo:'\n"
HEADERS = {"Authorization": "Bearer sk-a-key-of-a-test"}
BODY = {"model": "slow", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.mark.parametrize("after", [SLOW + OTHER, OTHER], ids=["its model stays", "its model goes"])
async def test_a_held_answer(tmp_path: Path, after: str) -> None:
    """An answer that is held for a client that has left is made to its end over a reload, and rejoined, also where that takes its model away."""
    file = tmp_path / "unilect.toml"
    file.write_text(TOP + SLOW)
    server = Reloadable(file)
    async with server.running(), aiohttp.ClientSession(headers=HEADERS) as client:
        rejoin = server.listener._inflight
        first = await client.post(f"{server.url}/v1/chat/completions", json=BODY)
        await first.content.readany()
        first.close()
        await until(lambda: rejoin.held)

        server.write(TOP + after)
        await server.reloader.reload("a test")
        async with client.post(f"{server.url}/v1/chat/completions", json=BODY) as second:
            text = await second.text()

        assert (200, True) == (second.status, "X-Unilect-Rejoined" in second.headers)
        assert "[DONE]" in text
