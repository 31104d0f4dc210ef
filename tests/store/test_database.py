"""Tests of unilect.store.database: threads, files, processes that die, and servers that go away."""

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from support.backends.loopback import free_port
from support.servers.postgresql import PostgreSQL
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore
from unilect.store.sql.connection import Connection

ME = "me"
CHILD = [sys.executable, str(Path(__file__).with_name("store_child.py"))]


@asynccontextmanager
async def opened(url: str, timeout_s: float = 5.0) -> AsyncIterator[ResponseStore]:
    """A store at a URL, until the block ends."""
    database = Database(url, timeout_s=timeout_s)
    answers = ResponseStore(database)
    try:
        yield answers
    finally:
        await answers.aclose()
        await database.aclose()


def stored(id: str, size: int = 0) -> StoredResponse:
    """A response of a size."""
    return StoredResponse(id, ME, "completed", b"x" * size, [], [], None, None, 0.0)


def one(connection: Connection) -> object:
    """The smallest question."""
    return connection.scalar("SELECT 1")


async def reason(answers: ResponseStore) -> str:
    """What the operator is told of a store that cannot be used."""
    with pytest.raises(StoreUnavailable) as error:
        await answers.save(stored("r"))
    assert "store: false" in error.value.message
    return error.value.for_operator


async def test_a_transaction(database: Database) -> None:
    """A function runs in a thread, in a transaction that is undone where it raises."""

    def fail(connection: Connection) -> None:
        connection.run("INSERT INTO instances VALUES ('a', 1)")
        raise KeyError("oops")

    def count(connection: Connection) -> object:
        return connection.scalar("SELECT count(*) FROM instances")

    assert 1 == await database.write(one)
    with pytest.raises(KeyError, match="oops"):
        await database.write(fail)
    assert 0 == await database.write(count)


async def test_who_reads_and_who_writes(url: str) -> None:
    """What reads for long holds up nobody who writes, nor does what writes hold up those who read: they see what was committed."""
    database = Database(url)
    goes_on, begun = threading.Event(), threading.Event()

    def count(connection: Connection) -> object:
        return connection.scalar("SELECT count(*) FROM instances")

    def count_slowly(connection: Connection) -> object:
        before = count(connection)
        begun.set()
        assert goes_on.wait(20)
        assert before == count(connection)
        return before

    def add(connection: Connection) -> None:
        connection.run("INSERT INTO instances VALUES (?, 1)", os.urandom(8).hex())

    def add_slowly(connection: Connection) -> None:
        add(connection)
        count_slowly(connection)

    assert 0 == await database.read(count)
    reading = asyncio.ensure_future(database.read(count_slowly))
    await asyncio.to_thread(begun.wait, 20)
    await database.write(add)
    assert not reading.done()
    assert 1 == await database.read(count)
    goes_on.set()
    assert 0 == await reading
    goes_on.clear()
    begun.clear()
    writing = asyncio.ensure_future(database.write(add_slowly))
    await asyncio.to_thread(begun.wait, 20)
    assert 1 == await database.read(count)
    assert not writing.done()
    goes_on.set()
    await writing
    assert 2 == await database.read(count)
    await database.aclose()


async def test_reading_writes_nothing(url: str) -> None:
    """What reads cannot write, and the next one is as it was before."""
    database = Database(url)
    with pytest.raises(StoreUnavailable):
        await database.read(lambda of: of.run("INSERT INTO instances VALUES ('a', 1)"))
    assert 1 == await database.read(one)
    assert [] == await database.read(lambda of: of.rows("SELECT * FROM instances"))
    await database.aclose()


async def test_a_statement_that_fails(database: Database) -> None:
    """An error of a statement is the driver's, names no value, and leaves the next transaction as it was."""
    row = (ME, "r", "a secret")

    def wrong(connection: Connection) -> None:
        connection.run_many(
            "INSERT INTO response_items (owner, response, id) VALUES (?, ?, ?)", [row]
        )

    for _ in range(2):  # there is no such response
        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)) as error:
            await database.write(wrong)
        assert "secret" not in str(error.value)
        assert 1 == await database.write(one)


async def test_many_at_once(database: Database) -> None:
    """Concurrent changes of one conversation all arrive, each once."""
    answers = ResponseStore(database)
    conversation = await answers.create_conversation(ME, b"{}")
    await asyncio.gather(
        *(answers.add_items(ME, conversation, [Item(str(n), b"x")]) for n in range(40)),
        *(answers.save(stored(f"r{n}")) for n in range(40)),
    )
    page = await answers.list_items(ME, conversation, limit=100)

    assert page is not None
    assert sorted(map(str, range(40))) == sorted(item.id for item in page[0])
    await answers.aclose()


async def test_the_same_row_at_once(url: str) -> None:
    """Of concurrent changes of the same response, server and conversation each is made, and none fails."""
    async with opened(url) as one, opened(url) as other:
        for _ in range(5):
            await asyncio.gather(
                *(answers.touch("server") for answers in (one, other)),
                *(answers.save(stored("r", size)) for answers in (one, other) for size in (1, 2)),
                *(answers.create_conversation(ME, b"{}", id="c") for answers in (one, other)),
            )
            assert await one.delete(ME, "r")
            assert await other.delete_conversation(ME, "c")
            assert not await one.delete(ME, "r")


async def test_a_caller_that_leaves(database: Database) -> None:
    """A caller that is cancelled leaves a database that can be used, and closed."""
    answers = ResponseStore(database)
    await answers.save(stored("r"))
    leaving = [asyncio.create_task(answers.save(stored(str(n), 10_000))) for n in range(20)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)

    assert stored("r") == await answers.get(ME, "r")
    await answers.aclose()


async def test_a_closed_database(database: Database) -> None:
    """A database that was closed refuses, and may be closed again."""
    await database.write(one)
    await database.aclose()
    with pytest.raises(StoreUnavailable, match="stopping"):
        await database.write(one)
    await database.aclose()


async def test_it_is_there_after_a_restart(url: str) -> None:
    """What was stored is there when the database is opened again, and its version is not made anew."""
    async with opened(url) as answers:
        await answers.save(stored("r"))
        conversation = await answers.create_conversation(ME, b"{}", [Item("a", b"a")])
    for _ in range(2):
        async with opened(url) as answers:
            assert stored("r") == await answers.get(ME, "r")
            assert Item("a", b"a") == await answers.item(ME, conversation, "a")


@pytest.mark.parametrize("size", [10, pytest.param(1_000_000, marks=pytest.mark.heavy)])
async def test_a_process_that_is_killed(url: str, size: int) -> None:
    """What a process had confirmed before kill -9 is there, whole, and of what it was storing then nothing or all."""
    for kill_after in (1, 2, 5, 9):
        prefix = f"k{kill_after}-"
        async with opened(url) as answers:
            await answers.create_conversation(ME, b"{}", id=prefix)
        child = subprocess.Popen([*CHILD, url, prefix, "0", str(size)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        confirmed = [child.stdout.readline().decode().strip() for _ in range(kill_after)]
        child.kill()
        confirmed += child.communicate()[0].decode().split()
        async with opened(url, timeout_s=30) as answers:
            following = f"{prefix}{len(confirmed)}"
            last = await answers.get(ME, following)
            chain = [*confirmed, following] if last is not None else confirmed
            found = await answers.chain(ME, chain[-1]) or []
            assert chain == [response.id for response in found]
            sizes = {len(item.body) for response in found for item in response.input}
            assert sizes == {len(id) * (size // 10 + 1) for id in chain}
            page = await answers.list_items(ME, prefix, limit=1000, newest_first=False)
            expected = [item.id for response in found for item in response.input]
            assert page is not None
            assert expected[: len(page[0])] == [item.id for item in page[0]]
            assert page[1] or len(expected) == len(page[0])


@pytest.mark.heavy
async def test_several_processes(url: str) -> None:
    """Processes that open a new database at the same moment make its tables once, and none loses what another stores."""
    children = [
        subprocess.Popen([*CHILD, url, f"p{n}-", "20", "1000"], stdout=subprocess.PIPE)
        for n in range(3)
    ]
    assert [0, 0, 0] == [child.wait() for child in children]
    async with opened(url) as answers:
        for n, child in enumerate(children):
            assert child.stdout is not None
            confirmed = child.stdout.read().decode().split()
            child.stdout.close()
            chain = await answers.chain(ME, f"p{n}-19")
            assert confirmed == [response.id for response in chain or []]


async def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    """A file that cannot be made is told to the operator with its path, and used as soon as it can be made."""
    folder = tmp_path / "none"
    async with opened(f"sqlite:///{folder / 'x.db'}") as answers:
        told = await reason(answers)
        assert f"{folder / 'x.db'}" in told
        assert "Check that the folder exists" in told
        folder.mkdir()
        await answers.save(stored("r"))
        assert stored("r") == await answers.get(ME, "r")


async def test_a_file_of_its_user_only(tmp_path: Path) -> None:
    """The file and all that SQLite makes beside it are readable for their user only; so is the folder of the default place."""
    path = tmp_path / "a" / "b" / "x.db"
    database = Database(f"sqlite:///{path}", is_default=True)
    await database.write(one)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    folders = [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)]
    await database.aclose()

    assert {"x.db", "x.db-wal", "x.db-shm", "x.db.lock"} == set(modes)
    assert {0o600} == set(modes.values())
    assert [0o700, 0o700] == folders


async def test_a_default_place_that_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the default file cannot be made, memory is used, and the log tells so once."""
    (tmp_path / "file").touch()
    database = Database(f"sqlite:///{tmp_path / 'file' / 'x.db'}", is_default=True)
    answers = ResponseStore(database)
    await answers.save(stored("r"))
    assert stored("r") == await answers.get(ME, "r")
    await answers.aclose()
    await database.aclose()

    (record,) = caplog.records
    assert "stored in memory" in record.getMessage()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """A file that is something else is told, and left as it is."""
    path = tmp_path / "x.db"
    path.write_text("something else" * 1000)
    async with opened(f"sqlite:///{path}") as answers:
        assert f"{path}: is not an SQLite database" in await reason(answers)
    assert "something else" * 1000 == path.read_text()


async def test_a_file_that_another_program_locks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that another program keeps locked is told, to the log once; it is read all the same, and written again when it is free."""
    path = tmp_path / "x.db"
    async with opened(f"sqlite:///{path}", timeout_s=0.05) as answers:
        await answers.save(stored("r"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert "keeps it locked" in await reason(answers)
        assert stored("r") == await answers.get(ME, "r")
        assert "keeps it locked" in await reason(answers)
        assert not answers._database.works
        other.close()
        await answers.save(stored("r"))
    first, second = (record.getMessage() for record in caplog.records)
    assert f"store: {path}: another program keeps it locked; close that" in first
    assert f"store: sqlite:///{path} works again" == second


async def test_a_file_that_another_server_keeps(tmp_path: Path) -> None:
    """A file on which another process of ours has stopped in mid of a transaction is told, and used when that ends."""
    path = tmp_path / "x.db"
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    async with opened(f"sqlite:///{path}", timeout_s=0.05) as answers:
        await answers.save(stored("r"))
        child = subprocess.Popen(
            [sys.executable, "-c", hold, f"{path}.lock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        assert "another process keeps it locked" in await reason(answers)
        child.communicate(b"\n")
        await answers.save(stored("r"))


async def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    """A file that is deleted or replaced while the server runs is opened anew: nothing is stored where nobody finds it."""
    path = tmp_path / "x.db"
    async with opened(f"sqlite:///{path}") as answers:
        await answers.save(stored("r"))
        for file in tmp_path.iterdir():
            file.unlink()
        assert await answers.get(ME, "r") is None
        await answers.save(stored("s"))
    async with opened(f"sqlite:///{path}") as answers:
        assert stored("s") == await answers.get(ME, "s")


async def test_a_full_disk(tmp_path: Path) -> None:
    """On a full disk storing fails in words, what was stored can be read, and storing works again when there is room."""
    path = tmp_path / "x.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with opened(f"sqlite:///{path}") as answers:
        await answers.save(stored("before"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            with pytest.raises(StoreUnavailable) as error:
                await answers.save(stored("large", 1_000_000))
            assert "full" in error.value.for_operator
            assert stored("before") == await answers.get(ME, "before")
            assert await answers.get(ME, "large") is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await answers.save(stored("large", 1_000_000))
    async with opened(f"sqlite:///{path}") as answers:
        assert stored("large", 1_000_000) == await answers.get(ME, "large")


async def test_the_tables_of_a_newer_version(url: str) -> None:
    """Tables of a newer version of unilect are left alone, and told."""
    database = Database(url)
    await database.write(lambda one: one.run("UPDATE unilect_version SET version_num = 'x'"))
    await database.aclose()
    async with opened(url) as answers:
        assert "Update unilect" in await reason(answers)
    database = Database(url)
    with pytest.raises(StoreUnavailable):
        await database.write(one)
    await database.aclose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:pw@host/db", "is not the URL of a database"),
        ("unilect.db", "is not the URL of a database"),
        ("sqlite:", "is not the URL of a database"),
        ("sqlite:/x.db", "is not the URL of a database"),
        ("sqlite://x.db", "is not the URL of a database"),
        ("sqlite:///folder/", "is not the URL of a database"),
        ("sqlite:///x.db?mode=ro", "is not the URL of a database"),
        ("postgresql:me:pw@host", "is not the URL of a database"),
        ("postgresql://me:pw pw@host/db", "is not the URL of a database"),
        ("postgresql://me:pw@host:port/db", "is not the URL of a database"),
        ("postgresql://me:p/w@host:1/db", "is not the URL of a database"),
        ("postgresql://me:pw@[host/db", "is not the URL of a database"),
        ("", "is not the URL of a database"),
    ],
)
def test_urls_of_no_database(url: str, said: str) -> None:
    """What is no URL of a database that can be used is refused at once, without its password."""
    with pytest.raises(ConfigError, match=said) as error:
        Database(url)
    assert "pw" not in str(error.value)


def test_postgresql_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostgreSQL URL says what to install where the driver is missing."""
    monkeypatch.setattr("unilect.config.store.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install it with `pip install .*\[postgresql\]"):
        Database("postgresql://me:pw@host/db")


async def test_a_server_that_is_not_there() -> None:
    """A PostgreSQL server that cannot be reached is told with its address and without the password."""
    port = free_port()
    async with opened(f"postgresql://me:hush-hush@127.0.0.1:{port}/db") as answers:
        told = await reason(answers)
    assert "cannot be reached" in told
    assert str(port) in told
    assert "hush" not in told


@pytest.mark.heavy
async def test_a_wrong_password(server_of_postgresql: PostgreSQL) -> None:
    """A PostgreSQL server that does not accept the password is told without it, and so is a database that is missing."""
    server = server_of_postgresql
    async with opened(server.url(password="hush-hush")) as answers:
        told = await reason(answers)
    assert "password" in told
    assert "hush" not in told
    async with opened(server.url("nosuch")) as answers:
        told = await reason(answers)
    assert "nosuch" in told
    assert server.password not in told


@pytest.mark.heavy
async def test_an_option_that_no_server_has(server_of_postgresql: PostgreSQL) -> None:
    """A PostgreSQL URL with an option that there is not is told."""
    async with opened(f"{server_of_postgresql.url()}?colour=red") as answers:
        told = await reason(answers)
    assert "cannot be opened" in told
    assert "colour" in told


@pytest.mark.heavy
async def test_a_server_that_restarts(server_of_postgresql: PostgreSQL) -> None:
    """While a PostgreSQL server is down the store says so, and it goes on when the server is back."""
    server = server_of_postgresql
    url = server.new_database()
    async with opened(url) as answers:
        await answers.save(stored("r"))
        server.stop()
        assert "store:" in await reason(answers)
        server.start()
        assert stored("r") == await answers.get(ME, "r")
        await answers.save(stored("s"))


@pytest.mark.heavy
async def test_a_lock_on_a_server(server_of_postgresql: PostgreSQL) -> None:
    """A row that another program keeps locked on a PostgreSQL server is not waited for without end."""
    url = server_of_postgresql.new_database()
    async with opened(url, timeout_s=0.2) as answers:
        await answers.save(stored("r"))
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM responses FOR UPDATE")
            assert "store:" in await reason(answers)
        await answers.save(stored("r"))


@pytest.mark.heavy
async def test_a_transaction_that_is_undone_again_and_again(
    server_of_postgresql: PostgreSQL,
) -> None:
    """What PostgreSQL undoes at every try, in favour of others, is told as a store that cannot store now."""
    url = server_of_postgresql.new_database()
    async with opened(url) as answers:
        await answers.save(stored("r"))
        with psycopg.connect(url) as other:
            other.execute(
                "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$"
            )
            other.execute("CREATE TRIGGER undo BEFORE INSERT OR UPDATE ON responses EXECUTE FUNCTION undo()")  # fmt: skip
        assert "again and again" in await reason(answers)


def test_nothing_is_imported_before_it_is_used() -> None:
    """The import of the server brings no driver of a database."""
    code = (
        "import sys, unilect.server.listener, unilect.store.store as s, unilect.config.server as c;"
        "s.Store(c.StoreConfig(), {'HOME': '/nonexistent'});"
        "print(*{'psycopg', 'sqlite3'} & {*sys.modules})"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )

    assert (0, "", "\n") == (done.returncode, done.stderr, done.stdout)
