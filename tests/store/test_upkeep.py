"""Tests of unilect.store.upkeep, on SQLite and on PostgreSQL."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore
from unilect.store.sql.schema import VERSION
from unilect.store.upkeep import Upkeep


async def filled(url: str) -> Database:
    """A database with a response and a key."""
    database = Database(url)
    answers = ResponseStore(database)
    body = b'{"id":"r"}'
    await answers.save(
        StoredResponse("r", "me", "completed", body, [Item("i", b"{}")], [], None, None, 1e9)
    )
    await answers.aclose()
    await KeyStore(database).create("ann", "AAAA", b"digest")
    return database


def upkeep(url: str) -> Upkeep:
    """The store at a URL."""
    return Upkeep(StoreConfig(url=url), {})


async def test_inspect(url: str) -> None:
    """A store says what it holds while a server uses it."""
    database = await filled(url)
    found = await upkeep(url).inspect()

    assert (VERSION, VERSION, []) == (found.version, found.newest, found.problems)
    counts = {"responses": 1, "conversations": 0, "API keys": 1, "requests in the ledger": 0}
    counts["events of models"] = 0
    assert counts == found.counts
    assert (found.size_bytes is None) == url.startswith("postgresql")
    assert "secret" not in found.place
    await database.aclose()


async def test_migrate(url: str) -> None:
    """Tables are made where there are none, and nothing is done where they are up to date."""
    assert ("", VERSION) == await upkeep(url).migrate()
    assert (VERSION, VERSION) == await upkeep(url).migrate()
    assert 0 == (await upkeep(url).inspect()).counts["responses"]


async def test_a_copy(tmp_path: Path) -> None:
    """A copy of a file that is in use is one file, for its user only, with all that was confirmed; it can be served from."""
    url, target = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "copy.db"
    database = await filled(url)
    size = upkeep(url).copy_to(target)

    assert {"a.db", "a.db-shm", "a.db-wal", "a.db.lock", "copy.db"} == {one.name for one in tmp_path.iterdir()}  # fmt: skip
    assert (size, 0o600) == (target.stat().st_size, stat.S_IMODE(target.stat().st_mode))
    await database.aclose()
    found = await upkeep(f"sqlite:///{target}").inspect()
    assert (1, 1, []) == (found.counts["responses"], found.counts["API keys"], found.problems)
    copied = Database(f"sqlite:///{target}")
    answers = ResponseStore(copied)
    assert await answers.get("me", "r") is not None
    await answers.aclose()
    await copied.aclose()


async def test_a_copy_that_cannot_be_made(tmp_path: Path) -> None:
    """A file that is there is not written over; what is missing, or no folder, is told with its path."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with pytest.raises(ConfigError, match=r"a\.db: there is no such file; nothing has been stored"):
        upkeep(url).copy_to(tmp_path / "copy.db")
    await (await filled(url)).aclose()
    other = tmp_path / "other"
    other.write_text("mine")
    with pytest.raises(ConfigError, match="other: exists already"):
        upkeep(url).copy_to(other)
    assert "mine" == other.read_text()
    with pytest.raises(ConfigError, match="nowhere/copy: cannot be written"):
        upkeep(url).copy_to(tmp_path / "nowhere" / "copy")


@pytest.mark.heavy
async def test_a_copy_of_postgresql(new_url: Callable[[str], str]) -> None:
    """PostgreSQL is copied by its own programs, and the message says how."""
    with pytest.raises(ConfigError, match="pg_dump --format=custom"):
        upkeep(new_url("postgresql")).copy_to(Path("copy"))


async def test_a_damaged_file(tmp_path: Path) -> None:
    """Damage is told, of a file that is no database and of one with a damaged page."""
    path = tmp_path / "a.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match=r"a\.db: is not an SQLite database; name another file"):
        await upkeep(f"sqlite:///{path}").inspect()
    with pytest.raises(ConfigError, match=r"a\.db: is not an SQLite database; name another file"):
        upkeep(f"sqlite:///{path}").copy_to(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    path.unlink()
    await (await filled(f"sqlite:///{path}")).aclose()
    whole = bytearray(path.read_bytes())
    for at in range(4096, len(whole), 4096):
        whole[at + 100 : at + 2000] = b"\xff" * 1900
    path.write_bytes(whole)
    try:
        problems = (await upkeep(f"sqlite:///{path}").inspect()).problems
    except ConfigError as error:
        problems = [str(error)]
    assert problems


@pytest.mark.parametrize("url", ["sqlite://", None])
def test_in_memory(url: str | None) -> None:
    """A store in memory has no upkeep."""
    with pytest.raises(ConfigError, match="it is in memory"):
        Upkeep(StoreConfig(url=url), {})


async def test_a_server_that_is_away() -> None:
    """A database server that cannot be reached is told, without the password."""
    with pytest.raises(ConfigError, match="cannot be reached") as raised:
        await upkeep("postgresql://me:secret-word@127.0.0.1:1/x").inspect()
    assert "secret-word" not in str(raised.value)
