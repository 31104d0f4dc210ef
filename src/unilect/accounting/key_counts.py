"""
Metrics for each API key: how many requests it has sent, and how many tokens they took.

Keys are made by an operator, but nobody bounds how many: the first `MOST_KEYS` that send a request are counted by themselves, and all
others together.
"""

from collections import Counter
from collections.abc import Iterator

from unilect.accounting.exposition import Family
from unilect.core.events import Tally, Usage
from unilect.core.requests import Call, Request
from unilect.runtime.context import Context

MOST_KEYS = 1_000
OTHER = "other"


class KeyCounts:
    """The counters of all keys, as a `RequestRecorder`: it counts each request once, at its end."""

    is_on = True

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._keys: dict[str, _Key] = {}
        self._refused = Counter[tuple[str, ...]]()

    async def open(self, context: Context, request: Request) -> "_Key | None":
        """Return the counters of a request's key; none of a call that makes no answer."""
        return None if isinstance(request, Call) else self._keys[self._label_of(context.caller)]

    def refuse(self, caller: str, code: str) -> None:
        """Count a request that is refused before a backend is asked; one without a known key is nobody's."""
        if caller:
            self._refused[self._label_of(caller), code] += 1

    def _label_of(self, name: str) -> str:
        """Return the name that a key is counted under."""
        if name not in self._keys:
            if len(self._keys) >= self._most:
                name = OTHER
            self._keys.setdefault(name, _Key())
        return name

    def collect(self) -> Iterator[Family]:
        """Make all counters as they are now."""
        keys = list(self._keys.items())
        yield Family(
            "unilect_key_requests_total",
            "counter",
            "Requests for a model, by API key and HTTP status; with metrics_per_key only.",
            ("key", "status"),
            [((name, str(status)), n) for name, key in keys for status, n in key.statuses.items()],
        )
        yield Family(
            "unilect_key_tokens_total",
            "counter",
            "Tokens, by API key and kind (prompt, cached, completion); with metrics_per_key only.",
            ("key", "kind"),
            [((name, kind), count) for name, key in keys for kind, count in key.tokens.items()],
        )
        yield Family(
            "unilect_key_refused_requests_total",
            "counter",
            "Requests refused before a backend was asked, by API key and the code of the error; with metrics_per_key only.",
            ("key", "reason"),
            list(self._refused.items()),
        )


class _Key:
    """The counters of one key; the entry of each of its requests."""

    def __init__(self) -> None:
        self.statuses = Counter[int]()
        self.tokens = Counter[str]()

    def note_usage(self, usage: Tally) -> None:
        """Do nothing: all is counted at the end."""

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """Count a request."""
        self.statuses[status] += 1
        self.tokens["prompt"] += usage.prompt_tokens
        self.tokens["completion"] += usage.completion_tokens
        self.tokens["cached"] += usage.cached_tokens or 0
