"""The connection that statements are given: SQL with `?` for values, `= ANY(?)` for one of a list, `FOR UPDATE` and `BLOB`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

ONE_OF = " = ANY(?)"
FOR_UPDATE = " FOR UPDATE"


@lru_cache(1024)
def make_plain(text: str, longest: int = 400) -> str:
    """Cut a text, and leave out what a database does not take."""
    return text[:longest].encode(errors="replace").decode().replace("\0", "")


class Connection(ABC):
    """
    A connection to a database. Errors are those of its driver; contents of statements are in none: they are prompts.

    Attributes:
        is_server: It is one to a PostgreSQL server.
    """

    is_server: ClassVar[bool]

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction, if there is one."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if there is one. Raises nothing."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    @abstractmethod
    def execute(self, statement: str, values: tuple[Any, ...]) -> Any:
        """Run a statement; returns the driver's cursor."""

    @abstractmethod
    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Run a statement for each row of values; returns how many rows of the table it has changed in all."""

    @abstractmethod
    def tables(self) -> set[str]:
        """Read the names of the tables."""

    @abstractmethod
    def lock(self, number: int) -> None:
        """Wait until no other transaction has this lock, and hold it until the end of this one."""

    @abstractmethod
    def shrink(self, pages: int) -> bool:
        """Give so many free pages of a file back to the disk, in a transaction of its own; returns True if there are more."""

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, and read all rows that it returns."""
        found: list[tuple[Any, ...]] = self.execute(statement, values).fetchall()
        return found

    def run(self, statement: str, *values: object) -> int:
        """Run a statement; returns how many rows it has changed."""
        changed: int = self.execute(statement, values).rowcount
        return changed

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Run a statement, and read its first row."""
        return next(iter(self.rows(statement, *values)), None)

    def scalar(self, statement: str, *values: object) -> Any:
        """Run a statement, and read the first value of its first row; None where there is none."""
        row = self.row(statement, *values)
        return None if row is None else row[0]
