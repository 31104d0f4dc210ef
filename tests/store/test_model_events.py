"""Tests of unilect.store.model_events, on SQLite, in memory and on PostgreSQL: the last events of each model are kept, and each once."""

from support.common.clock import Clock
from unilect.store.database import Database
from unilect.store.model_events import ModelEventStore
from unilect.store.records import ModelEvent
from unilect.store.sql.model_events import KEPT


def event(at: float, model: str = "a", reason: str = "loaded in 1.9 s") -> ModelEvent:
    """An event."""
    return ModelEvent(model, at, "host/1", "loaded", reason, {"load_s": 1.9})


async def test_what_is_kept(database: Database, clock: Clock) -> None:
    """An event that is written twice is there once, as it was; a model has its last ones of a month, whatever others have."""
    store, now = ModelEventStore(database, True, clock), clock.now
    some = [event(now + number) for number in range(KEPT + 10)]
    await store.add([event(now - 40 * 86_400), event(now, "b")])
    await store.add(some[:20])
    await store.add(some)
    assert some[10:] == await store.read("a")
    assert [event(now, "b")] == await store.read("b")
    assert [] == await store.read("c")


async def test_texts_of_anybody(database: Database, clock: Clock) -> None:
    """A reason holds what a process has written: what no database takes is left out, and a long one is cut."""
    store = ModelEventStore(database, True, clock)
    await store.add([event(clock.now, "a\0\udc80", "x\0\udcff" + "é" * 300_000)])
    (found,) = await store.read("a\0\udc80")
    assert found.reason.startswith("x?éé")
    assert len(found.reason) < 3000
