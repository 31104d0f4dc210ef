"""Tests of unilect.limits.remaining; tests/server/test_admin.py asks a server for it."""

from support.common.clock import Clock
from support.common.entries import entry_of
from unilect.answers.calls import TokenEstimator
from unilect.config.limits import Limits as Table
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.requests import ChatRequest, Message
from unilect.limits.limiter import Limiter
from unilect.limits.remaining import Remaining, remaining
from unilect.models import sources
from unilect.runtime.context import Context

NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC


async def test_a_limit_that_was_lowered() -> None:
    """Below 0 nothing is left, of a minute it is told when it has emptied, and what has no limits tells none."""
    config = Config(
        limits=LimitsConfig(requests_per_minute=4, tokens_per_month=10**6),
        owners={"team": Table(parallel=3)},
        models={"m": ModelConfig(source="echo:", options={"context": 4096})},
    )
    limits = Limiter(config, TokenEstimator(sources.registry(config)), None, Clock(NOW))
    context = Context(caller="one", model="m", owner="team")
    chat = ChatRequest(messages=[Message("user", "x" * 20)], max_tokens=80)
    held = [await entry_of(limits, context, chat) for _ in range(2)]
    assert None not in held
    lowered = Context(caller="one", limits={"tokens_per_month": 150.0, "parallel": 1.0})
    of_key = {one.limit: one for one in await remaining(limits, lowered)}

    minute = of_key["requests_per_minute"]
    assert (4, 2, 0, 2) == (minute.most, minute.used, minute.reserved, minute.left)
    assert "2027-01-15T08:00:30+00:00" == minute.resets_at
    month = of_key["tokens_per_month"]
    assert (150, 0) == (month.most, month.left)
    assert month.reserved >= 200
    assert "2027-02-01T00:00:00+00:00" == month.resets_at
    assert of_key["parallel"] == Remaining("key", "one", "parallel", 1, 0, 0, 1, None)
    assert [Remaining("owner", "team", "parallel", 3, 0, 2, 1, None)] == await remaining(limits, Context(owner="team"))  # fmt: skip
    assert [] == await remaining(limits, Context(model="m"))
    await limits.aclose()
