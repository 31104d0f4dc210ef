"""
What the server counts, for Prometheus: GET /metrics.

Labels are the model's name and the endpoint, both from closed lists, so that no client can make them grow.
Children of metrics are looked up once and kept: `labels()` costs more than the counting.
"""

import time
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from unilect.events import Event, Progress, Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("model", "endpoint")
        self.requests = Counter(
            "unilect_requests",
            "Requests answered, by HTTP status; 499 when the client left.",
            (*labels, "status"),
            registry=registry,
        )
        self.tokens = Counter(
            "unilect_tokens",
            "Tokens, by kind: prompt, cached, completion.",
            ("model", "kind"),
            registry=registry,
        )
        self.first_token = Histogram(
            "unilect_time_to_first_token_seconds",
            "From the request to its first token.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )
        self.per_token = Histogram(
            "unilect_time_per_output_token_seconds",
            "Between tokens, the mean of each answer.",
            labels,
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.duration = Histogram(
            "unilect_request_duration_seconds",
            "From the request to the end of its answer.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )
        self.running = Gauge(
            "unilect_requests_running",
            "Requests that have their first token and not yet their last.",
            ("model",),
            registry=registry,
        )
        self.waiting = Gauge(
            "unilect_requests_waiting",
            "Requests that wait for a backend or for their first token: the queue.",
            ("model",),
            registry=registry,
        )
        self.series = cache(self._series)

    def start(self, model: str, endpoint: str) -> "Meter":
        """Begin to measure one request."""
        return Meter(self.series(model, endpoint))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _series(self, model: str, endpoint: str) -> "_Series":
        return _Series(self, model, endpoint)


class _Series:
    """The children of all metrics for one model and endpoint."""

    def __init__(self, metrics: Metrics, model: str, endpoint: str) -> None:
        self.status = cache(lambda status: metrics.requests.labels(model, endpoint, str(status)))
        self.prompt = metrics.tokens.labels(model, "prompt")
        self.cached = metrics.tokens.labels(model, "cached")
        self.completion = metrics.tokens.labels(model, "completion")
        self.first_token = metrics.first_token.labels(model, endpoint)
        self.per_token = metrics.per_token.labels(model, endpoint)
        self.duration = metrics.duration.labels(model, endpoint)
        self.running = metrics.running.labels(model)
        self.waiting = metrics.waiting.labels(model)


class Meter:
    """
    Measures one request: `see` every batch, `finish` exactly once, whatever happened.

    Attributes:
        usage: What the answer used, once the backend has said it.
    """

    __slots__ = ("_first", "_series", "_start", "usage")

    def __init__(self, series: _Series) -> None:
        self._series = series
        self._start = time.perf_counter()
        self._first: float | None = None
        self.usage = Usage(0, 0)
        series.waiting.inc()

    def see(self, batch: list[Event]) -> None:
        """Take note of a batch."""
        if self._first is None and not isinstance(batch[0], Progress):
            self._first = time.perf_counter()
            self._series.waiting.dec()
            self._series.running.inc()
            self._series.first_token.observe(self._first - self._start)
        last = batch[-1]
        if isinstance(last, Usage):
            self.usage = last

    def finish(self, status: int) -> float:
        """
        Count the request.

        Returns:
            Seconds since it began.
        """
        series, usage, now = self._series, self.usage, time.perf_counter()
        if self._first is None:
            series.waiting.dec()
        else:
            series.running.dec()
            if usage.completion_tokens > 1:
                series.per_token.observe((now - self._first) / (usage.completion_tokens - 1))
        series.prompt.inc(usage.prompt_tokens)
        series.completion.inc(usage.completion_tokens)
        if usage.cached_tokens:
            series.cached.inc(usage.cached_tokens)
        series.status(status).inc()
        series.duration.observe(now - self._start)
        return now - self._start
