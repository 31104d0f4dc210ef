"""All that can be asked in one transaction."""

from sqlalchemy import Connection

from unilect.store import _sweep
from unilect.store._conversations import Conversations
from unilect.store._responses import Responses


class Transaction:
    """
    One transaction.

    Args:
        now: The time.
        since: What was used last before this time is not there.
        ahead_s: As of `Responses`.
        most_bytes: What may be read at once.
    """

    def __init__(
        self, connection: Connection, now: float, since: float, ahead_s: float, most_bytes: int
    ) -> None:
        self._connection, self._now = connection, now
        self.conversations = Conversations(connection, now, since, most_bytes)
        self.responses = Responses(connection, self.conversations, now, since, ahead_s, most_bytes)

    def totals(self) -> tuple[int, int]:
        """How many responses and conversations there are, and their bytes."""
        return _sweep.totals(self._connection)

    def delete_old(self, since: float) -> bool:
        """Delete some that were used last before a time; whether there may be more."""
        return _sweep.delete_old(self._connection, since, self._now)

    def shrink(self) -> bool:
        """Give some room in a file back to the disk; whether there is more."""
        return _sweep.shrink(self._connection)

    def delete_oldest(self, most: int, most_bytes: int) -> bool:
        """Delete some of the oldest of whoever has the most where there are more than so many, or more bytes; True where there are more to delete."""
        return _sweep.delete_oldest(self._connection, most, most_bytes, self._now)
