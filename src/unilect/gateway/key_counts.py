"""
Metrics for each API key: how many requests it has sent, and how many tokens they took.

Keys are made by an operator, but nobody bounds how many: the first `MOST_KEYS` that send a request are counted by themselves, and all
others together.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from unilect.context import Context
from unilect.events import Usage
from unilect.requests import Call, Request

MOST_KEYS = 1_000
OTHER = "other"


class KeyCounts(Collector):
    """The counters of all keys, as a book of accounts: it counts each request once, at its end."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._keys: dict[str, _Key] = {}

    def applies(self, context: Context) -> bool:
        """Every request is counted."""
        return True

    async def open(self, context: Context, request: Request) -> "_Key | None":
        """The counters of a request's key; none of a call that makes no answer."""
        if isinstance(request, Call):
            return None
        name = context.caller
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= self._most:
                name = OTHER
            key = self._keys.setdefault(name, _Key())
        return key

    def collect(self) -> Iterator[Metric]:
        """All counters as they are now."""
        requests = CounterMetricFamily(
            "unilect_key_requests",
            "Requests for a model, by API key and HTTP status; with metrics_per_key only.",
            labels=("key", "status"),
        )
        tokens = CounterMetricFamily(
            "unilect_key_tokens",
            "Tokens, by API key and kind (prompt, cached, completion); with metrics_per_key only.",
            labels=("key", "kind"),
        )
        for name, key in self._keys.items():
            for status, count in key.statuses.items():
                requests.add_metric([name, str(status)], count)
            for kind, count in key.tokens.items():
                tokens.add_metric([name, kind], count)
        yield requests
        yield tokens


class _Key:
    """The counters of one key; the entry of each of its requests."""

    def __init__(self) -> None:
        self.statuses = Counter[int]()
        self.tokens = Counter[str]()

    def made(self, usage: Usage) -> None:
        """Nothing is counted before the end."""

    async def close(self, usage: Usage, status: int) -> None:
        """Count a request."""
        self.statuses[status] += 1
        self.tokens["prompt"] += usage.prompt_tokens
        self.tokens["completion"] += usage.completion_tokens
        self.tokens["cached"] += usage.cached_tokens or 0
