"""
What an operator does with a store: look whether it is sound, bring its tables up to date, copy it.

A file is read beside the server that uses it, by a connection of its own that cannot write: neither waits for the other.

Source: https://www.sqlite.org/pragma.html#pragma_integrity_check, https://www.sqlite.org/backup.html
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from unilect.config.store import SQLITE, StoreConfig, check_place, default_url, sqlite_path
from unilect.errors import ConfigError, StoreUnavailable
from unilect.redact import Secrets, redacted, secrets_of
from unilect.store._failures import advise
from unilect.store.database import Database

_TABLES = {
    "responses": "responses",
    "conversations": "conversations",
    "keys": "API keys",
    "ledger": "requests in the ledger",
}
_MOST_PROBLEMS = 20


class Found(Struct, frozen=True):
    """
    What a store holds.

    Attributes:
        place: Its file, or its URL without the password.
        version: The revision of its tables; empty where it has none.
        newest: The revision that this version of unilect makes.
        counts: How many there are of each thing, by its name.
        size_bytes: What it takes on the disk; None where only the server knows.
        problems: What is wrong with it.
    """

    place: str
    version: str
    newest: str
    counts: Mapping[str, int]
    size_bytes: int | None
    problems: list[str]


class Upkeep:
    """
    The store of a configuration.

    Args:
        config: The table `[store]`.
        environment: Says where a user's data is.

    Raises:
        ConfigError: It has no database that can be kept up: none is named, and there is no folder for one, or it is in memory.
    """

    def __init__(self, config: StoreConfig, environment: Mapping[str, str]) -> None:
        check_place(config)
        url = config.url or default_url(environment)
        if url is None or (path := sqlite_path(url)) == "":
            raise ConfigError(
                "store: it is in memory, and gone with its server. Set `url` in [store]."
            )
        self._url = url
        self._file = Path(path).absolute() if path is not None else None

    async def look(self) -> Found:
        """
        What the store holds, and what is wrong with it. Nothing is changed.

        Raises:
            ConfigError: It cannot be read.
        """
        return self._look_at_file() if self._file is not None else await self._look_at_server()

    async def migrate(self) -> tuple[str, str]:
        """
        Bring the tables up to date.

        Returns:
            Their revision before, empty where there were none, and now.

        Raises:
            ConfigError: It cannot be done.
        """
        from unilect.store._migrate import NEWEST

        before = ""
        if self._file is None or self._file.exists():
            before = (await self.look()).version
        database = Database(f"{SQLITE}/{self._file}" if self._file is not None else self._url)
        try:
            await database.write(lambda connection: None)
        except StoreUnavailable as error:
            raise ConfigError(error.for_operator) from error
        finally:
            await database.aclose()
        return before, NEWEST

    def copy_to(self, target: Path) -> int:
        """
        Copy the database, as it is at one moment, into a new file for its user only.

        Returns:
            The copy's bytes.

        Raises:
            ConfigError: It cannot be read, or the copy cannot be written; then there is none.
        """
        if self._file is None:
            raise ConfigError(
                f"store: {redacted(self._url)} is copied with PostgreSQL's own programs: `pg_dump --format=custom --file {target} URL`, "
                "and `pg_restore` puts it back."
            )
        with self._opened() as source:
            try:
                os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError as error:
                raise ConfigError(f"{target}: exists already; name a new file.") from error
            except OSError as error:
                raise ConfigError(
                    f"{target}: cannot be written ({error.strerror}). Name a new file in a folder that this user may write to."
                ) from error
            try:
                with closing(sqlite3.connect(target)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file, complete
                    copy.commit()
                _write_through(target)
            except (sqlite3.Error, OSError) as error:
                with suppress(OSError):
                    target.unlink()
                raise ConfigError(
                    f"{target}: cannot be written ({error}). Make room, or name a file on another disk."
                ) from error
            return target.stat().st_size

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """
        The file, to be read.

        Raises:
            ConfigError: It is not there, or is no database that can be read.
        """
        assert self._file is not None
        if not self._file.is_file():
            raise ConfigError(
                f"{self._file}: there is no such file; nothing has been stored yet. A server makes it when it first stores something."
            )
        try:
            with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as file:
                file.execute("BEGIN")
                file.execute(
                    "PRAGMA schema_version"
                )  # reads the file: what is wrong with it is known before it is copied
                yield file
        except sqlite3.Error as error:
            why = advise(error) or f"cannot be read ({error})"
            raise ConfigError(f"{self._file}: {why}.") from error

    def _look_at_file(self) -> Found:
        from unilect.store._migrate import NEWEST

        assert self._file is not None
        with self._opened() as file:
            rows = file.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
            problems = [str(row[0]) for row in rows if row[0] != "ok"]
            problems += [
                f"a row of {table} belongs to one of {of} that is not there"
                for table, _, of, _ in file.execute("PRAGMA foreign_key_check").fetchmany(
                    _MOST_PROBLEMS
                )
            ]
            names = {row[0] for row in file.execute("SELECT name FROM sqlite_master")}
            counts = {
                told: int(file.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
                for table, told in _TABLES.items()
                if table in names
            }
            version = ""
            if "unilect_version" in names:
                row = file.execute("SELECT version_num FROM unilect_version").fetchone()
                version = row[0] if row else ""
        size = sum(
            path.stat().st_size for path in (self._file, Path(f"{self._file}-wal")) if path.exists()
        )
        return Found(str(self._file), version, NEWEST, counts, size, problems)

    async def _look_at_server(self) -> Found:
        from sqlalchemy import func, inspect, select, text
        from sqlalchemy.exc import SQLAlchemyError

        from unilect.store import _engines, _failures
        from unilect.store._migrate import NEWEST
        from unilect.store._tables import METADATA

        engine = _engines.postgresql(self._url, 5.0, 1)
        try:
            with engine.connect() as connection:
                names = set(inspect(connection).get_table_names())
                version = ""
                if "unilect_version" in names:
                    version = (
                        connection.scalar(text("SELECT version_num FROM unilect_version")) or ""
                    )
                counts = {
                    told: connection.scalar(
                        select(func.count()).select_from(METADATA.tables[table])
                    )
                    or 0
                    for table, told in _TABLES.items()
                    if table in names
                }
        except SQLAlchemyError as error:
            why = _failures.reason(error) or _failures.first_line(error)
            told = Secrets(secrets_of(self._url)).removed_from(f"{redacted(self._url)}: {why}")
            raise ConfigError(f"store: {told}") from error
        finally:
            engine.dispose()
        return Found(redacted(self._url), version, NEWEST, counts, None, [])


def _write_through(path: Path) -> None:
    """Have the disk keep a file, and its name."""
    for each in (path, path.absolute().parent):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
