"""Tests of unilect.accounting.ledger: rows of requests, on a real database in the way of which a test stands."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.common.ledger_books import END, HELLO, books, ready
from unilect.accounting import ledger
from unilect.accounting.ledger import Rule, State
from unilect.core.errors import (
    AuthenticationError,
    BackendError,
    LedgerUnavailable,
    StoreUnavailable,
)
from unilect.store import ledger as _writer
from unilect.store.journal import BACKEND, LOST, Journal, encode_backend
from unilect.store.records import CORRECTED, LedgerRow

#: A request of a dead server, but for its id.
LOST_ROW: dict[str, Any] = {
    "at": 1_800_000_000.0,
    "key": "key_A",
    "owner": "lab",
    "model": "m",
    "dialect": "openai",
    "endpoint": "chat",
}


async def test_a_row(tmp_path: Path, url: str) -> None:
    """An answer has its row when its account is closed, with all that is known of it, without the backend's credentials."""
    async with books(tmp_path, url=url) as made:
        await made.answer()
        row = made.rows()["r"]

    assert row.pop("id").endswith(".r")
    assert 0 <= row.pop("first_token_ms") <= row.pop("duration_ms")
    assert row.pop("at") // 86_400 == row.pop("day")
    assert {
        "key": "key_A",
        "owner": "lab",
        "model": "m",
        "backend": "http://***@host/v1",
        "dialect": "openai",
        "endpoint": "chat",
        "prompt": 10,
        "cached": 4,
        "completion": 4,
        "status": 200,
        "finish": "stop",
        "cost": 6 * 1 + 4 * 0.25 + 4 * 4,
    } == row
    assert [] == made.journals()


async def test_ids_are_in_order(tmp_path: Path, url: str) -> None:
    """The ids of a server's rows grow, whatever the ids of the requests are, so that new ones stand beside each other in the index."""
    async with books(tmp_path, url=url) as made:
        names = [f"{number:x}"[::-1] for number in range(300, 0, -17)]
        for name in names:
            await made.answer(name)
        ids = {name: row["id"] for name, row in made.rows().items()}
    assert names == sorted(ids, key=lambda name: str(ids[name]))


async def test_those_that_end_meanwhile_share_a_transaction(tmp_path: Path, url: str) -> None:
    """While a row is written, those that come wait, and are written together."""
    async with books(tmp_path, url=url) as made:
        await made.book.start()
        made.ledger.goes_on.clear()
        first = asyncio.create_task(made.answer("a"))
        await made.ledger.begun.wait()
        rest = [asyncio.create_task(made.answer(id)) for id in "bcd"]
        await asyncio.sleep(0)
        made.ledger.goes_on.set()
        await asyncio.gather(first, *rest)

        assert [["a"], ["b", "c", "d"]] == made.ledger.groups


class OtherWork:
    """Stands for `wait_while_busy`: the server is busy until it is told that it is not."""

    def __init__(self) -> None:
        self.begun, self.done = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """Until it is done."""
        self.begun.set()
        await self.done.wait()


async def test_a_busy_server(tmp_path: Path, url: str) -> None:
    """Several rows wait for more while the server has other work; one alone waits for nothing."""
    async with books(tmp_path, url=url) as made:
        await made.book.start()
        work = OtherWork()
        made.book.writer._gather = work.wait
        await made.answer("a")
        assert not work.begun.is_set()

        made.ledger.goes_on.clear()
        made.ledger.begun.clear()
        waiting = [asyncio.create_task(made.answer("b"))]
        await made.ledger.begun.wait()
        waiting += [asyncio.create_task(made.answer(id)) for id in "cd"]
        await asyncio.sleep(0)
        made.ledger.goes_on.set()
        await work.begun.wait()
        waiting.append(asyncio.create_task(made.answer("e")))
        await asyncio.sleep(0)
        work.done.set()
        await asyncio.gather(*waiting)

        assert [["a"], ["b"], ["c", "d", "e"]] == made.ledger.groups


async def test_others_run(tmp_path: Path, url: str) -> None:
    """A row waits for more where another request runs, which may end soon; they are written together."""
    async with books(tmp_path, url=url) as made:
        await made.book.start()
        work = OtherWork()
        made.book.writer._gather = work.wait
        async with made.account("a") as other:
            first = asyncio.create_task(made.answer("b"))
            await work.begun.wait()
            other.see(END)
            asyncio.get_running_loop().call_soon(work.done.set)
        await first

        assert [["b", "a"]] == made.ledger.groups


async def test_what_is_written_is_let_go(tmp_path: Path, url: str) -> None:
    """A row that is in the ledger is not kept, and no error is made for whoever has waited for it."""
    made_errors: list[LedgerUnavailable] = []

    def tell(item: _writer.Item, error: LedgerUnavailable) -> None:
        made_errors.append(error)

    async with books(tmp_path, url=url) as made:
        await made.book.start()
        writer = made.book.writer
        writer._tell = tell  # type: ignore[method-assign]
        await made.answer()
        await writer.settle()
        assert [] == writer._writing
    assert [] == made_errors


async def test_a_client_that_has_left(tmp_path: Path, url: str) -> None:
    """What was made for a client that has left is recorded, and its end waits for nobody."""
    async with books(tmp_path, url=url) as made:
        await made.answer("first")
        made.ledger.goes_on.clear()
        with pytest.raises(asyncio.CancelledError):
            async with made.account("left") as account:
                account.see(HELLO)
                raise asyncio.CancelledError
        assert ["first"] == list(made.rows())
        made.ledger.goes_on.set()
    row = made.rows()["left"]
    assert (499, 3, 0, "") == (row["status"], row["completion"], row["prompt"], row["finish"])


async def test_what_we_have_ended(tmp_path: Path, url: str) -> None:
    """A request that was ended by its server, such as one of a revoked key, is recorded with the status that its client is told."""
    async with books(tmp_path, url=url) as made:
        with pytest.raises(asyncio.CancelledError):
            async with made.account("ended") as account:
                account.see(HELLO)
                account._context.ended = AuthenticationError("revoked")
                raise asyncio.CancelledError
    assert 401 == made.rows()["ended"]["status"]


async def test_what_was_not_begun(tmp_path: Path, url: str) -> None:
    """A request that no backend got has no row; one that its backend failed has."""
    async with books(tmp_path, url=url) as made:
        await made.answer()
        with pytest.raises(BackendError):
            async with made.account("failed"):
                raise BackendError("It broke off.")
        account = made.account("queued")
        account._context.leased_at = None
        with pytest.raises(asyncio.CancelledError):
            async with account:
                raise asyncio.CancelledError

        assert ["r", "failed"] == list(made.rows())
        assert 502 == made.rows()["failed"]["status"]
        assert 1 == len(made.journals())
    assert [] == made.journals()


@pytest.mark.parametrize("rule", ["required", "best_effort"])
async def test_it_cannot_be_written(
    tmp_path: Path, url: str, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is required, nothing is answered that has no row, and who ends is told so; else answers go on; all rows are there in the end."""
    async with books(tmp_path, rule, url=url) as made:
        running = made.account("running")
        async with running:
            running.see(HELLO)
            made.ledger.error = StoreUnavailable("away", reason="the disk is full")
            if rule == "required":
                with pytest.raises(LedgerUnavailable) as raised:
                    await made.answer("ends")
                assert "the disk is full" in raised.value.for_operator
                with pytest.raises(LedgerUnavailable) as raised:
                    await made.answer("refused")
                assert 5 == raised.value.retry_after_s
                assert 1 == caplog.text.count("ledger: cannot be written: the disk is full")
            else:
                await made.answer("ends")
                await made.answer("refused")
                assert 1 == caplog.text.count("ledger: cannot be written: the disk is full")
            assert (rule == "best_effort") == made.book.ready
            made.ledger.error = None
            await ready(made)
            assert made.book.ready
        await made.answer("after")
        statuses = {id: row["status"] for id, row in made.rows().items()}

    if rule == "required":
        assert {"ends": CORRECTED, "running": 200, "after": 200} == statuses
    else:
        assert {"ends": 200, "refused": 200, "running": 200, "after": 200} == statuses
    assert 1 == caplog.text.count("is written again")


@pytest.mark.parametrize("rule", ["required", "best_effort"])
async def test_a_commit_that_hangs(
    tmp_path: Path, url: str, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that hangs holds up an answer for a bounded time; it is told as failed where the ledger is required, and its row says so."""
    monkeypatch.setattr(_writer, "LIMIT_S", 0.05)
    async with books(tmp_path, rule, url=url) as made:
        await made.answer("first")
        made.ledger.goes_on.clear()
        if rule == "required":
            with pytest.raises(LedgerUnavailable, match="cannot be recorded"):
                await made.answer("hangs")
            with pytest.raises(LedgerUnavailable):
                await made.answer("refused")
        else:
            await made.answer("hangs")
        made.ledger.goes_on.set()
        await ready(made)
        await made.book.writer.settle()
        status = {id: row["status"] for id, row in made.rows().items()}

    assert {"first": 200, "hangs": CORRECTED if rule == "required" else 200} == status


async def test_a_row_that_no_database_takes(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A flaw in one row concerns no other that would share its transaction."""
    async with books(tmp_path, url=url) as made:
        await made.answer("first")
        made.ledger.error, made.ledger.bad = ValueError("no such thing"), "bad"
        made.ledger.goes_on.clear()
        made.ledger.begun.clear()
        some = [asyncio.create_task(made.answer("a"))]
        await made.ledger.begun.wait()
        some += [asyncio.create_task(made.answer(id)) for id in ("b", "bad", "c")]
        await asyncio.sleep(0)
        made.ledger.goes_on.set()
        ended = await asyncio.gather(*some, return_exceptions=True)

        assert [None, None, LedgerUnavailable, None] == [one and type(one) for one in ended]
        assert ["first", "a", "b", "c"] == list(made.rows())
        assert ".bad cannot be written" in caplog.text
        assert made.book.ready
    assert [] == made.journals()


async def test_too_many_wait(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that wait have a bound; what is beyond it stays in the journal, for the next server."""
    monkeypatch.setattr(_writer, "MOST", 3)
    async with books(tmp_path, "best_effort", url=url) as made:
        await made.answer("first")
        made.ledger.error = StoreUnavailable("away")
        for number in range(6):
            await made.answer(f"r{number}")
        made.ledger.error = None
        await ready(made)
    assert ["first", "r0", "r1", "r2"] == list(made.rows())

    async with books(tmp_path, "best_effort", url=url) as again:
        await again.book.start()
        rows = again.rows()
    assert {f"r{n}" for n in range(6)} | {"first"} == set(rows)
    assert ["", "", "", "stop"] == [
        rows[id]["finish"].replace(LOST, "") for id in ("r3", "r4", "r5", "r0")
    ]
    assert {4} == {row["completion"] for row in rows.values()}


async def test_dead_servers(tmp_path: Path, url: str) -> None:
    """What dead servers have left becomes rows at the start, with their cost, once; also where some are rows already."""
    price = (1.0, 0.25, 4.0)
    lost = LedgerRow(**LOST_ROW | {"id": "a.lost"})
    for name in ("one", "two"):  # the same request in both, as where the first recovery was cut off
        journal = Journal(tmp_path / "unilect.db", name)
        slot = journal.take(lost, price)
        slot.write(BACKEND, encode_backend("http://host"))
        slot.set_counts(10, 0, 5, 1.0, 2.0)
        journal.close()
    Journal(tmp_path / "unilect.db", "empty").close()

    for _ in range(2):
        async with books(tmp_path, None, known=None, url=url) as made:
            await made.book.start()
            await made.book.writer.settle()
            row = made.rows()["lost"]
            assert (499, LOST, 5, 30) == (
                row["status"],
                row["finish"],
                row["completion"],
                row["cost"],
            )
            assert [] == made.journals()


async def test_what_it_cost_when_it_came(tmp_path: Path, url: str) -> None:
    """What a dead server has left costs what its model cost when the request came, whatever it costs now, and whether it is known."""
    for price, cost in (((0.0, 0.0, 0.0), 0), ((1.0, 0.5, 1000.0), 5010)):
        lost = LedgerRow(**LOST_ROW | {"id": f"a.{cost}"})
        journal = Journal(tmp_path / "unilect.db", f"of{cost}")
        journal.take(lost, price).set_counts(10, 0, 5, 1.0, 2.0)
        journal.close()

    async with books(tmp_path, None, known=None, url=url) as made:
        await made.book.start()
        await made.book.writer.settle()
        costs = {name: row["cost"] for name, row in made.rows().items()}
    assert {"0": 0, "5010": 5010} == costs


async def test_what_nobody_got(tmp_path: Path, url: str) -> None:
    """An answer that is not streamed costs nothing where its server dies, since its client has got nothing of it."""
    async with books(tmp_path, url=url) as made:
        for streams in (True, False):
            account = made.account(f"{streams}", streams=streams)
            await account.__aenter__()
            account.see(HELLO)
    async with books(tmp_path, url=url) as again:
        await again.book.start()
        rows = again.rows()
    assert {"True": 3, "False": 0} == {id: row["completion"] for id, row in rows.items()}
    assert {"http://***@host/v1"} == {row["backend"] for row in rows.values()}


async def test_dead_servers_and_no_store(tmp_path: Path, url: str) -> None:
    """Where the database cannot be written at the start, what dead servers have left is written when it can be."""
    journal = Journal(tmp_path / "unilect.db", "one")
    journal.take(LedgerRow(id="a.lost", at=1_800_000_000.0)).set_counts(1, 0, 1, 1.0, 1.0)
    journal.close()
    async with books(tmp_path, url=url) as made:
        made.ledger.error = StoreUnavailable("away")
        await made.book.start()
        assert not made.book.ready
        assert 1 == len(made.journals())
        with pytest.raises(LedgerUnavailable):
            await made.answer()
        made.ledger.error = None
        await ready(made)
        await made.book.writer.settle()
        assert ["lost"] == list(made.rows())


async def test_another_server_dies(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server leaves that dies becomes rows on another one of the same store, which goes on; what lives is left alone."""
    monkeypatch.setattr(ledger, "LOOK_S", 0.02)
    async with books(tmp_path, url=url) as made:
        await made.answer("first")
        dying = Journal(tmp_path / "unilect.db", "dying")
        dying.take(LedgerRow(id="a.lost", at=1_800_000_000.0)).set_counts(1, 0, 1, 1.0, 1.0)
        living = made.account("living")
        async with living:
            living.see(HELLO)
            dying.close()
            async with asyncio.timeout(10):
                while "lost" not in made.rows():
                    await asyncio.sleep(0.01)
            living.see(END)
        assert {"first": 4, "lost": 1, "living": 4} == {
            id: row["completion"] for id, row in made.rows().items()
        }


async def test_before_what_a_dead_server_held_is_free(tmp_path: Path, url: str) -> None:
    """What a dead server has left is written also by a server that has recorded nothing yet, or is said to be missing."""
    async with books(tmp_path, None, known=Known(), url=url) as made:
        await made.book.start()
        assert made.book.state is State.UNUSED
        dying = Journal(tmp_path / "unilect.db", "dying")
        dying.take(LedgerRow(id="a.lost", at=1_800_000_000.0)).set_counts(1, 0, 1, 1.0, 1.0)
        dying.close()
        made.ledger.error = StoreUnavailable("away")
        for _ in range(2):
            with pytest.raises(LedgerUnavailable):
                await made.book.recover()
        made.ledger.error = None
        await ready(made)
        await made.book.recover()
        assert ["lost"] == list(made.rows())


class Known:
    """Keys of a store: whether there are any."""

    def __init__(self) -> None:
        self._has_keys = False
        self.on_look = lambda: None

    @property
    def has_keys(self) -> bool:
        """There are some."""
        return self._has_keys

    @has_keys.setter
    def has_keys(self, has_keys: bool) -> None:
        self._has_keys = has_keys
        self.on_look()


async def test_by_default(tmp_path: Path, url: str) -> None:
    """Without keys in the store nothing is opened; with keys requests are recorded, and those of a key with a budget have to be."""
    known = Known()
    async with books(tmp_path, None, known=known, url=url) as made:
        await made.book.start()
        await made.answer("none")
        assert (State.UNUSED, False, []) == (
            made.book.state,
            made.book.kept and url.startswith("sqlite"),  # a server of others may have rows
            list(tmp_path.iterdir()),
        )

        known.has_keys = True
        await made.answer("some")
        assert made.book.kept
        made.ledger.error = StoreUnavailable("away")
        await made.answer("more", {"requests_per_minute": 5})
        assert made.book.ready
        with pytest.raises(LedgerUnavailable):
            await made.answer("budget", {"tokens_per_day": 1000})
        assert not made.book.ready
        made.ledger.error = None
        await ready(made)
    assert ["some", "more"] == list(made.rows())


async def test_kept_for_a_budget(tmp_path: Path, url: str) -> None:
    """Requests are said to be recorded once one was, as it had a budget, also where the store has no keys."""
    async with books(tmp_path, None, known=Known(), url=url) as made:
        await made.book.start()
        assert url.startswith("postgresql") == made.book.kept
        await made.answer("budget", {"tokens_per_day": 1000})
        assert made.book.kept
    assert ["budget"] == list(made.rows())


async def test_kept_before_a_restart(tmp_path: Path, url: str) -> None:
    """Requests that an earlier server has recorded can be asked for at once, and nothing is opened until then; without a ledger they cannot."""
    async with books(tmp_path, None, known=Known(), url=url) as made:
        await made.answer("budget", {"tokens_per_day": 1000})
    async with books(tmp_path, None, known=Known(), url=url) as made:
        await made.book.start()
        assert (True, State.UNUSED) == (made.book.kept, made.book.state)
        assert [1] == [one.requests for one in await made.ledger.sums(("model",))]
    async with books(tmp_path, "off", url=url) as made:
        assert not made.book.kept


async def test_no_room_for_a_journal(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no room for the journal, a request that has to be recorded is refused, and another is answered."""
    (tmp_path / "a file").touch()
    for rule in ("required", "best_effort"):
        async with books(tmp_path, rule, url=url) as made:  # type: ignore[arg-type]
            await made.database.write(lambda connection: None)
            made.book._journals = lambda: tmp_path / "a file" / "no folder"
            if rule == "required":
                with pytest.raises(LedgerUnavailable):
                    await made.answer(rule)
            else:
                await made.answer(rule)
                await made.answer("another")
    assert ["best_effort", "another"] == list(made.rows())
    assert 1 == caplog.text.count("misses what runs")


async def test_the_end(tmp_path: Path, url: str) -> None:
    """A server that stops writes what waits; what cannot be written is left in the journal, and a request that still ends does no harm."""
    async with books(tmp_path, "best_effort", url=url) as made:
        await made.answer("first")
        late = made.account("late")
        await late.__aenter__()
        late.see(HELLO)
        await made.book.aclose()
        late.see(END)
        await late.__aexit__(None, None, None)
        assert 1 == len(made.journals())
    async with books(tmp_path, "best_effort", url=url) as again:
        await again.book.start()
        assert {"first": 4, "late": 3} == {
            id: row["completion"] for id, row in again.rows().items()
        }
