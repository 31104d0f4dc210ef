"""Tests of unilect.answers.calls; tests/pairs/test_limits_calls.py asks a server."""

import pytest

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.calls import TokenEstimator
from unilect.answers.service import Service
from unilect.config.limits import LimitsConfig
from unilect.config.server import Config
from unilect.core.errors import RateLimited, UnilectError
from unilect.core.requests import ChatRequest, Message
from unilect.limits.limiter import Limiter
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.testing.echo import Echo

CHAT = ChatRequest(messages=[Message("user", "Hi")])


def limited(**limits: int) -> Service:
    """A service of `m` with limits of each caller, one of whom has sent the request in hand."""
    registry = Registry([Model("m", Echo())])
    book = Limiter(Config(limits=LimitsConfig(**limits)), TokenEstimator(registry))
    CURRENT_REQUEST.set(Context(caller="one"))
    return Service(registry, Accounts(Metrics(), (book,)))


async def test_a_call_counts() -> None:
    """A call counts as a request, and one too many is refused."""
    service = limited(requests_per_minute=2)
    assert [2, 2] == [await service.count_tokens(CHAT) for _ in range(2)]
    with pytest.raises(RateLimited):
        await service.count_tokens(CHAT)


async def test_a_part_of_a_request() -> None:
    """A call that is a part of a request holds nothing, and is refused where the request would be."""
    service = limited(requests_per_minute=1)
    for _ in range(3):
        assert 2 == await service.count_tokens(CHAT, counts=False)
    await service.count_tokens(CHAT)
    with pytest.raises(RateLimited):
        await service.count_tokens(CHAT, counts=False)


async def test_a_call_gives_back_what_it_held() -> None:
    """A call that has ended, also with an error, holds nothing of the requests that run."""
    service = limited(parallel=1)
    for _ in range(3):
        assert 2 == await service.count_tokens(CHAT)
        with pytest.raises(UnilectError, match="does not tell prompts"):
            await service.render_prompt(CHAT)
