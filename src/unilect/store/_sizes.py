"""What rows take, and how much of them is read and asked for at once."""

from collections.abc import Iterator, Sequence

from unilect.errors import InvalidRequest
from unilect.store.answers import Item

#: What a row costs beside its text, so that a bound of bytes bounds the number of items too.
ROW_BYTES = 200
_AT_ONCE = 500  # ids in one statement


def size_of(body: bytes, events: bytes | None, items: Sequence[Item]) -> int:
    """The bytes that something with a body, events and items takes."""
    own = len(body) + len(events or b"") + ROW_BYTES
    return own + sum([len(item.body) for item in items]) + ROW_BYTES * len(items)


def check_size(size: int, most: int, param: str) -> None:
    """
    What is to be read at once is not too large.

    Raises:
        InvalidRequest: It is.
    """
    if size > most:
        raise InvalidRequest(
            f"{param}: what is stored there has {size} bytes; at most {most} can be used in one request. Begin a new conversation.",
            param=param,
        )


def in_pieces(ids: Sequence[str]) -> Iterator[list[str]]:
    """Ids, each once, as many at once as a statement takes."""
    unique = list(dict.fromkeys(ids))
    return (unique[at : at + _AT_ONCE] for at in range(0, len(unique), _AT_ONCE))
