"""
Upkeep of a store by its operator: see that it is sound, make its tables, copy it.

A file is read beside the server that uses it, by a connection of its own that cannot write: neither waits for the other.

Source: https://www.sqlite.org/pragma.html#pragma_integrity_check, https://www.sqlite.org/backup.html
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from unilect.config.store import SQLITE, StoreConfig, check_place, default_url, sqlite_path
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.runtime.redact import Secrets, redact, secrets_of
from unilect.store.database import Database
from unilect.store.sql import schema, sqlite
from unilect.store.sql.connection import Connection

_TABLES = {
    "responses": "responses",
    "conversations": "conversations",
    "keys": "API keys",
    "ledger": "requests in the ledger",
    "model_events": "events of models",
}
_MOST_PROBLEMS = 20
_TIMEOUT_S = 5.0


class StoreReport(Struct, frozen=True):
    """
    Contents and state of a store.

    Attributes:
        place: Its file, or its URL without the password.
        version: The version of its tables; empty where it has none.
        newest: The version that this unilect makes.
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

    async def inspect(self) -> StoreReport:
        """
        Read what the store holds, and what is wrong with it. Nothing is changed.

        Raises:
            ConfigError: It cannot be read.
        """
        if self._file is not None:
            return _inspect_file(self._file)
        return await asyncio.to_thread(_inspect_server, self._url)

    async def migrate(self) -> tuple[str, str]:
        """
        Make the tables where there are none, or where some are missing.

        Returns:
            Their version before, empty where there were none, and now.

        Raises:
            ConfigError: It cannot be done.
        """
        before = ""
        if self._file is None or self._file.exists():
            before = (await self.inspect()).version
        database = Database(f"{SQLITE}/{self._file}" if self._file is not None else self._url)
        try:
            await database.write(lambda connection: None)
        except StoreUnavailable as error:
            raise ConfigError(error.for_operator) from error
        finally:
            await database.aclose()
        return before, schema.VERSION

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
                f"store: {redact(self._url)} is copied with PostgreSQL's own programs: `pg_dump --format=custom --file {target} URL`, "
                "and `pg_restore` puts it back."
            )
        with _open(self._file) as source:
            try:
                os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError as error:
                raise ConfigError(f"{target}: exists already; name a new file.") from error
            except OSError as error:
                raise ConfigError(
                    f"{target}: cannot be written ({error.strerror}). Name a new file in a folder that this user may write to."
                ) from error
            try:
                source.copy_to(target)
                _write_through(target)
            except (sqlite.Error, OSError) as error:
                with suppress(OSError):
                    target.unlink()
                raise ConfigError(
                    f"{target}: cannot be written ({error}). Make room, or name a file on another disk."
                ) from error
            return target.stat().st_size


@contextmanager
def _open(path: Path) -> Iterator[sqlite.SqliteConnection]:
    """
    Open a file, to be read.

    Raises:
        ConfigError: It is not there, or is no database that can be read.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no such file; nothing has been stored yet. A server makes it when it first stores something."
        )
    try:
        with closing(sqlite.SqliteConnection(path, _TIMEOUT_S, read_only=True)) as file:
            file.begin()
            # reads the file: what is wrong with it is known before it is copied
            file.rows("PRAGMA schema_version")
            yield file
    except sqlite.Error as error:
        why = sqlite.reason(error) or f"cannot be read ({error})"
        raise ConfigError(f"{path}: {why}.") from error


def _inspect_file(path: Path) -> StoreReport:
    with _open(path) as file:
        rows = file.rows(f"PRAGMA integrity_check({_MOST_PROBLEMS})")
        problems = [str(row[0]) for row in rows if row[0] != "ok"]
        problems += [
            f"a row of {table} belongs to one of {of} that is not there"
            for table, _, of, _ in file.rows("PRAGMA foreign_key_check")[:_MOST_PROBLEMS]
        ]
        size = sum(one.stat().st_size for one in (path, Path(f"{path}-wal")) if one.exists())
        return _report(file, str(path), size, problems)


def _inspect_server(url: str) -> StoreReport:
    from unilect.store.sql import postgresql

    server = postgresql.PostgresqlConnection(url, _TIMEOUT_S, read_only=True)
    try:
        server.begin()
        return _report(server, redact(url), None, [])
    except postgresql.Error as error:
        why = postgresql.reason(error) or str(error).strip().partition("\n")[0]
        told = Secrets(secrets_of(url)).remove_from(f"{redact(url)}: {why}")
        raise ConfigError(f"store: {told}") from error
    finally:
        server.close()


def _report(connection: Connection, place: str, size_bytes: int | None, problems: list[str]) -> StoreReport:  # fmt: skip
    tables = connection.tables()
    counts = {
        told: int(connection.scalar(f"SELECT count(*) FROM {table}"))
        for table, told in _TABLES.items()
        if table in tables
    }
    version = schema.version(connection)
    return StoreReport(place, version, schema.VERSION, counts, size_bytes, problems)


def _write_through(path: Path) -> None:
    """Have the disk keep a file, and its name."""
    for each in (path, path.absolute().parent):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
