"""
Metrics for Prometheus: GET /metrics.

Labels are the model's name and the endpoint, both from closed lists, so that no client can make them grow.
A request adds to plain numbers, since all requests are answered in one thread. Text is made of them when somebody reads, in pieces:
a thousand models have 66,000 lines, and no stream has to wait until all are written.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from unilect.accounting.exposition import Buckets, Family, by_label, write
from unilect.accounting.key_counts import KeyCounts

_SECONDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
#: What is measured of each request, and what is at a time: name -> what it is.
_HISTOGRAMS = {
    "time_to_first_token": "Time to first token, from the request.",
    "time_per_output_token": "Time per output token, the mean of each answer; of a non-streaming answer its duration by its tokens.",
    "request_duration": "From the request to the end of its answer.",
}
_GAUGES = {
    "running": "Requests between their first and their last token.",
    "waiting": "Requests that are queued or wait for their first token.",
}
_LATE = 0.2  # of the last answer, in the mean of those before
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """
    The counters of one server.

    Args:
        per_key: Count requests and tokens for each API key, too.

    Attributes:
        collectors: Make all that is exposed; what knows of more adds one.
        refused: How many requests were refused before a backend was asked, by the error's code.
        keys: The counters of the keys; None where keys are not told apart.
        queues: Tells for each model how many requests wait for its backends, and the seconds until all have had their turn, where
            that is known.
        measure: Measures what takes too long for a collector; awaited before all is exposed.
    """

    def __init__(self, *, per_key: bool = False) -> None:
        self.queues: Callable[[], Mapping[str, tuple[int, float | None]]] = dict
        self.measure: Callable[[], Awaitable[None]] = _measure_nothing
        self._series: dict[tuple[str, str], Series] = {}
        self.refused = Counter[str]()
        self.keys = KeyCounts() if per_key else None
        self.collectors: list[Callable[[], Iterable[Family]]] = [self._collect]
        if self.keys is not None:
            self.collectors.append(self.keys.collect)

    def series(self, model: str, endpoint: str) -> "Series":
        """Return the numbers of a model and an endpoint; they are made where there are none."""
        series = self._series.get((model, endpoint))
        if series is None:
            series = self._series[model, endpoint] = Series(model, endpoint)
        return series

    def refuse(self, caller: str, code: str) -> None:
        """Count a request that is refused before a backend is asked, by the code of its error."""
        self.refused[code] += 1
        if self.keys is not None:
            self.keys.refuse(caller, code)

    def tokens_per_s(self, model: str) -> float | None:
        """Return how fast a model's answers came of late, one of them at a time; None before the first."""
        times = [
            one.token_s for key, one in self._series.items() if key[0] == model and one.token_s
        ]
        return 1 / min(times) if times else None

    def completion_tokens(self, model: str) -> int:
        """Return how many tokens a model's answers had that have ended."""
        return sum(one.completion for key, one in self._series.items() if key[0] == model)

    def totals(self) -> dict[str, float]:
        """Add up what was counted of all models: requests, failed ones, tokens, first tokens and their seconds; and what runs and waits."""
        all = self._series.values()
        statuses = Counter[int]()
        for one in all:
            statuses.update(one.statuses)
        return {
            "requests": statuses.total(),
            "failed": sum(n for status, n in statuses.items() if status >= 400 and status != 499),
            "prompt_tokens": sum(one.prompt for one in all),
            "completion_tokens": sum(one.completion for one in all),
            "first_tokens": sum(sum(one.time_to_first_token.counts) for one in all),
            "first_token_s": sum(one.time_to_first_token.sum for one in all),
            "running": sum(one.running for one in all),
            "waiting": sum(one.waiting for one in all),
        }

    def forget(self, model: str) -> None:
        """Tell nothing of a model any more: names come and go, and nobody bounds how many."""
        self._series = {key: one for key, one in self._series.items() if key[0] != model}

    def families(self) -> Iterator[Family]:
        """Make all metrics as they are now."""
        for collect in self.collectors:
            yield from collect()

    def exposition(self) -> Iterator[str]:
        """Write all metrics in Prometheus' text format, in pieces; requests may go on between two of them."""
        for family in self.families():
            yield from write(family)

    def _collect(self) -> Iterator[Family]:
        """Make the metrics that are counted here."""
        all = list(self._series.values())
        yield Family(
            "unilect_requests_total",
            "counter",
            "Requests answered, by HTTP status; 499: the client disconnected.",
            ("model", "endpoint", "status"),
            [((*one.labels, str(status)), n) for one in all for status, n in one.statuses.items()],
        )
        yield by_label(
            "unilect_refused_requests_total",
            "counter",
            "Requests refused before a backend was asked, by the code of the error (docs/errors.md).",
            "reason",
            self.refused,
        )
        tokens = Counter[tuple[str, str]]()
        for series in all:
            for kind in ("prompt", "cached", "completion"):
                tokens[series.labels[0], kind] += getattr(series, kind)
        yield Family(
            "unilect_tokens_total",
            "counter",
            "Tokens, by kind: prompt, cached, completion.",
            ("model", "kind"),
            tokens.items(),
        )
        for name, help in _HISTOGRAMS.items():
            rows = [(one.labels, getattr(one, name).buckets) for one in all]
            yield Family(f"unilect_{name}_seconds", "histogram", help, ("model", "endpoint"), rows)
        for name, help in _GAUGES.items():
            values = Counter[str]()
            for one in all:
                values[one.labels[0]] += getattr(one, name)
            yield by_label(f"unilect_requests_{name}", "gauge", help, "model", values)
        yield from self._queues()

    def _queues(self) -> Iterator[Family]:
        queues = self.queues()
        lengths = {model: length for model, (length, _) in queues.items()}
        waits_s = {model: wait_s for model, (_, wait_s) in queues.items() if wait_s is not None}
        help = "Requests that wait for a place at a backend."
        yield by_label("unilect_queue_length", "gauge", help, "model", lengths)
        help = "Seconds until all that wait have a place, as the last answers tell."
        yield by_label("unilect_queue_wait_seconds", "gauge", help, "model", waits_s)


async def _measure_nothing() -> None:
    """Measure nothing."""


class _Histogram:
    """The number of values up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> Buckets:
        """Its numbers as they are now."""
        return Buckets(self.bounds, self.counts.copy(), self.sum)


class Series:
    """All numbers of one model and endpoint."""

    def __init__(self, model: str, endpoint: str) -> None:
        self.labels = (model, endpoint)
        self.statuses = Counter[int]()
        self.prompt = self.cached = self.completion = 0
        self.running = self.waiting = 0
        self.time_to_first_token = _Histogram(_SECONDS)
        self.time_per_output_token = _Histogram(_TOKEN_SECONDS)
        self.request_duration = _Histogram(_SECONDS)
        self.token_s = 0.0  # of late; 0 before the first answer

    def took(self, token_s: float) -> None:
        """Note the time per token of an answer."""
        self.time_per_output_token.observe(token_s)
        self.token_s += (token_s - self.token_s) * (_LATE if self.token_s else 1.0)
