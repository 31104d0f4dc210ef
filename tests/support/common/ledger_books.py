"""Books of a ledger, on a real database in the way of which a test stands."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from support.common.ledger_rows import DIFFERENCES
from unilect.accounting.account import Accounts, RequestAccounting
from unilect.accounting.ledger import LedgerRecorder, Rule
from unilect.accounting.metrics import Metrics
from unilect.config.model import Price
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.requests import ChatRequest
from unilect.runtime.context import Context
from unilect.store.database import Database
from unilect.store.ledger import Ledger
from unilect.store.records import LedgerRow

PRICES = {"m": Price(prompt=1.0, cached=0.25, completion=4.0)}
HELLO = [TextDelta("Hello", tokens=3)]
END = [Finish("stop"), Usage(10, 4, 4)]


class Gate(Ledger):
    """
    A real ledger that a test can hold up or break.

    Attributes:
        goes_on: Cleared, what is written waits.
        error: What is raised instead.
        groups: The ids that were written together.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.begun = asyncio.Event()
        self.error: Exception | None = None
        self.bad = ""
        self.groups: list[list[str]] = []

    async def write(self, rows: Sequence[LedgerRow]) -> None:
        """Write, as the test lets it."""
        self.begun.set()
        await self.goes_on.wait()
        if self.error is not None and (
            not self.bad or self.bad in [one.id.partition(".")[2] for one in rows]
        ):
            raise self.error
        await super().write(rows)
        self.groups.append([one.id.partition(".")[2] for one in rows])

    async def probe(self) -> None:
        """Write nothing, as the test lets it."""
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        await super().probe()


class Books:
    """
    A book, and requests for it.

    Attributes:
        file: What the journals' names begin with; of an SQLite database its file.
    """

    def __init__(
        self,
        file: Path,
        rule: Rule | None,
        journal: bool = True,
        known: Any = None,
        url: str | None = None,
    ) -> None:
        self.file, self.url = file, url or f"sqlite:///{file}"
        self.database = Database(self.url)
        self.ledger = Gate(self.database)
        stem = file if journal else None
        self.book = LedgerRecorder(self.ledger, lambda: stem, rule, known)
        self.accounts = Accounts(Metrics(), (self.book,))

    def account(
        self, id: str = "r", limits: Mapping[str, float] | None = None, streams: bool = True
    ) -> RequestAccounting:
        """The account of a request."""
        context = Context(
            request_id=id,
            caller="key_A",
            owner="lab",
            limits=limits or {},
            endpoint="chat",
            dialect="openai",
            price=PRICES["m"],
        )
        opened = self.accounts.open(context, "m", ChatRequest(messages=[], stream=streams))
        context.set_backend("m", "http://me:secret@host/v1")
        return opened

    async def answer(self, id: str = "r", limits: Mapping[str, float] | None = None) -> None:
        """A request that is answered whole."""
        async with self.account(id, limits) as account:
            account.see([Progress(10, 10, 4)])
            account.see(HELLO)
            account.see(END)

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows that are committed, by the id of their request, in the order in which they came; the totals are theirs."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True)) as file:
                file.row_factory = sqlite3.Row
                found = [dict(one) for one in file.execute("SELECT * FROM ledger ORDER BY rowid")]
                assert [] == file.execute(DIFFERENCES).fetchall()
        else:
            import psycopg
            from psycopg.rows import dict_row

            with psycopg.connect(self.url, row_factory=dict_row) as server:
                found = server.execute("SELECT * FROM ledger ORDER BY ctid").fetchall()
                assert [] == server.execute(DIFFERENCES.encode()).fetchall()
        rows = {one["id"].partition(".")[2]: one for one in found}
        assert len(rows) == len(found)
        return rows

    def journals(self) -> list[str]:
        """The files of journals."""
        return [one.name for one in self.file.parent.glob("*.running-*")]

    async def aclose(self) -> None:
        """End all."""
        await self.book.aclose()
        await self.ledger.aclose()
        await self.database.aclose()


@asynccontextmanager
async def books(folder: Path, rule: Rule | None = "required", **more: Any) -> AsyncIterator[Books]:
    """A book on a file in a folder."""
    made = Books(folder / "unilect.db", rule, **more)
    try:
        yield made
    finally:
        made.ledger.goes_on.set()
        await made.aclose()


async def ready(made: Books) -> None:
    """Wait until the ledger is written again."""
    async with asyncio.timeout(5):
        while not made.book.writer.writable:
            await asyncio.sleep(0.01)
