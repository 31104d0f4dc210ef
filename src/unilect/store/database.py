"""
A database by URL: SQLite or PostgreSQL, one transaction a call, off the event loop.

There are two ways to use it, `write` and `read`, each with threads and connections of its own: what reads for long holds up nothing that
writes, and the other way round. SQLite reads what was committed last beside its one writer (WAL); a database in memory has one connection
for both.

Nothing is opened, and no driver is imported, before the first transaction: a server that stores nothing pays nothing.

Source: https://www.sqlite.org/wal.html
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from unilect.config.store import sqlite_path, wrong_url
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.runtime.redact import Secrets, redact, secrets_of
from unilect.store.failures import stopping, unavailable
from unilect.store.file import SqliteFile
from unilect.store.sql import schema
from unilect.store.sql.connection import Connection

log = logging.getLogger("unilect")
_Result = TypeVar("_Result")
_POSTGRESQL_WRITERS = 4
_READERS = 4
_LONG_READERS = 2
ABSENT = ()
_TRIES = 5  # of a transaction that PostgreSQL undoes in favour of another


class _Pool:
    """Connections of one kind: each is one thread's at a time, so that there are as many as threads."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._idle: list[Connection] = []
        self._closed = False

    def run(self, function: Callable[[Connection], _Result]) -> _Result:
        """Call a function in a transaction, on the connection that was used last, as each has a cache of its own."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.begin()
            result = function(connection)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            self._idle.append(connection)
            if self._closed:
                self.close()
        return result

    def close(self) -> None:
        """Close all; one that is in use when its user gives it back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class Database:
    """
    A database.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory, gone with this object) or `postgresql://...`.
        timeout_s: How long another's lock, or the server, is waited for.
        is_default: Nobody has asked for this SQLite file: its folder is made, for this user only, and where that fails, there is a
            database in memory instead, and a warning in the log.
        is_permanent: It is that of a command: no database in memory takes its place, and the command says itself what is wrong.

    Raises:
        ConfigError: It is no such URL, or what it needs is not installed. The password is not told.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        is_default: bool = False,
        is_permanent: bool = False,
    ) -> None:
        if why := wrong_url(url):
            raise ConfigError(why)
        self._url, self._timeout_s = url, timeout_s
        self._secrets = Secrets(secrets_of(url))
        path = sqlite_path(url)
        self._file = SqliteFile(Path(path), timeout_s) if path else None
        self._is_default, self._is_permanent = is_default, is_permanent
        self._is_sqlite = path is not None
        # SQLite has one writer, and then one connection is the fastest; memory is one connection's
        writers = 1 if self._is_sqlite else _POSTGRESQL_WRITERS
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix="unilect-store")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="unilect-store-read")
        self._long_readers = ThreadPoolExecutor(_LONG_READERS, thread_name_prefix="unilect-store-report")  # fmt: skip
        self._opening = threading.Lock()
        self._write_pool: _Pool | None = None
        self._read_pool: _Pool | None = None
        self._closed = False
        self._wrong = ""  # why it cannot be used, as the log has it
        self._cannot_write = False  # a file that cannot be written may be one that can be read
        self.failures = 0

    @property
    def name(self) -> str:
        """The URL as it may be shown."""
        return redact(self._url)

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; None for one in memory, and for a server."""
        return None if self._file is None else self._file.path.absolute()

    @property
    def is_server(self) -> bool:
        """True if it is a PostgreSQL server's."""
        return not self._is_sqlite

    @property
    def works(self) -> bool:
        """True if the last use succeeded, and the last one that wrote."""
        return not self._wrong

    def write(self, function: Callable[[Connection], _Result]) -> "asyncio.Future[_Result]":
        """
        Call a function in a thread, with a connection in a transaction, and return its result.

        The transaction is committed, and on SQLite on the disk, when this is done; it is undone where the function raises. It may be
        called again where a server undoes it. A caller that is cancelled does not undo what has begun.

        Raises:
            StoreUnavailable: The database cannot be opened, read or written now; the next call tries again. The log tells why, once.
        """
        return self._submit(self._writers, self._write, function)

    def read(
        self, function: Callable[[Connection], _Result], *, long: bool = False
    ) -> "asyncio.Future[_Result]":
        """
        Call a function as `write` does, with a connection that cannot write; all that it reads is of one moment, with all that was committed before.

        It waits for nobody who writes, and may be called again as there. Where there is no database yet, none is made: an empty one in
        memory is read.

        Args:
            long: It may take seconds: only a few such run at once, and other reads wait for none of them.
        """
        return self._submit(self._long_readers if long else self._readers, self._read, function)

    def mark(self) -> object | None:
        """
        Return what is another value after the database was changed, by whatever process, and costs nothing to look at.

        Returns:
            None where the database has to be asked, and `ABSENT` where there is none yet.
        """
        if self._file is not None:
            try:
                return self._file.mark() or ABSENT
            except OSError:  # of a default file, memory takes the place
                return ABSENT if self._is_default else None
        return ABSENT if self._is_sqlite and self._write_pool is None else None

    async def aclose(self) -> None:
        """End what runs, and close the connections. Idempotent."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _submit(
        self, threads: ThreadPoolExecutor, work: Callable[..., _Result], *functions: object
    ) -> "asyncio.Future[_Result]":
        """Do a piece of work in one of some threads."""
        if self._closed:
            end: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
            end.set_exception(stopping())
            return end
        end = asyncio.wrap_future(threads.submit(work, *functions))
        end.add_done_callback(partial(self._note_outcome, threads is self._writers))
        return end

    def _note_outcome(self, writes: bool, end: "asyncio.Future[_Result]") -> None:
        """Take note of whether the database could be used."""
        if end.cancelled():  # who waited has left
            return
        error = end.exception()
        if isinstance(error, StoreUnavailable):
            self.failures += 1
            self._cannot_write = self._cannot_write or writes
            self._log(error.for_operator)
        elif error is None and self._wrong:
            self._cannot_write = self._cannot_write and not writes
            if not self._cannot_write:
                self._log("")

    def _log(self, wrong: str) -> None:
        """Log why the database cannot be used, and that it can be used again, once each."""
        if wrong != self._wrong and not self._is_permanent:
            self._wrong = wrong
            log.warning("%s", wrong) if wrong else log.warning("store: %s works again", self.name)

    def _write(self, function: Callable[[Connection], _Result]) -> _Result:
        def once() -> _Result:
            self._make_folder()
            with self._file.alone() if self._file else nullcontext():
                return self._open().run(function)

        return self._try(once)

    def _read(self, function: Callable[[Connection], _Result]) -> _Result:
        if self._is_absent():
            return self._read_empty(function)
        if not self._is_open():  # whoever writes makes the file and its tables
            self._writers.submit(self._write, lambda connection: None).result()
        pool = self._read_pool
        if pool is None:  # memory
            return self._writers.submit(self._write, function).result()
        return self._try(partial(pool.run, function))

    def _is_absent(self) -> bool:
        """Return True where a server has no database yet, and can have one: that it cannot, as a command tells, shows when it is made."""
        can_be = self._is_default or self._file is None or self._file.path.parent.is_dir()
        return can_be and not self._is_permanent and self.mark() == ABSENT

    def _read_empty(self, function: Callable[[Connection], _Result]) -> _Result:
        def read(connection: Connection) -> _Result:
            connection.scalar("PRAGMA query_only = ON")
            return function(connection)

        pool = _Pool(partial(self._driver().connect, None, self._timeout_s, read_only=False))
        try:
            pool.run(schema.ensure)
            return self._try(partial(pool.run, read))
        finally:
            pool.close()

    def _is_open(self) -> bool:
        """Return True if the database is open, and its file still the one that was opened."""
        with self._opening:
            return self._write_pool is not None and not (self._file and self._file.is_replaced())

    def _try(self, once: Callable[[], _Result], otherwise: str = "") -> _Result:
        """
        Do something, and again where a server has undone it; errors of the driver become words for the operator.

        Args:
            otherwise: What is told of an error for which there are no words; without it a flaw of ours stays what it is.
        """
        driver = self._driver()
        for left in reversed(range(_TRIES)):
            try:
                return once()
            except driver.Error as error:
                if left and driver.is_retryable(error):
                    continue
                reason = driver.reason(error)
                if reason is None and otherwise:
                    reason = f"{otherwise} ({str(error).strip().partition(chr(10))[0]})"
                if reason is None:
                    raise
                place = str(self._file.path) if self._file else self.name
                raise unavailable(self._secrets.remove_from(f"{place}: {reason}")) from error
        raise AssertionError("the last try returns or raises")

    def _driver(self) -> ModuleType:
        """Import the driver of the database, in the thread: it takes its time."""
        if self._is_sqlite:
            from unilect.store.sql import sqlite

            return sqlite
        from unilect.store.sql import postgresql

        return postgresql

    def _make_folder(self) -> None:
        """Make the folder of the default file; where it cannot be used, memory has to do."""
        if self._is_default and self._file is not None:
            try:
                self._file.create_with_folder()
            except StoreUnavailable as error:
                if self._is_permanent:
                    raise
                log.warning("%s Responses are stored in memory instead.", error.for_operator)
                self._file = None
            self._is_default = False

    def _open(self) -> _Pool:
        """Open the database, and make its tables, where this is the first use or the file is another one."""
        with self._opening:
            if self._write_pool is not None and self._file and self._file.is_replaced():
                self._dispose()
            if self._write_pool is None:
                if self._file:
                    self._file.create()
                pool = self._pool()
                try:
                    self._try(partial(pool.run, schema.ensure), "cannot be opened")
                except BaseException:
                    pool.close()
                    raise
                if self._file or not self._is_sqlite:
                    self._read_pool = self._pool(read_only=True)
                self._write_pool = pool
            return self._write_pool

    def _pool(self, *, read_only: bool = False) -> _Pool:
        place = (self._file and self._file.path) if self._is_sqlite else self._url
        connect = self._driver().connect
        return _Pool(partial(connect, place, self._timeout_s, read_only=read_only))

    def _dispose(self) -> None:
        """Close the connections: those that read first, as the last one of an SQLite file brings what was written into it."""
        for pool in (self._read_pool, self._write_pool):
            if pool is not None:
                pool.close()
        self._read_pool = self._write_pool = None

    def _close(self) -> None:
        for readers in (self._readers, self._long_readers):
            readers.shutdown()  # first: one that reads may wait for the writer
        self._writers.shutdown()
        if self._write_pool is not None:
            with self._file.alone() if self._file else nullcontext():
                self._dispose()
