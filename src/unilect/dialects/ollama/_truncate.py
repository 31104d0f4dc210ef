"""
Makes a conversation fit into the model's context by leaving out its oldest turns, as Ollama does.

The system's messages and the last turn stay. A turn goes whole, so that the roles of what is left alternate as templates want it; of a
last turn with many calls the oldest calls go with their results.
"""

from collections.abc import Sequence

from unilect.answers.service import Service
from unilect.core.requests import ChatRequest, Message
from unilect.dialects.truncation import fit_to_context, fits

#: Tokens that a template may add to a conversation; a token of the rest is at least a byte of its JSON.
_TEMPLATE = 1024


async def truncate(service: Service, request: ChatRequest) -> tuple[ChatRequest, bool]:
    """
    Return a request that fits as far as that can be had, and whether something is left out.

    Whose backend tells no tokens, or no context, gets it as it is; so does one that would not fit anyway, which says how long it is.
    """
    context = service.model(request.model).capabilities.context
    written = [request.raw_fields.get(name, b"") for name in ("messages", "tools")]
    if context is None or sum(len(memoryview(raw)) for raw in written) + _TEMPLATE <= context:
        return request, False
    steps = _steps(request.messages)

    def without(count: int) -> ChatRequest:
        gone = {place for step in steps[:count] for place in step}
        left = [message for place, message in enumerate(request.messages) if place not in gone]
        return request.changed(messages=left) if gone else request

    count = await fit_to_context(service, context, without, len(steps))
    if not count or (count == len(steps) and not await fits(service, context, without(count))):
        return request, False
    return without(count), True


def _steps(messages: Sequence[Message]) -> list[list[int]]:
    """Return the places of the messages that go together, in the order in which they go."""
    turns: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(place)
    if not turns:
        return []
    *older, last = turns
    groups: list[list[int]] = []
    for place in last[1:]:
        if messages[place].role == "assistant" or not groups:
            groups.append([])
        groups[-1].append(place)
    return older + groups[:-1]
