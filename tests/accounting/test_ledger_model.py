"""A ledger through whatever may happen, in any order: answers end, clients leave, its database breaks, its server dies."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.common.ledger_books import Books, ready
from unilect.accounting.account import RequestAccounting
from unilect.core.errors import LedgerUnavailable, StoreUnavailable
from unilect.core.events import Finish, TextDelta, Usage
from unilect.store import ledger as writer
from unilect.store.journal import LOST
from unilect.store.records import CORRECTED

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin", "see", "see", "end", "end", "leave", "break", "heal", "die"]
        ),
        st.integers(0, 1000),
    ),
    min_size=5,
    max_size=40,
)


class Machine:
    """A store, the server that uses it now, and what its clients know of their requests: the statuses that a row may have, and its tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, tuple[set[tuple[int, str]], int]] = {}
        self.running: dict[str, tuple[RequestAccounting, int]] = {}
        self.server = self._new()

    def _new(self) -> Books:
        return Books(self.folder / "unilect.db", "required")

    async def start(self) -> None:
        """Start a server."""
        await self.server.book.start()

    async def begin(self, number: int) -> None:
        """A request comes; it is refused where it cannot be recorded."""
        id = f"r{len(self.known)}"
        account = self.server.account(id)
        try:
            await account.__aenter__()
        except LedgerUnavailable:
            assert not self.server.book.ready
            return
        self.running[id] = (account, 0)
        self.known[id] = (set(), 0)

    async def see(self, number: int) -> None:
        """One of the answers goes on."""
        if self.running:
            id = list(self.running)[number % len(self.running)]
            account, made = self.running[id]
            account.see([TextDelta("x", tokens=number)])
            self.running[id] = (account, made + number)

    async def end(self, number: int) -> None:
        """One of the answers ends; its client is told that it is whole, or that it could not be recorded."""
        if not self.running:
            return
        id = list(self.running)[number % len(self.running)]
        account, made = self.running.pop(id)
        account.see([Finish("stop"), Usage(1, made)])
        try:
            await account.__aexit__(None, None, None)
        except LedgerUnavailable:
            self.known[id] = ({(CORRECTED, "stop"), (499, LOST)}, made)
        else:
            self.known[id] = ({(200, "stop")}, made)

    async def leave(self, number: int) -> None:
        """One of the clients leaves."""
        if not self.running:
            return
        id = list(self.running)[number % len(self.running)]
        account, made = self.running.pop(id)
        error = asyncio.CancelledError()
        await account.__aexit__(type(error), error, None)
        self.known[id] = ({(499, ""), (499, LOST)}, made)

    async def broken(self, number: int) -> None:
        """The database cannot be written."""
        self.server.ledger.error = StoreUnavailable("away")

    async def heal(self, number: int) -> None:
        """It can again."""
        self.server.ledger.error = None
        await ready(self.server)

    async def die(self, number: int) -> None:
        """The server dies, with what it had not written yet, and another one starts; its database may be broken then."""
        was = self.server
        await was.book._tasks.aclose()
        if was.book._journal is not None:
            was.book._journal.close()
        for dead in was.book._held:
            dead.close()
        await was.ledger.aclose()
        await was.database.aclose()
        for id, (_, made) in self.running.items():
            self.known[id] = ({(499, LOST)}, made)
        self.running.clear()
        self.server = self._new()
        if number % 3 == 0:
            await self.broken(number)
        await self.start()

    async def check(self) -> None:
        """In the end every request that was let through has one row, which says what its client knows."""
        while self.running:
            await self.leave(0)
        await self.heal(0)
        await self.server.book.writer.settle()
        rows = self.server.rows() if self.known else {}
        found = {id: (row["status"], row["finish"], row["completion"]) for id, row in rows.items()}
        assert self.known.keys() == found.keys()
        for id, (ways, made) in self.known.items():
            assert (found[id][:2] in ways, found[id][2]) == (True, made), (id, ways, found[id])
        await self.server.aclose()
        assert [] == self.server.journals()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(ACTIONS)
def test_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """Whatever happens, a request that was let through has one row in the end: with the status that its client was told, and all its tokens."""

    async def run() -> None:
        machine = Machine(tmp_path_factory.mktemp("model"))
        steps: dict[str, Any] = {
            name: getattr(machine, name) for name in ("begin", "see", "end", "leave", "heal", "die")
        }
        await machine.start()
        for name, number in actions:
            await steps.get(name, machine.broken)(number)
        await machine.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "RETRY_S", 0.01)
        asyncio.run(run())
