"""A reload, with several addresses."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from support.common.waiting import until
from support.servers.reloading import Reloadable

CONFIG = """
port = 0
{keys}
allowed_origins = ["https://{page}"]
[[listeners]]
port = 0
[models.m]
source = "echo:word"
options = {{ tokens_per_s = 0.01 }}
"""


async def test_a_reload_and_several_addresses(tmp_path: Path) -> None:
    """A reload changes all addresses in one step: keys, origins, and the end of a request whose key is gone, wherever it came."""
    file = tmp_path / "unilect.toml"
    file.write_text(CONFIG.format(keys="api_keys = ['sk-old']", page="old.page"))
    server = Reloadable(file)
    async with server.running(), aiohttp.ClientSession() as client:

        async def ask(url: str, key: str, page: str) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {key}", "Origin": f"https://{page}"}
            async with client.get(f"{url}/v1/models", headers=headers) as response:
                return response.status, response.headers.get("Access-Control-Allow-Origin", "")

        async def stream(url: str) -> Any:
            body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
            headers = {"Authorization": "Bearer sk-old"}
            url = f"{url}/v1/chat/completions"
            async with client.post(url, json=body, headers=headers) as response:
                return response.status, (await response.json())["error"]["code"]

        streams = [asyncio.create_task(stream(url)) for url in server.urls]
        requests = server.listener._requests
        await until(lambda: sum(one.leased_at is not None for one in requests.values()) == 2)
        before = [await ask(url, "sk-old", "old.page") for url in server.urls]
        server.write(CONFIG.format(keys="api_keys = ['sk-new']", page="new.page"))
        await server.reloader.reload("a test")
        after = [await ask(url, "sk-new", "new.page") for url in server.urls]
        old = [await ask(url, "sk-old", "new.page") for url in server.urls]
        pages = [await ask(url, "sk-new", "old.page") for url in server.urls]
        ended = await asyncio.gather(*streams)

    assert [(200, "https://old.page")] * 2 == before
    assert [(200, "https://new.page")] * 2 == after
    assert [401, 401] == [status for status, _ in old]
    assert [403, 403] == [status for status, _ in pages]
    assert [(401, "invalid_api_key")] * 2 == ended
