"""
The statistics of a step: percentiles, throughput and failures of its requests.

Nothing here knows a server or a clock. Times are seconds since the step began.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

#: The times of a request: until its first token, for each further one, between two pieces of the stream, until the last, and from when it was
#: due until it was sent.
TIMES = ("first token", "per token", "between pieces", "whole", "lateness")


class Outcome(Struct):
    """
    One request and its end.

    Attributes:
        due: The time at which it was to be sent.
        sent: The time at which it was.
        arrivals: The times of the pieces of its answer.
        tokens: Tokens of the answer, as the server counts them, else its pieces.
        counted: The server has counted them.
        failure: The kind of its failure; empty for none.
        detail: The failure in words.
        finished: False where the run ended before it.
    """

    due: float
    sent: float = 0.0
    arrivals: list[float] = []
    tokens: int = 0
    counted: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    failure: str = ""
    detail: str = ""
    finished: bool = True

    @property
    def succeeded(self) -> bool:
        """True for a whole answer."""
        return self.finished and not self.failure

    @property
    def per_token_s(self) -> list[float]:
        """Time per output token after the first; none where the answer came in one piece."""
        if self.tokens < 2 or len(self.arrivals) < 2:
            return []
        return [(self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)]

    def times(self) -> tuple[list[float], ...]:
        """Return the values for each of `TIMES`; they count from when the request was due."""
        at = self.arrivals
        gaps = [after - before for before, after in pairwise(at)]
        return [at[0] - self.due], self.per_token_s, gaps, [at[-1] - self.due], [self.sent - self.due]  # fmt: skip


class Bounds(NamedTuple):
    """Bounds of a good answer, in seconds: of its first token, and of each further one; None for no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def hold(self, outcome: Outcome) -> bool:
        """Return True for a whole answer within the bounds."""
        if not outcome.succeeded:
            return False
        (first,), per_token, *_ = outcome.times()
        fast = self.ttft_s is None or first <= self.ttft_s
        return fast and (self.tpot_s is None or max(per_token, default=0.0) <= self.tpot_s)


class Quantiles(Struct):
    """Percentiles of some values, with their number, mean and maximum."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Failure(Struct):
    """A kind of failure: how often it came, and one of them in words."""

    kind: str
    count: int
    example: str


class Step(Struct):
    """
    The result of one load on one server.

    Attributes:
        server: The server's name.
        load: Requests a second, or requests at a time.
        window_s: The time in which requests were sent; rates are of what happened within.
        requests: Requests sent; `completed`, `failed` and `unfinished` are parts of it.
        unfinished: Requests that the end of the run has cut.
        times_s: The percentiles of each of `TIMES`, where there is a value.
        sent_s, completed_s: Requests a second.
        tokens_s: Output tokens a second of all streams together.
        counted_share: Part of the answers whose tokens the server has counted; of the others the pieces are.
        prompt_tokens, output_tokens: Means of a request.
        cached_share: Part of the prompts' tokens that the server had in its cache.
        good_share: Part of the requests within the bounds; None for no bounds.
        lag_s: How late the client's event loop was (p99).
        cpu: Cores that the client has used.
    """

    server: str
    load: float
    window_s: float
    requests: int
    completed: int
    failed: int
    unfinished: int
    failures: list[Failure]
    times_s: dict[str, Quantiles]
    sent_s: float
    completed_s: float
    tokens_s: float
    counted_share: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float
    good_share: float | None
    lag_s: float
    cpu: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in ascending order, interpolated between the two that are nearest."""
    at = (len(ordered) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return the percentiles of values, of which there is at least one."""
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in (50, 90, 95, 99))
    mean = sum(ordered) / len(ordered)
    return Quantiles(len(ordered), mean, p50, p90, p95, p99, ordered[-1])


def tokens_within(outcome: Outcome, window_s: float) -> float:
    """Return the tokens of an answer that arrived within the window; its pieces have equal parts of them."""
    within = sum(at <= window_s for at in outcome.arrivals)
    return outcome.tokens * within / max(1, len(outcome.arrivals))


def summarize(
    server: str,
    load: float,
    window_s: float,
    outcomes: Sequence[Outcome],
    bounds: Bounds,
    lags_s: Sequence[float] = (),
    cpu: float = 0.0,
) -> Step:
    """Return the result of a step of at least one request."""
    whole = [one for one in outcomes if one.succeeded]
    ended = sum(one.finished for one in outcomes)
    columns = zip(*(one.times() for one in whole), strict=True)
    values = ([value for part in column for value in part] for column in columns)
    prompt_tokens, answers = sum(one.prompt_tokens for one in whole), max(1, len(whole))
    return Step(
        server=server,
        load=load,
        window_s=window_s,
        requests=len(outcomes),
        completed=len(whole),
        failed=ended - len(whole),
        unfinished=len(outcomes) - ended,
        failures=count_failures(outcomes),
        times_s={name: quantiles(one) for name, one in zip(TIMES, values, strict=False) if one},
        sent_s=len(outcomes) / window_s,
        completed_s=sum(one.arrivals[-1] <= window_s for one in whole) / window_s,
        tokens_s=sum(tokens_within(one, window_s) for one in outcomes) / window_s,
        counted_share=sum(one.counted for one in whole) / answers,
        prompt_tokens=prompt_tokens / answers,
        output_tokens=sum(one.tokens for one in whole) / answers,
        cached_share=sum(one.cached_tokens for one in whole) / max(1, prompt_tokens),
        good_share=sum(map(bounds.hold, outcomes)) / max(1, ended) if any(bounds) else None,
        lag_s=quantiles(lags_s).p99 if lags_s else 0.0,
        cpu=cpu,
    )


def count_failures(outcomes: Iterable[Outcome]) -> list[Failure]:
    """Return the kinds of failures, the most frequent first."""
    kinds = dict[str, Failure]()
    for one in outcomes:
        if one.finished and one.failure:
            kinds.setdefault(one.failure, Failure(one.failure, 0, one.detail)).count += 1
    return sorted(kinds.values(), key=lambda failure: -failure.count)
