"""A server in this process with keys, limits, a ledger on a file and reloads, and a client of it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp

from support.servers.reloading import Reloadable
from unilect.accounting.ledger import LedgerRecorder
from unilect.limits.limiter import Limiter
from unilect.models.model import Model
from unilect.runtime.context import Context

TOP = "port = 0\napi_keys = ['one', 'two']\nmetrics_keys = ['three']\n[store]\nurl = 'sqlite:///unilect.db'\nledger = 'required'\n"


class Rig(Reloadable):
    """
    A server in this process, and its file.

    Attributes:
        client: A client.
    """

    def __init__(
        self, folder: Path, client: aiohttp.ClientSession, models: Sequence[Model]
    ) -> None:
        super().__init__(folder / "unilect.toml", models)
        self.client = client

    @property
    def requests(self) -> dict[str, Context]:
        """The requests in flight."""
        return self.listener._requests

    @property
    def limits(self) -> Limiter:
        """The limits."""
        return self.listener._limits

    @property
    def ledger(self) -> LedgerRecorder:
        """The ledger."""
        assert self.listener._ledger is not None
        return self.listener._ledger

    async def reload(self, text: str, top: str = TOP) -> None:
        """Go by another configuration."""
        self.write(top + text)
        await self.reloader.reload("a test")

    def post(self, key: str = "one", path: str = "chat/completions", **body: Any) -> Any:
        """POST a body; a chat where it says no path."""
        if path == "chat/completions":
            body = {"messages": [{"role": "user", "content": "x" * 10}]} | body
        headers = {"Authorization": f"Bearer {key}"}
        return self.client.post(f"{self.url}/v1/{path}", json=body, headers=headers)

    async def ask(self, key: str = "one", **body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        async with self.post(key, **body) as answer:
            return answer.status, await answer.json()

    async def rows(self, count: int) -> list[dict[str, Any]]:
        """The rows of the ledger, once there are so many."""
        file = self.file.with_name("unilect.db")
        async with asyncio.timeout(10):
            while True:
                with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
                    database.row_factory = sqlite3.Row
                    found = [
                        dict(one) for one in database.execute("SELECT * FROM ledger ORDER BY at")
                    ]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.01)

    def counters(self, name: str) -> dict[str, tuple[int, int]]:
        """What was used and is held, of the counters whose names hold a word."""
        return {
            one: (of.used, of.held)
            for one, of in self.limits._counters._all.items()  # type: ignore[attr-defined]
            if name in one
        }

    async def metric(self, line: str) -> float:
        """The sum of the lines of the metrics that begin so."""
        async with self.client.get(f"{self.url}/metrics", headers={"X-API-Key": "three"}) as answer:
            found = [one for one in (await answer.text()).splitlines() if one.startswith(line)]
        return sum(float(one.split()[-1]) for one in found)


@asynccontextmanager
async def rig(folder: Path, text: str, models: Sequence[Model] = ()) -> AsyncIterator[Rig]:
    """A server of a configuration, with other models where some are given."""
    (folder / "unilect.toml").write_text(TOP + text)
    async with aiohttp.ClientSession() as client:
        server = Rig(folder, client, models)
        async with server.running():
            yield server
