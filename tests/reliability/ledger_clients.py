"""Clients of a server with a ledger: what each has seen of its answers, and what the ledger has of them."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import aiohttp

from support.servers.serving import Server


@dataclass
class Seen:
    """
    What a client has seen of one stream.

    Attributes:
        id: The request's; empty where no answer has begun.
        delivered: Tokens.
        usage: As it was told, of an answer that was whole.
        error: The code of the error that it ended with.
        final: It was refused, and is to be refused again.
    """

    prompt: int
    id: str = ""
    status: int = 0
    delivered: int = 0
    usage: dict[str, int] | None = None
    whole: bool = False
    error: str = ""
    final: bool = False


async def stream(
    session: aiohttp.ClientSession,
    server: Server,
    text: str,
    progress: Callable[[], None],
    limit: int | None = None,
) -> Seen:
    """One stream, up to its end or the server's; `limit` is its `max_tokens`."""
    seen = Seen(len(text))
    body = {
        "model": "e",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": text}],
        "max_tokens": limit,
    }
    try:
        async with session.post(f"{server.url}/chat/completions", json=body) as response:
            seen.id, seen.status = response.headers["X-Request-Id"], response.status
            seen.final = response.headers.get("x-should-retry") == "false"
            if response.status != 200:
                seen.error = (await response.json())["error"]["code"]
                return seen
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    seen.whole = True
                elif data:
                    frame = json.loads(data)
                    seen.error = frame.get("error", {}).get("code", "")
                    seen.usage = frame.get("usage") or seen.usage
                    for choice in frame.get("choices", []):
                        seen.delivered += len(choice["delta"].get("content") or "")
                    progress()
    except aiohttp.ClientError:
        pass
    return seen


async def whole(
    session: aiohttp.ClientSession, server: Server, text: str, limit: int | None = None
) -> Seen:
    """One answer that is not streamed; without an id where the server has ended before it."""
    seen = Seen(len(text))
    body = {"model": "e", "messages": [{"role": "user", "content": text}], "max_tokens": limit}
    try:
        async with session.post(f"{server.url}/chat/completions", json=body) as response:
            answer = await response.json()
            seen.id, seen.status = response.headers["X-Request-Id"], response.status
            seen.final = response.headers.get("x-should-retry") == "false"
            if response.status == 200:
                seen.whole, seen.usage = True, answer["usage"]
                seen.delivered = len(answer["choices"][0]["message"]["content"])
            else:
                seen.error = answer["error"]["code"]
    except aiohttp.ClientError:
        pass
    return seen


def client(key: str) -> aiohttp.ClientSession:
    """A client with a key."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"}, timeout=aiohttp.ClientTimeout(60)
    )


def rows_of(url: str) -> list[dict[str, Any]]:
    """The rows of a ledger."""
    if url.startswith("sqlite"):
        with closing(
            sqlite3.connect(f"file:{url.removeprefix('sqlite:///')}?mode=ro", uri=True)
        ) as file:
            assert [("ok",)] == file.execute("PRAGMA integrity_check").fetchall()
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute("SELECT * FROM ledger")]
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM ledger").fetchall()
