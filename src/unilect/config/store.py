"""
The settings of the store: the table `[store]` of a configuration, and where the database is by default.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from unilect.config.mistakes import OptionError
from unilect.config.option import Move, Table, option
from unilect.runtime import extras
from unilect.runtime.redact import redact

SQLITE = "sqlite://"
MEMORY = "memory"
_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://[^\s/]*(/\S*)?")


def sqlite_path(url: str) -> str | None:
    """Return the file of an SQLite URL: empty for one in memory, None for another database."""
    if not url.startswith(SQLITE):
        return None
    path = url.removeprefix(SQLITE).removeprefix("/")
    return "" if path == ":memory:" else path


def move_database(url: str, move: Move) -> str:
    """Change the path in the URL of a database that is a file."""
    path = sqlite_path(url)
    return f"{SQLITE}/{move(path)}" if path else url


def wrong_url(url: str) -> str:
    """Return why a URL is that of no database that can be used; empty where it is one. Nothing is opened, and no password told."""
    # of a malformed URL nobody knows where its password is
    shown = url[:200] if "@" not in url else f"{url.partition(':')[0][:20]}:..."
    rest = url.removeprefix(SQLITE)
    if rest != url and (not rest or re.fullmatch(r"/[^?\0]*[^/?\0]", rest)):
        return ""
    if not _POSTGRESQL.fullmatch(url) or not has_port(url):
        return (
            f"`{shown}` is not the URL of a database; expected `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`, "
            "percent-encoded."
        )
    if find_spec("psycopg") is None:
        return f"`{redact(url[:200])}` requires psycopg, which is not installed; install it with `{extras.install('postgresql')}`."
    return ""


def has_port(url: str) -> bool:
    """Return True if the port of a URL is one, or is left out."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class StoreConfig(Table, frozen=True, kw_only=True):
    """The database and what it keeps: the table `[store]`."""

    url: str | None = option(
        None,
        "Database: `sqlite:///FILE`, `sqlite://` (in memory), or `postgresql://USER:PASSWORD@HOST/NAME` (requires the extra "
        "*postgresql*). `$NAME` takes it from the environment. A relative FILE is relative to the folder of the "
        "configuration file; `sqlite:////srv/unilect.db` is an absolute one. Default: `unilect/unilect.db` in "
        "`$XDG_DATA_HOME` or `~/.local/share`, readable for its user only; in memory where there is no such folder.",
        secret="url",
        path=move_database,
        check=wrong_url,
        example="sqlite:///unilect.db",
    )
    responses: bool = option(
        True,
        "Store responses and conversations of the Responses API. With `false` nothing is stored, whatever a request says.",
    )
    keys: bool = option(
        True,
        "Accept the API keys that `unilect keys create` made, and require a key where the store has any when the server starts "
        "(docs/keys.md). With `false` the keys of the store let nobody in, and those of `api_keys` alone decide.",
    )
    ledger: Literal["required", "best_effort", "off"] | None = option(
        None,
        "Record each request in the ledger (docs/usage.md), before its answer ends. *required*: a request that cannot be recorded is "
        "refused with 503. *best_effort*: it is answered, and recorded later. *off*: nothing is recorded. Default: *required* for "
        "requests that count against a budget, *best_effort* for others where the store has keys, *off* where it has none.",
        example="required",
    )
    ledger_days: Annotated[float, Meta(ge=32, le=36_500)] = option(
        400.0,
        "Delete a row of the ledger this long after its request. At least 32: the budgets of a month are made up from it.",
    )
    max_age_days: Annotated[float, Meta(gt=0, le=36_500)] = option(
        30.0,
        "Delete a response this long after it was made or last continued (a continued one up to an hour later), and a conversation after its last change.",
    )
    max_size_mib: Annotated[int, Meta(ge=1, le=16_777_216)] = option(
        1024,
        "Maximum size of all stored responses and conversations, in MiB; beyond it whoever has the most loses the oldest. The file is somewhat larger.",
    )
    max_count: Annotated[int, Meta(ge=1, le=100_000_000)] = option(
        100_000,
        "Maximum number of stored responses and conversations; beyond it whoever has the most loses the oldest.",
    )


def default_url(environment: Mapping[str, str]) -> str | None:
    """Return the URL of the database if no option says it; None where there is no folder for a user's data."""
    folder = data_folder(environment)
    return None if folder is None else f"{SQLITE}/{folder / 'unilect.db'}"


def location(config: StoreConfig, environment: Mapping[str, str]) -> str:
    """
    Return where the database is: the absolute path of a file, a URL without credentials, or `MEMORY`.

    Two processes with the same location, but for `MEMORY`, use the same database.
    """
    url = config.url or default_url(environment) or SQLITE
    path = sqlite_path(url)
    if path is None:
        return redact(url)
    return str(Path(path).resolve()) if path else MEMORY


def data_folder(environment: Mapping[str, str]) -> Path | None:
    """
    Return our folder among a user's data, which may not exist yet; None where there is none for the user.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    data, home = environment.get("XDG_DATA_HOME", ""), environment.get("HOME", "")
    if not data.startswith("/"):  # the specification: a relative path is to be ignored
        data = f"{home}/.local/share" if home.startswith("/") else ""
    return Path(data, "unilect") if data else None


def may_have_keys(config: StoreConfig, environment: Mapping[str, str]) -> bool:
    """
    Return True if the store may have API keys. Of a file it is looked up, without a lock and without making one; whether a server has any is
    known once it was asked.
    """
    url = config.url or default_url(environment)
    if not config.keys or url is None:
        return False
    path = sqlite_path(url)
    if path is None:
        return True
    try:
        return bool(path) and Path(path).is_file() and _has_keys(Path(path).absolute())
    except OSError:  # memory takes the place of a default file that is not ours
        return config.url is not None


def _has_keys(file: Path) -> bool:
    """Return True if a database has API keys."""
    import sqlite3  # a server that stores nothing does not need it

    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT EXISTS (SELECT 1 FROM keys)").fetchone()[0])
    except (
        sqlite3.Error
    ):  # there is no such table yet; what else is wrong is told when it is opened
        return False


def check_place(config: StoreConfig) -> None:
    """
    Check that the folder of the database's file is there, where a file is named, and the file is, too, or can be made.

    Raises:
        ConfigError: It is not so.
    """
    path = sqlite_path(config.url or "")
    if not path or Path(path).exists():
        return
    folder = Path(path).parent.resolve()
    if not folder.is_dir():
        raise OptionError(
            ("store", "url"),
            f"the folder {folder} does not exist. Make it, or name a file in another one.",
        )
    from tempfile import TemporaryFile  # most servers have their file already

    try:
        TemporaryFile(dir=folder).close()  # it has no name, and is gone at once
    except OSError as error:
        raise OptionError(
            ("store", "url"),
            f"no file can be made in {folder} ({error.strerror}). Let this user write there, or name a file in another folder.",
        ) from error
