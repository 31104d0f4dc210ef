"""
A database by URL: SQLite or PostgreSQL, one transaction a call, off the event loop.

There are two ways to use it, `write` and `read`, each with threads and connections of its own: what reads for long holds up nothing that
writes, and the other way round. SQLite reads what was committed last beside its one writer (WAL); a database in memory has one connection
for both.

Nothing is opened, and SQLAlchemy is not imported, before the first transaction: a server that stores nothing pays nothing.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html, https://docs.sqlalchemy.org/en/21/core/connections.html
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unilect.config.store import check_url, sqlite_path
from unilect.errors import StoreUnavailable
from unilect.redact import Secrets, redacted, secrets_of
from unilect.store import _failures
from unilect.store._file import SqliteFile

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger("unilect")
_Result = TypeVar("_Result")
_POSTGRESQL_WRITERS = 4
_READERS = 4
_LONG_READERS = 2
#: PostgreSQL's codes of what another transaction has caused, and a second try may not meet: serialization_failure,
#: deadlock_detected, unique_violation (both have made the same row).
_AGAIN = ("40001", "40P01", "23505")
ABSENT = ()
_TRIES = 5  # of a transaction that PostgreSQL undoes in favour of another


class Database:
    """
    A database.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory, gone with this object) or `postgresql://...`.
        timeout_s: How long another's lock, or the server, is waited for.
        is_default: Nobody has asked for this SQLite file: its folder is made, for this user only, and where that fails, there is a
            database in memory instead, and a warning in the log.
        is_lasting: It is that of a command: no database in memory takes its place, and the command says itself what is wrong.

    Raises:
        ConfigError: It is no such URL, or what it needs is not installed. The password is not told.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        is_default: bool = False,
        is_lasting: bool = False,
    ) -> None:
        check_url(url)
        self._url, self._timeout_s = url, timeout_s
        self._secrets = Secrets(secrets_of(url))
        path = sqlite_path(url)
        self._file = SqliteFile(Path(path), timeout_s) if path else None
        self._is_default, self._is_lasting = is_default, is_lasting
        self._is_sqlite = path is not None
        # SQLite has one writer, and then one connection is the fastest; memory is one connection's
        writers = 1 if self._is_sqlite else _POSTGRESQL_WRITERS
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix="unilect-store")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="unilect-store-read")
        self._long_readers = ThreadPoolExecutor(_LONG_READERS, thread_name_prefix="unilect-store-report")  # fmt: skip
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._read_engine: Engine | None = None  # None where reads go through the writer
        self._connection: Connection | None = None  # the one to SQLite, while all goes well
        self._closed = False
        self._wrong = ""  # why it cannot be used, as the log has it
        self._cannot_write = False  # a file that cannot be written may be one that can be read
        self.failures = 0

    @property
    def name(self) -> str:
        """The URL as it may be shown."""
        return redacted(self._url)

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; None for one in memory, and for a server."""
        return None if self._file is None else self._file.path.absolute()

    @property
    def is_server(self) -> bool:
        """Whether it is a PostgreSQL server's."""
        return not self._is_sqlite

    async def write(self, function: "Callable[[Connection], _Result]") -> _Result:
        """
        Call a function in a thread, with a connection in a transaction, and return its result.

        The transaction is committed, and on SQLite on the disk, when this returns; it is undone where the function raises. It may be
        called again where a server undoes it. A caller that is cancelled does not undo what has begun.

        Raises:
            StoreUnavailable: The database cannot be opened, read or written now; the next call tries again. The log tells why, once.
        """
        return await self.begin(function)

    async def read(
        self, function: "Callable[[Connection], _Result]", *, long: bool = False
    ) -> _Result:
        """
        As `write`, with a connection that cannot write; all that the function reads is of one moment, with all that was committed before.

        It waits for nobody who writes, and may be called again as there.

        Args:
            long: It may take seconds: only a few such run at once, and other reads wait for none of them.
        """
        threads = self._long_readers if long else self._readers
        return await self._submit(threads, self._read, function)

    def begin(
        self,
        function: "Callable[[Connection], _Result]",
        statement: "Callable[[Connection], _Result | None] | None" = None,
    ) -> "asyncio.Future[_Result]":
        """
        As `write`, for who waits without a task.

        Args:
            statement: Called first on SQLite, without a transaction: it may run one statement, which is a transaction by itself and costs a third of
                one that is begun and committed. Where it returns None, the function is called.
        """
        return self._submit(self._writers, self._transaction, function, statement)

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        work: "Callable[..., _Result]",
        *functions: object,
    ) -> "asyncio.Future[_Result]":
        """Do a piece of work in one of some threads."""
        loop = asyncio.get_running_loop()
        end: asyncio.Future[_Result] = loop.create_future()
        if self._closed:
            end.set_exception(
                StoreUnavailable("The server is stopping. Try again soon.", retry_after_s=5)
            )
            return end
        # `run_in_executor` takes twice as long to bring a result back
        begun: Future[_Result] = threads.submit(work, *functions)
        writes = threads is self._writers
        begun.add_done_callback(partial(self._hand_over, loop, end, writes))
        end.add_done_callback(partial(_leave, begun))
        return end

    @property
    def works(self) -> bool:
        """True if the last use succeeded, and the last one that wrote."""
        return not self._wrong

    def mark(self) -> object | None:
        """
        What is another value after the database was changed, by whatever process, and costs nothing to look at.

        Returns:
            None where the database has to be asked, and `ABSENT` where there is none yet.
        """
        if self._file is not None:
            try:
                return self._file.mark() or ABSENT
            except OSError:  # of a default file, memory takes the place
                return ABSENT if self._is_default else None
        return ABSENT if self._is_sqlite and self._engine is None else None

    async def aclose(self) -> None:
        """End what runs, and close the connections. Idempotent."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _hand_over(
        self,
        loop: asyncio.AbstractEventLoop,
        end: "asyncio.Future[_Result]",
        writes: bool,
        work: "Future[_Result]",
    ) -> None:
        """Bring what has become of a piece of work from its thread to the loop where it is waited for."""
        # the loop may be closed: a server that stops waits for its threads after it
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._settle, end, writes, work)

    def _settle(
        self, end: "asyncio.Future[_Result]", writes: bool, work: "Future[_Result]"
    ) -> None:
        if end.done():  # who waited has left
            return
        error = work.exception()
        if error is None:
            self._cannot_write = self._cannot_write and not writes
            if not self._cannot_write:
                self._log("")
            end.set_result(work.result())
            return
        if isinstance(error, StoreUnavailable):
            self.failures += 1
            self._cannot_write = self._cannot_write or writes
            self._log(error.for_operator)
        end.set_exception(error)

    def _log(self, wrong: str) -> None:
        """The log tells why the database cannot be used, and that it can be used again, once each."""
        if wrong != self._wrong and not self._is_lasting:
            self._wrong = wrong
            log.warning("%s", wrong) if wrong else log.warning("store: %s works again", self.name)

    def _transaction(
        self,
        function: "Callable[[Connection], _Result]",
        statement: "Callable[[Connection], _Result | None] | None" = None,
    ) -> _Result:
        def once() -> _Result:
            self._prepare()
            with self._alone():
                engine = self._opened()
                if statement is not None and self._is_sqlite:
                    found = self._stated(engine, statement)
                    if found is not None:
                        return found
                return self._transacted(engine, function)

        return self._tried(once)

    def _read(self, function: "Callable[[Connection], _Result]") -> _Result:
        if not self._is_open():  # whoever writes makes the file and its tables
            self._writers.submit(self._transaction, _use_nothing).result()
        engine = self._read_engine
        if engine is None:
            return self._writers.submit(self._transaction, function).result()

        def once() -> _Result:
            with engine.begin() as connection:
                return function(connection)

        return self._tried(once)

    def _is_open(self) -> bool:
        """True if the database is open, and its file still the one that was opened."""
        with self._opening:
            return self._engine is not None and not (self._file and self._file.is_replaced())

    def _tried(self, once: "Callable[[], _Result]") -> _Result:
        """Do something, and again where a server has undone it; errors of the library are translated."""
        # the import is here, in the thread: it takes 0.2 s
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        for left in reversed(range(_TRIES)):
            try:
                return once()
            except DBAPIError as error:
                if not left or getattr(error.orig, "sqlstate", "") not in _AGAIN:
                    raise self._told(error) from error
            except SQLAlchemyError as error:
                raise self._told(error) from error
        raise AssertionError("the last try returns or raises")

    def _transacted(self, engine: "Engine", function: "Callable[[Connection], _Result]") -> _Result:
        """What a function returns that is called in a transaction."""
        if not self._is_sqlite:
            with engine.begin() as connection:
                return function(connection)
        connection = self._connected(engine)
        try:
            with connection.begin():
                return function(connection)
        except BaseException:
            self._let_go()  # the pool undoes what may be left of it
            raise

    def _stated(
        self, engine: "Engine", statement: "Callable[[Connection], _Result | None]"
    ) -> _Result | None:
        """What a function returns that runs one statement of SQLite, without a transaction around it."""
        connection = self._connected(engine)
        try:
            return statement(connection)
        except BaseException:
            self._let_go()
            raise

    def _connected(self, engine: "Engine") -> "Connection":
        # one thread has the one connection: to take it from the pool and give it back costs more than many a transaction
        connection = self._connection = self._connection or engine.connect()
        return connection

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _prepare(self) -> None:
        """Make the folder of the default file; where it cannot be used, memory has to do."""
        if self._is_default and self._file is not None:
            try:
                self._file.create_with_folder()
            except StoreUnavailable as error:
                if self._is_lasting:
                    raise
                log.warning("%s Responses are stored in memory instead.", error.for_operator)
                self._file = None
            self._is_default = False

    def _alone(self) -> AbstractContextManager[None]:
        return self._file.alone() if self._file else nullcontext()

    def _opened(self) -> "Engine":
        """The connections; opened, and the tables brought up to date, where this is the first use or the file is another one."""
        with self._opening:
            if self._engine is not None and self._file and self._file.is_replaced():
                self._dispose()
            if self._engine is None:
                self._engine = self._open()
                self._read_engine = self._open_readers()
            return self._engine

    def _dispose(self) -> None:
        """Close the connections: those that read first, as the last one of an SQLite file brings what was written into it."""
        if self._read_engine is not None:
            self._read_engine.dispose()
        self._let_go()
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._read_engine = None

    def _open(self) -> "Engine":
        from sqlalchemy.exc import SQLAlchemyError

        from unilect.store import _engines, _migrate

        if self._file:
            self._file.create()
        engine = (
            _engines.sqlite(self._file.path if self._file else None, self._timeout_s)
            if self._is_sqlite
            else _engines.postgresql(self._url, self._timeout_s, _POSTGRESQL_WRITERS)
        )
        try:
            with engine.begin() as connection:
                _migrate.up_to_date(connection)
        except SQLAlchemyError as error:
            engine.dispose()
            raise self._told(error, "cannot be opened") from error
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _open_readers(self) -> "Engine | None":
        """The connections that read; None for a database in memory, which is one connection's."""
        from unilect.store import _engines

        most = _READERS + _LONG_READERS
        if self._file:
            return _engines.sqlite_readers(self._file.path, self._timeout_s, most)
        if self._is_sqlite:
            return None
        return _engines.postgresql(self._url, self._timeout_s, most, read_only=True)

    def _close(self) -> None:
        for readers in (self._readers, self._long_readers):
            readers.shutdown()  # first: one that reads may wait for the writer
        self._writers.shutdown()
        if self._engine is not None:
            with self._alone():
                self._dispose()

    def _told(self, error: "SQLAlchemyError", otherwise: str = "") -> Exception:
        """An error of the library: what the operator can do about it; a flaw of ours stays what it is, unless there is a word for it."""
        reason = _failures.reason(error)
        if reason is None and otherwise:
            reason = f"{otherwise} ({_failures.first_line(error)})"
        if reason is None:
            return error
        place = str(self._file.path) if self._file else self.name
        return _failures.unavailable(self._secrets.removed_from(f"{place}: {reason}"))


def _leave(work: "Future[_Result]", end: "asyncio.Future[_Result]") -> None:
    """Who waited has left: what has not begun is not done."""
    if end.cancelled():
        work.cancel()


def _use_nothing(connection: "Connection") -> None:
    """Open the database, and no more."""
