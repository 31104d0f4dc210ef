"""Tests of unilect.store.store."""

from pathlib import Path

import pytest

from unilect.accounting.metrics import Metrics
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.models.registry import Registry
from unilect.server.app import SITE, Shared, create_app
from unilect.store.records import StoredResponse
from unilect.store.store import Store


async def keep(store: Store, id: str) -> None:
    """Store a response."""
    assert store.answers is not None
    await store.answers.save(StoredResponse(id, "me", "completed", b"{}", [], [], None, None, 0.0))


async def is_there(store: Store, id: str) -> bool:
    """Whether a response is stored."""
    assert store.answers is not None
    return await store.answers.get("me", id) is not None


async def test_the_default_store(tmp_path: Path) -> None:
    """By default the store is a file in the user's data folder, which is made on the first use and found by the next server."""
    environment = {"HOME": str(tmp_path)}
    store = Store(StoreConfig(), environment)
    assert [] == list(tmp_path.iterdir())
    await keep(store, "r")
    await store.aclose()
    again = Store(StoreConfig(), environment)

    assert await is_there(again, "r")
    assert (tmp_path / ".local/share/unilect/unilect.db").is_file()
    await again.aclose()


async def test_a_machine_without_a_home(caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no folder for a user's data the store is in memory, which is told once."""
    store = Store(StoreConfig(), {})
    await keep(store, "r")

    assert await is_there(store, "r")
    assert ["Responses are stored in memory"] == [
        record.getMessage().partition(",")[0] for record in caplog.records
    ]
    await store.aclose()


async def test_an_end_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is closed also where something before it fails to end, and that is told."""
    store = Store(StoreConfig(url="sqlite://"), {})
    await keep(store, "r")

    async def fail() -> None:
        raise OSError("it does not end")

    monkeypatch.setattr(store.ledger, "aclose", fail)
    with pytest.raises(OSError, match="does not end"):
        await store.aclose()
    with pytest.raises(StoreUnavailable):
        await keep(store, "s")


async def test_the_limits(tmp_path: Path) -> None:
    """The table's limits are those of the store."""
    store = Store(StoreConfig(url="sqlite://", max_count=10), {})
    for number in range(20):
        await keep(store, str(number))
    assert store.answers is not None
    await store.answers.sweep()

    assert [False, True] == [await is_there(store, id) for id in ("0", "19")]
    await store.aclose()


async def test_nothing_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    """With `responses = false` there is no place for responses, and nothing to be told."""
    store = Store(StoreConfig(responses=False), {})

    assert store.answers is None
    assert [] == caplog.records
    await store.aclose()


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    """A file in a folder that does not exist is refused at start."""
    with pytest.raises(ConfigError, match=r"store.url: the folder .*none does not exist. Make it"):
        Store(StoreConfig(url=f"sqlite:///{tmp_path / 'none' / 'x.db'}"), {})


async def test_the_store_of_an_application(tmp_path: Path) -> None:
    """An application has the store that it is given, which its owner closes, else one in memory."""
    store = Store(StoreConfig(url=f"sqlite:///{tmp_path / 'x.db'}"), {})
    app = create_app(Config(), Shared(Registry([]), Metrics(), store=store))
    await keep(store, "r")
    app.freeze()
    await app.cleanup()

    assert store.answers is app[SITE].answers
    assert await is_there(store, "r")
    await store.aclose()
    own = create_app(Config(), Shared(Registry([]), Metrics()))
    answers = own[SITE].answers
    assert answers is not None
    assert await answers.get("me", "r") is None
    own.freeze()
    await own.cleanup()
    with pytest.raises(StoreUnavailable):
        await answers.get("me", "r")
    off = create_app(Config(store=StoreConfig(responses=False)), Shared(Registry([]), Metrics()))
    assert off[SITE].answers is None


async def test_where_journals_are(tmp_path: Path) -> None:
    """Journals are beside an SQLite file; those of a server are in the folder of the user's data, by its address and not by its password."""
    home = {"HOME": str(tmp_path)}
    data = tmp_path / ".local/share/unilect"

    def place(url: str | None, environment: dict[str, str]) -> Path | None:
        return Store(StoreConfig(url=url), environment).journals

    assert tmp_path / "a.db" == place(f"sqlite:///{tmp_path / 'a.db'}", {})
    assert data / "unilect.db" == place(None, home)
    assert [None, None] == [place("sqlite://", home), place("postgresql://me:a@host/db", {})]
    first, same, other = (
        place(f"postgresql://me:{rest}", home)
        for rest in ("a@host/db", "b@host/db", "a@host/other")
    )
    assert first is not None
    assert first.parent == data
    assert (True, False) == (first == same, first == other)
