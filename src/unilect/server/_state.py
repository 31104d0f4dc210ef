"""
The current state of a server, for its metrics: backends and their engines, connections, requests, the store.

It is read when somebody reads the metrics. Labels are the names of models and backends, which the configuration and the registered
workers bound, and words of the code. Values with the same labels are added up.
"""

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unilect.accounting.metrics import Metrics
from unilect.answers.inflight import Answers
from unilect.models.registry import Registry
from unilect.runtime.context import Requests
from unilect.runtime.redact import shorten
from unilect.scheduling.pooled_backend import PooledBackend
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
_REQUEST_STATES = ("reading", "queued", "waiting", "answering", "held")


def metrics_of(
    registry: Registry,
    connections: Connections | None = None,
    requests: Requests | None = None,
    database: Database | None = None,
    *,
    per_key: bool = False,
    rejoin: Answers | None = None,
) -> Metrics:
    """
    Make the metrics of a server.

    Args:
        connections, requests, database, rejoin: The further parts that are measured, where there are such.
        per_key: Requests and tokens are counted for each key, too.
    """
    metrics = Metrics(per_key=per_key)
    metrics.registry.register(State(registry, connections, requests, database, rejoin))
    ProcessCollector(registry=metrics.registry)
    return metrics


class State(Collector):
    """The state of a server; arguments as of `metrics_of`."""

    def __init__(
        self,
        registry: Registry,
        connections: Connections | None,
        requests: Requests | None,
        database: Database | None,
        rejoin: Answers | None,
    ) -> None:
        self._registry, self._connections, self._requests = registry, connections, requests
        self._database, self._rejoin = database, rejoin

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        yield from _of_models(self._registry)
        build = (version("unilect"), platform.python_version())
        yield _gauge("build_info", "1, with the version.", ("version", "python"), [(build, 1)])
        if self._requests is not None:
            states = Counter(one.state for one in self._requests.values())
            yield _by(
                _gauge,
                "requests_in_flight",
                "Requests by state: reading (also those for no model), queued, waiting (for the first token), answering, held (without a client, see rejoin_s); with responses in the background.",
                "state",
                {state: states[state] for state in _REQUEST_STATES},
            )
        if self._connections is not None:
            yield from _of_connections(self._connections)
        if self._database is not None:
            works, failures = self._database.works, self._database.failures
            yield _gauge("store_up", "0 if the last use of the store failed.", (), [((), works)])
            yield _counter("store_failures", "Uses of the store that failed.", (), [((), failures)])
        if self._rejoin is not None:
            yield from _of_rejoin(self._rejoin)


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    help: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """Make a family from the values of its labels and its numbers."""
    family = kind(f"unilect_{name}", help, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _by(
    family: Callable[..., Metric], name: str, help: str, label: str, numbers: Mapping[str, float]
) -> Metric:
    """Make a family with one label."""
    return family(name, help, (label,), [((value,), number) for value, number in numbers.items()])


def _of_models(registry: Registry) -> Iterator[Metric]:
    """Yield the metrics of the models and their backends."""
    models = registry.models.values()
    yield _by(
        _gauge,
        "model_loaded",
        "1 if the model's engine is loaded.",
        "model",
        {model.name: model.runs_here for model in models if model.runs_locally},
    )
    yield _by(
        _counter,
        "retries",
        "Requests that were sent to another backend, or again, after a backend failed.",
        "model",
        {model.name: model.retries for model in models},
    )
    yield _counter(
        "fallbacks",
        "Requests that were sent to the fallback of the model that was asked for.",
        ("model", "fallback"),
        [((m.name, name), count) for m in models for name, count in m.fallbacks.items()],
    )
    members = [(model.name, one) for model in models for one in model.pool.members]
    yield _gauge(
        "backends",
        "Backends by state: up (gets requests), open (left out until a probe succeeds), resting (busy, for its Retry-After).",
        (*_BACKEND, "state"),
        _states(members).items(),
    )
    yield from _numbers("backend", _BACKENDS, [(*who, _of_backend(who[1])) for who in members])
    engines = [(*who, _of_engine(who[1])) for who in members if who[1].backend.children]
    yield from _numbers("engine", _ENGINES, engines)


def _of_backend(member: PooledBackend) -> dict[str, float]:
    return {
        "outstanding_requests": member.outstanding,
        "requests": member.served,
        "failures": member.failures,
    }


def _of_engine(member: PooledBackend) -> dict[str, float]:
    return {name: sum(getattr(one, name) for one in member.backend.children) for name in _ENGINES}


def _states(members: list[tuple[str, PooledBackend]]) -> Counter[tuple[str, str, str]]:
    """Count backends by model, source and state; 0 for the states that none has."""
    now_s, counts = time.monotonic(), Counter[tuple[str, str, str]]()
    for model, member in members:
        breaker = member.breaker
        state = "open" if breaker.open else "resting" if breaker.cooldown_s(now_s) else "up"
        for one in ("up", "open", "resting"):
            counts[model, shorten(member.source), one] += one == state
    return counts


def _numbers(
    prefix: str,
    known: dict[str, tuple[str, bool]],
    rows: list[tuple[str, PooledBackend, dict[str, float]]],
) -> Iterator[Metric]:
    """Yield a family for each known number of backends, or of their engines."""
    for name, (help, counts_events) in known.items():
        sums = defaultdict[tuple[str, str], float](float)
        for model, member, numbers in rows:
            sums[model, shorten(member.source)] += numbers[name]
        family = _counter if counts_events else _gauge
        yield family(f"{prefix}_{name}", help, _BACKEND, sums.items())


def _of_rejoin(rejoin: Answers) -> Iterator[Metric]:
    """Yield the outcomes of held answers, and the memory that answers use now."""
    yield _by(
        _counter,
        "held_answers",
        "Answers whose client has disconnected, by outcome: joined by the same request, ended; with rejoin_s only.",
        "outcome",
        rejoin.counts,
    )
    yield _gauge(
        "rejoin_bytes",
        "Memory of answers that may be joined; with rejoin_s only.",
        (),
        [((), rejoin.kept_bytes)],
    )


def _of_connections(connections: Connections) -> Iterator[Metric]:
    yield _by(
        _gauge,
        "connections",
        "Connections by state: silent (no whole request head yet), answering, idle.",
        "state",
        connections.states,
    )
    most = connections.limits.connections
    yield _gauge("connections_limit", "Maximum number of connections.", (), [((), most)])
    yield _counter(
        "connections_accepted", "Accepted connections.", (), [((), connections.accepted)]
    )
    yield _by(
        _counter,
        "connections_closed",
        "Connections that the server closed or refused, by reason; not those that ended as usual.",
        "reason",
        connections.closed,
    )
