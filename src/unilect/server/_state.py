"""
The current state of a server, for its metrics: backends and their engines, connections, requests, the store.

It is read when somebody reads the metrics. Labels are the names of models and backends, which the configuration and the registered
workers bound, and words of the code. Values with the same labels are added up.
"""

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unilect.accounting.metrics import Metrics
from unilect.answers.rejoin import Rejoin
from unilect.models.registry import Registry
from unilect.runtime.context import Requests
from unilect.runtime.redact import shorten
from unilect.scheduling.pool import Member
from unilect.server._connections import Connections
from unilect.store.database import Database

_BACKEND = ("model", "backend")
#: What is told of an engine's processes: metric -> help, and whether it counts events.
_ENGINES = {
    "starts": ("Starts of engine processes that succeeded.", True),
    "deaths": ("Engine processes that ended unasked.", True),
    "hangs": ("Engine processes that were killed because they were unresponsive.", True),
    "processes": ("Engine processes that are ready. Models that share one each report it.", False),
    "resident_memory_bytes": ("Resident memory of engine processes, with mapped files.", False),
}
_BACKENDS = {
    "outstanding_requests": ("Requests that a backend is answering or has queued.", False),
    "requests": ("Requests that were sent to a backend.", True),
    "failures": (
        "Failed requests and starts of a backend, without errors of the request itself.",
        True,
    ),
}


def metrics_of(
    registry: Registry,
    connections: Connections | None = None,
    requests: Requests | None = None,
    database: Database | None = None,
    *,
    per_key: bool = False,
    rejoin: Rejoin | None = None,
) -> Metrics:
    """
    The metrics of a server.

    Args:
        connections, requests, database, rejoin: What else is told of, where it is known.
        per_key: Requests and tokens are counted for each key, too.
    """
    metrics = Metrics(per_key=per_key)
    metrics.registry.register(Backends(registry))
    metrics.registry.register(Process(connections, requests, database))
    if rejoin is not None:
        metrics.registry.register(Rejoined(rejoin))
    ProcessCollector(registry=metrics.registry)
    return metrics


class Backends(Collector):
    """The models and their backends."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield their current metrics."""
        models = self._registry.models.values()
        running = GaugeMetricFamily(
            "unilect_model_loaded", "1 if the model's engine is loaded.", labels=("model",)
        )
        retries = CounterMetricFamily(
            "unilect_retries",
            "Requests that were sent to another backend, or again, after a backend failed.",
            labels=("model",),
        )
        fallbacks = CounterMetricFamily(
            "unilect_fallbacks",
            "Requests that were sent to the fallback of the model that was asked for.",
            labels=("model", "fallback"),
        )
        for model in models:
            if model.required:
                running.add_metric([model.name], model.runs_here)
            retries.add_metric([model.name], model.retries)
            for name, count in model.fallbacks.items():
                fallbacks.add_metric([model.name, name], count)
        yield from (running, retries, fallbacks)
        members = [(model.name, one) for model in models for one in model.pool.members]
        yield _states(members)
        yield from _numbers("backend", _BACKENDS, [(*who, _of_backend(who[1])) for who in members])
        engines = [(*who, _of_engine(who[1])) for who in members]
        yield from _numbers("engine", _ENGINES, [one for one in engines if one[2]])


def _of_backend(member: Member) -> dict[str, float]:
    return {
        "outstanding_requests": member.outstanding,
        "requests": member.served,
        "failures": member.failures,
    }


def _of_engine(member: Member) -> dict[str, float]:
    known = member.backend.children
    return {name: sum(getattr(one, name) for one in known) for name in (_ENGINES if known else ())}


def _states(members: list[tuple[str, Member]]) -> Metric:
    family = GaugeMetricFamily(
        "unilect_backends",
        "Backends by state: up (gets requests), open (left out until a probe succeeds), resting (busy, for its Retry-After).",
        labels=(*_BACKEND, "state"),
    )
    now_s, counts = time.monotonic(), Counter[tuple[str, str, str]]()
    for model, member in members:
        breaker = member.breaker
        state = "open" if breaker.open else "resting" if breaker.rest_s(now_s) else "up"
        for one in ("up", "open", "resting"):
            counts[model, shorten(member.source), one] += one == state
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _numbers(
    prefix: str,
    known: dict[str, tuple[str, bool]],
    rows: list[tuple[str, Member, dict[str, float]]],
) -> Iterator[Metric]:
    """A family for each known number of backends, or of their engines."""
    for name, (help, counts_events) in known.items():
        kind = CounterMetricFamily if counts_events else GaugeMetricFamily
        family = kind(f"unilect_{prefix}_{name}", help, labels=_BACKEND)
        sums = defaultdict[tuple[str, str], float](float)
        for model, member, numbers in rows:
            sums[model, shorten(member.source)] += numbers[name]
        for labels, value in sums.items():
            family.add_metric(labels, value)
        yield family


class Process(Collector):
    """The rest of the server: its connections, what it is answering, its store, its version."""

    def __init__(
        self,
        connections: Connections | None,
        requests: Requests | None,
        database: Database | None,
    ) -> None:
        self._connections = connections
        self._requests = requests
        self._database = database

    def collect(self) -> Iterator[Metric]:
        """Yield its current metrics."""
        build = GaugeMetricFamily(
            "unilect_build_info", "1, with the version.", labels=("version", "python")
        )
        build.add_metric([version("unilect"), platform.python_version()], 1)
        yield build
        if self._requests is not None:
            family = GaugeMetricFamily(
                "unilect_requests_in_flight",
                "Requests by state: reading (also those for no model), queued, waiting (for the first token), answering, held (without a client, see rejoin_s); with responses in the background.",
                labels=("state",),
            )
            states = Counter(one.state for one in self._requests.values())
            for state in ("reading", "queued", "waiting", "answering", "held"):
                family.add_metric([state], states[state])
            yield family
        if self._connections is not None:
            yield from _of_connections(self._connections)
        if self._database is not None:
            works = GaugeMetricFamily("unilect_store_up", "0 if the last use of the store failed.")
            works.add_metric([], self._database.works)
            failures = CounterMetricFamily(
                "unilect_store_failures", "Uses of the store that failed."
            )
            failures.add_metric([], self._database.failures)
            yield from (works, failures)


class Rejoined(Collector):
    """The answers that outlive their clients."""

    def __init__(self, rejoin: Rejoin) -> None:
        self._rejoin = rejoin

    def collect(self) -> Iterator[Metric]:
        """Yield the outcomes of held answers, and the memory that answers use now."""
        family = CounterMetricFamily(
            "unilect_held_answers",
            "Answers whose client has disconnected, by outcome: joined by the same request, ended; with rejoin_s only.",
            labels=("outcome",),
        )
        for outcome, count in self._rejoin.counts.items():
            family.add_metric([outcome], count)
        yield family
        kept = GaugeMetricFamily(
            "unilect_rejoin_bytes", "Memory of answers that may be joined; with rejoin_s only."
        )
        kept.add_metric([], self._rejoin.kept_bytes)
        yield kept


def _of_connections(connections: Connections) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "unilect_connections",
        "Connections by state: silent (no whole request head yet), answering, idle.",
        labels=("state",),
    )
    for state, count in connections.states.items():
        family.add_metric([state], count)
    yield family
    most = GaugeMetricFamily("unilect_connections_limit", "Maximum number of connections.")
    most.add_metric([], connections.limits.connections)
    yield most
    accepted = CounterMetricFamily("unilect_connections_accepted", "Accepted connections.")
    accepted.add_metric([], connections.accepted)
    yield accepted
    closed = CounterMetricFamily(
        "unilect_connections_closed",
        "Connections that the server closed or refused, by reason; not those that ended as usual.",
        labels=("reason",),
    )
    for reason, count in connections.closed.items():
        closed.add_metric([reason], count)
    yield closed
