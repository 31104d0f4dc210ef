"""The time and the bounds of a transaction over stored responses and conversations, and what rows take."""

from collections.abc import Sequence
from typing import NamedTuple

from unilect.core.errors import InvalidRequest
from unilect.store.records import Item

#: Bytes of a row beside its text, so that a bound of bytes bounds the number of items too.
ROW_BYTES = 200


class Scope(NamedTuple):
    """
    Time and bounds of a transaction.

    Attributes:
        now: The time.
        since: What was used last before this time is not there.
        ahead_s: Ancestors are kept for so much longer than needed, and then not again for so long.
        most_bytes: What may be read at once.
    """

    now: float
    since: float
    ahead_s: float
    most_bytes: int

    def check_size(self, size: int, param: str, times: int = 1) -> None:
        """
        Check that what is to be read at once is not too large.

        Args:
            times: How often `most_bytes` it may be.

        Raises:
            InvalidRequest: It is.
        """
        most = self.most_bytes * times
        if size > most:
            raise InvalidRequest(
                f"{param}: what is stored there has {size} bytes; at most {most} can be used in one request. Begin a new conversation.",
                param=param,
            )


def size_of(body: bytes, items: Sequence[Item]) -> int:
    """Add up the bytes that something with a body and items takes."""
    return len(body) + sum([len(item.body) for item in items]) + ROW_BYTES * (1 + len(items))
