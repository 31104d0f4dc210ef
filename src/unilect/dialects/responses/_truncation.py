"""
`truncation: auto`: the oldest turns are left out until the prompt fits.

Turns are left out whole, from one message of the user to the next, so that no call loses its output. The prompts are counted, some
ten times at most: what is left out grows by halves.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from unilect.answers.service import Service
from unilect.core.errors import UnilectError, UnsupportedOperation
from unilect.dialects.responses._items import kind_of
from unilect.dialects.responses._request import Placed, Plan, ResponseRequest, place_items, plan


async def truncate(
    service: Service,
    asked: ResponseRequest,
    before: Sequence[dict[str, Any]],
    items: list[dict[str, Any]],
) -> Plan:
    """
    The plan of a request without its oldest turns, as far as the model's context wants it; errors as `plan`.

    The turns that are left out are told as `truncation`.
    """
    talk = place_items(asked, before, items)
    whole = plan(asked, talk, items)
    model = await service.inspect_model(asked.model)
    context = model.capabilities.context
    if context is None:
        return whole
    most = context - 1
    turns = _beginnings(talk)
    low, high = 1, len(turns) - 1  # the last turn stays
    try:
        if high < 1 or await service.count_tokens(whole.chat, counts=False) <= most:
            return whole
        while low < high:  # to the fewest turns without which it fits
            middle = (low + high) // 2
            made = _without(asked, talk, items, turns[middle])
            if await service.count_tokens(made.chat, counts=False) <= most:
                high = middle
            else:
                low = middle + 1
    except UnsupportedOperation:  # who does not count cannot shorten
        return whole
    except UnilectError as error:
        raise whole.telling.named(error) from error
    made = _without(asked, talk, items, turns[high])
    return msgspec.structs.replace(made, left_out=(*made.left_out, "truncation"))


def _without(
    asked: ResponseRequest, talk: Sequence[Placed], items: list[dict[str, Any]], first: int
) -> Plan:
    """The plan without what stands before an item, but for what the system says there."""
    kept = [one for one in talk[:first] if one[1].get("role") in ("system", "developer")]
    return plan(asked, [*kept, *talk[first:]], items)


def _beginnings(talk: Sequence[Placed]) -> list[int]:
    """Return the numbers of the items that begin a turn of the user."""
    return [
        number
        for number, (place, item) in enumerate(talk)
        if kind_of(item, place) == "message" and item.get("role") == "user"
    ]
