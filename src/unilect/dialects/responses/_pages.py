"""
Pages of items, as all lists of this API have them.

Source: https://platform.openai.com/docs/api-reference/responses/input-items
"""

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from unilect.core.errors import InvalidRequest
from unilect.dialects.openai.chunks import encode_json
from unilect.store.records import Item
from unilect.web.decode import read_number


class Page(Struct, frozen=True):
    """
    The part of a list that a client asks for.

    Attributes:
        after: The id of the last item of the page before.
        limit: The most items.
        newest_first: The order.
    """

    after: str | None
    limit: int
    newest_first: bool


def page(query: Mapping[str, str]) -> Page:
    """
    Return the page that a query asks for.

    Raises:
        InvalidRequest: A value is wrong.
    """
    order = query.get("order", "desc")
    limit = read_number("limit", query.get("limit", "20"), "a number from 1 to 100", 1, 100)
    if order not in ("asc", "desc"):
        raise InvalidRequest.at("order", ": expected `asc` or `desc`.")
    return Page(query.get("after"), limit, order == "desc")


def page_of(items: Sequence[Item], wanted: Page) -> bytes:
    """
    Return a page of a list that is at hand.

    Raises:
        InvalidRequest: There is no item `after`.
    """
    ordered = list(items)[::-1] if wanted.newest_first else list(items)
    if wanted.after is not None:
        ids = [item.id for item in ordered]
        if wanted.after not in ids:
            raise InvalidRequest.at(
                "after",
                f": there is no item {wanted.after[:100]!r}. Send the `last_id` of a page before.",
            )
        ordered = ordered[ids.index(wanted.after) + 1 :]
    return encode_page(ordered[: wanted.limit], len(ordered) > wanted.limit)


def encode_page(items: Sequence[Item], more: bool) -> bytes:
    """Return a page as the client gets it."""
    return encode_json(
        {
            "object": "list",
            "data": [Raw(item.body) for item in items],
            "first_id": items[0].id if items else None,
            "last_id": items[-1].id if items else None,
            "has_more": more,
        }
    )
