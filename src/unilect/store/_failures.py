"""
Errors of databases, in words for the operator.

Source: https://www.sqlite.org/rescode.html, https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from typing import TYPE_CHECKING

from unilect.errors import StoreUnavailable

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

#: How SQLite's error names begin, and what to do.
_OF_SQLITE = {
    "SQLITE_FULL": "the disk is full; make room",
    "SQLITE_IOERR": "the disk cannot be read or written, or is full; make room, and look into the kernel's log",
    "SQLITE_READONLY": "cannot be written; let the user of this process write to the file and its folder",
    "SQLITE_CANTOPEN": "cannot be opened; let the user of this process write to the file and its folder",
    "SQLITE_PERM": "cannot be written; let the user of this process write to the file and its folder",
    "SQLITE_BUSY": "another program keeps it locked; close that",
    "SQLITE_LOCKED": "another program keeps it locked; close that",
    "SQLITE_NOTADB": "is not an SQLite database; name another file, or move this one away",
    "SQLITE_CORRUPT": "is damaged; restore it, or move it away",
    "SQLITE_PROTOCOL": "its locks do not work; keep it on a local disk",
}
#: Classes of PostgreSQL's codes that tell of the server, and not of a statement.
_OF_POSTGRESQL = {
    "08": "the connection was lost",
    "25": "the server or the user is read-only",
    "28": "the server does not accept the user or the password",
    "3D": "there is no such database on the server; create it",
    "40": "the transaction was undone in favour of others, again and again",
    "42501": "the user may not do this; grant CREATE on the schema",
    "53": "the server is out of disk, memory or connections",
    "55": "it is locked",
    "57": "the server ended this statement, or is stopping",
    "58": "the server's disk fails",
    "XX": "the server's data is damaged",
}


def unavailable(reason: str) -> StoreUnavailable:
    """What a client is told of a database that cannot be used; the reason is for the operator."""
    return StoreUnavailable(
        "The store of responses cannot be used now. Try again later, or send `store: false`.",
        reason=f"store: {reason}",
        retry_after_s=5,
    )


def advise(error: "sqlite3.Error") -> str | None:
    """Describe what is wrong with an SQLite file, and what to do; None where a statement of ours was wrong."""
    name = getattr(error, "sqlite_errorname", "")
    advice = next((text for code, text in _OF_SQLITE.items() if name.startswith(code)), None)
    return advice and f"{advice} ({error})"


def reason(error: "SQLAlchemyError") -> str | None:
    """Why a database cannot be used; None where a statement of ours was wrong."""
    import sqlite3

    original = getattr(error, "orig", None)
    if isinstance(original, sqlite3.Error):
        return advise(original)
    if original is None:
        # the pool's own: all connections are in use, for longer than a statement may take
        return str(error) if type(error).__name__ == "TimeoutError" else None
    state = getattr(original, "sqlstate", None)
    line = first_line(error)
    if state is None:  # no server has answered
        known = type(original).__name__ in (
            "OperationalError",
            "InterfaceError",
            "ConnectionTimeout",
        )
        return f"the server cannot be reached ({line})" if known else None
    advice = next((text for code, text in _OF_POSTGRESQL.items() if state.startswith(code)), None)
    return advice and f"{advice} ({line})"


def first_line(error: "SQLAlchemyError") -> str:
    """What the database said, without what comes after its first line."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
