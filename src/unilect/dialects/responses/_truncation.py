"""
`truncation: auto`: the oldest turns are left out until the prompt fits.

Turns are left out whole, from one message of the user to the next, so that no call loses its output.
"""

from collections.abc import Sequence

import msgspec

from unilect.answers.service import Service
from unilect.core.requests import SYSTEM_ROLES
from unilect.dialects.responses._items import kind_of
from unilect.dialects.responses._request import Placed, Plan, ResponseRequest, plan
from unilect.dialects.truncation import fit_to_context


async def truncate(
    service: Service, asked: ResponseRequest, talk: Sequence[Placed], whole: Plan
) -> Plan:
    """
    Return the plan of a request without its oldest turns, as far as the model's context wants it; errors as `plan`.

    The turns that are left out are told as `truncation`.

    Args:
        talk: The items of the conversation.
        whole: The plan with all of them.
    """
    context = (await service.inspect_model(asked.model)).capabilities.context
    if context is None:
        return whole
    turns = _beginnings(talk)
    most = max(0, len(turns) - 1)  # the last turn stays

    def without(count: int) -> Plan:
        """Return the plan without some turns, but for what the system says there."""
        if not count:
            return whole
        first = turns[count]
        kept = [one for one in talk[:first] if one[1].get("role") in SYSTEM_ROLES]
        return plan(asked, [*kept, *talk[first:]], whole.items)

    with whole.options.places.in_errors():
        count = await fit_to_context(service, context, lambda count: without(count).chat, most)
    if count == 0:
        return whole
    made = without(count)
    return msgspec.structs.replace(made, left_out=(*made.left_out, "truncation"))


def _beginnings(talk: Sequence[Placed]) -> list[int]:
    """Return the numbers of the items that begin a turn of the user."""
    return [
        number
        for number, (place, item) in enumerate(talk)
        if kind_of(item, place) == "message" and item.get("role") == "user"
    ]
