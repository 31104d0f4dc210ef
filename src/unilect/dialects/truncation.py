"""Makes a conversation fit into the model's context, for the APIs that leave out its oldest turns where it is too long."""

from collections.abc import Callable

from unilect.answers.service import Service
from unilect.core.errors import ContextLengthExceeded, UnsupportedOperation
from unilect.core.requests import ChatRequest


async def fit_to_context(
    service: Service, context: int, without: Callable[[int], ChatRequest], most: int
) -> int:
    """
    Find the fewest steps to leave out so that a conversation fits into a context and leaves room for an answer.

    The prompts are counted, some ten times at most: what is left out grows by halves.

    Args:
        without: Returns the request without the first so many steps.
        most: The number of steps that may be left out.

    Returns:
        The number of steps: 0 also where the backend does not count tokens; `most` also if nothing less is enough.
    """
    try:
        if not most or await fits(service, context, without(0)):
            return 0
        low, high = 0, most  # `low` does not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if await fits(service, context, without(middle)) else (middle, high)
            )
    except UnsupportedOperation:
        return 0
    return high


async def fits(service: Service, context: int, request: ChatRequest) -> bool:
    """Return True if a prompt leaves room for an answer."""
    try:
        return await service.count_tokens(request, counts=False) < context
    except ContextLengthExceeded:
        return False
