"""stats.py: percentiles, rates and failures of outcomes that are written here."""

import random
import statistics

import pytest

from unilect.cli.bench.stats import Bounds, Failure, Outcome, percentile, quantiles, summarize

#: Due at 1 s, sent at 3 s, four tokens in three pieces.
LATE = Outcome(1.0, 3.0, [4.0, 4.5, 5.5], tokens=4, counted=True, prompt_tokens=8, cached_tokens=2)


@pytest.mark.parametrize("count", [2, 3, 10, 101, 1000])
def test_percentiles(count: int) -> None:
    """Percentiles are those of the standard library, with the values themselves as the extremes."""
    values = sorted(random.Random(count).expovariate(1) for _ in range(count))
    parts = statistics.quantiles(values, n=100, method="inclusive")

    assert [percentile(values, at) for at in range(1, 100)] == pytest.approx(parts)
    assert (values[0], values[-1]) == (percentile(values, 0), percentile(values, 100))


def test_one_value() -> None:
    """All percentiles of one value are that value."""
    found = quantiles([7.0])

    assert {7.0} == {found.mean, found.p50, found.p90, found.p95, found.p99, found.max}


def test_times_count_from_when_a_request_was_due() -> None:
    """A request that was sent late is charged for the wait, and the lateness is told beside."""
    times = summarize("a", 1, 10.0, [LATE], Bounds()).times_s

    assert {name: one.p50 for name, one in times.items()} == {
        "first token": 3.0,
        "per token": 0.5,
        "between pieces": 0.75,
        "whole": 4.5,
        "lateness": 2.0,
    }


def test_rates_are_of_the_window() -> None:
    """Tokens and answers that come after the requests were sent count for no rate, and those of an answer that fails do."""
    broken = Outcome(0.0, 0.0, [1.0], tokens=1, failure="connection broken")
    step = summarize("a", 1, 4.5, [LATE, broken], Bounds())

    assert step.tokens_s == pytest.approx((4 * 2 / 3 + 1) / 4.5)
    assert (0.0, 2 / 4.5) == (step.completed_s, step.sent_s)
    assert (0.25, 4.0, 8.0, 1.0) == (step.cached_share, step.output_tokens, step.prompt_tokens, step.counted_share)  # fmt: skip


def test_kinds_of_failures() -> None:
    """Failures are counted by kind, with one in words, and what the end of the run has cut is none."""
    outcomes = [
        Outcome(0.0, failure="timeout", detail="slow"),
        Outcome(0.0, failure="HTTP 500", detail="first"),
        Outcome(0.0, failure="HTTP 500", detail="second"),
        Outcome(0.0, finished=False),
    ]
    step = summarize("a", 1, 1.0, outcomes, Bounds())

    assert [Failure("HTTP 500", 2, "first"), Failure("timeout", 1, "slow")] == step.failures
    assert (4, 0, 3, 1) == (step.requests, step.completed, step.failed, step.unfinished)
    assert {} == step.times_s


@pytest.mark.parametrize(
    ("bounds", "share"),
    [
        (Bounds(3.0, 0.5), 0.5),
        (Bounds(ttft_s=2.9), 0.0),
        (Bounds(tpot_s=0.4), 0.0),
        (Bounds(), None),
    ],
)
def test_good_answers(bounds: Bounds, share: float | None) -> None:
    """A good answer is whole and within all bounds; one of two requests has failed."""
    outcomes = [LATE, Outcome(0.0, failure="timeout"), Outcome(0.0, finished=False)]

    assert summarize("a", 1, 1.0, outcomes, bounds).good_share == share


def test_an_answer_in_one_piece() -> None:
    """An answer of one piece, or of one token, has no time per token."""
    outcomes = [Outcome(0.0, 0.0, [1.0], tokens=9), Outcome(0.0, 0.0, [1.0], tokens=1)]

    assert ["first token", "whole", "lateness"] == [*summarize("a", 1, 1.0, outcomes, Bounds()).times_s]  # fmt: skip
