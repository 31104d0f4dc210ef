"""
The current state of a server, for its metrics: backends and their engines, connections, requests, the store.

It is read when somebody reads the metrics. Labels are the names of models and backends, which the configuration and the registered
workers bound, and words of the code. Values with the same labels are added up.
"""

import os
import platform
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from unilect.accounting.exposition import Family
from unilect.accounting.metrics import Metrics
from unilect.answers.inflight import Answers
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import Requests
from unilect.runtime.redact import shorten
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._connections import Connections
from unilect.server._memory import Memory, measure_memory
from unilect.store.database import Database

_MODEL, _BACKEND, _STATE = ("model",), ("model", "backend"), ("state",)
#: The families, by name: their type, their help and their labels.
_FAMILIES: dict[str, tuple[Literal["counter", "gauge"], str, tuple[str, ...]]] = {
    "model_loaded": ("gauge", "1 if the model's engine is loaded.", _MODEL),
    "model_events": ("counter", "Events of a model's place in memory: loaded, evicted (for another model, or since memory is short), stopped, waits (for memory of others), refused, failed, skipped (at start); and of its processes: died, hung (and killed), restarted, failed (to be).", (*_MODEL, "event")),
    "model_predicted_memory_bytes": ("gauge", "Memory that the model is reckoned to take at most.", _MODEL),
    "model_measured_memory_bytes": ("gauge", "Memory that the model took when it was last loaded, with its part of what is shared; 0 before the first load.", _MODEL),
    "model_load_seconds": ("gauge", "Seconds that the last load of the model took.", _MODEL),
    "memory_budget_bytes": ("gauge", "Memory that all models together may take.", ()),
    "memory_claimed_bytes": ("gauge", "Memory that the loaded models are reckoned to take at most.", ()),
    "gpu_memory_budget_bytes": ("gauge", "Memory of a GPU that all models together may take.", ("gpu",)),
    "gpu_memory_claimed_bytes": ("gauge", "Memory of a GPU that the loaded models are to have.", ("gpu",)),
    "retries": ("counter", "Requests that were sent to another backend, or again, after a backend failed.", _MODEL),
    "fallbacks": ("counter", "Requests that were sent to the fallback of the model that was asked for.", ("model", "fallback")),
    "backends": ("gauge", "Backends by state: up (gets requests), open (left out until a probe succeeds), resting (busy, for its Retry-After).", (*_BACKEND, "state")),
    "backend_outstanding_requests": ("gauge", "Requests that a backend is answering or has queued.", _BACKEND),
    "backend_requests": ("counter", "Requests that were sent to a backend.", _BACKEND),
    "backend_failures": ("counter", "Failed requests and starts of a backend, without errors of the request itself.", _BACKEND),
    "engine_starts": ("counter", "Starts of engine processes that succeeded.", _BACKEND),
    "engine_deaths": ("counter", "Engine processes that ended unasked.", _BACKEND),
    "engine_hangs": ("counter", "Engine processes that were killed because they were unresponsive.", _BACKEND),
    "engine_processes": ("gauge", "Engine processes that are ready. Models that share one each report it.", _BACKEND),
    "engine_resident_memory_bytes": ("gauge", "Resident memory of engine processes, with mapped files.", _BACKEND),
    "engine_proportional_memory_bytes": ("gauge", "The same, where what several processes map is divided among them (PSS): the sum is what they take together.", _BACKEND),
    "build_info": ("gauge", "1, with the version.", ("version", "python")),
    "requests_in_flight": ("gauge", "Requests by state: reading (also those for no model), queued, waiting (for the first token), answering, held (without a client, see rejoin_s); with responses in the background.", _STATE),
    "connections": ("gauge", "Connections by state: silent (no whole request head yet), answering, idle.", _STATE),
    "connections_limit": ("gauge", "Maximum number of connections.", ()),
    "connections_accepted": ("counter", "Accepted connections.", ()),
    "connections_closed": ("counter", "Connections that the server closed or refused, by reason; not those that ended as usual.", ("reason",)),
    "store_up": ("gauge", "0 if the last use of the store failed.", ()),
    "store_failures": ("counter", "Uses of the store that failed.", ()),
    "held_answers": ("counter", "Answers whose client has disconnected, by outcome: joined by the same request, ended; with rejoin_s only.", ("outcome",)),
    "process_virtual_memory_bytes": ("gauge", "Virtual memory size in bytes.", ()),
    "process_resident_memory_bytes": ("gauge", "Resident memory size in bytes.", ()),
    "process_start_time_seconds": ("gauge", "Start time of the process since unix epoch in seconds.", ()),
    "process_cpu_seconds": ("counter", "Total user and system CPU time spent in seconds.", ()),
    "process_open_fds": ("gauge", "Number of open file descriptors.", ()),
    "process_max_fds": ("gauge", "Maximum number of open file descriptors.", ()),
    "rejoin_bytes": ("gauge", "Memory of answers that may be joined; with rejoin_s only.", ()),
}  # fmt: skip
_OF_BACKEND = {"outstanding_requests": "outstanding", "requests": "served", "failures": "failures"}
_OF_ENGINE = ("starts", "deaths", "hangs", "processes", "resident_memory_bytes")
_REQUEST_STATES = ("reading", "queued", "waiting", "answering", "held")
_BACKEND_STATES = ("up", "open", "resting")


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
    state = State(registry, connections, requests, database, rejoin)
    metrics.collectors.append(state.collect)
    metrics.measure = state.measure
    metrics.collectors.append(_of_process)
    return metrics


class State:
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
        self._memory: Memory = {}

    async def measure(self) -> None:
        """Measure what takes too long for `collect`."""
        self._memory = await measure_memory(self._registry.bases)

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        yield from self._of_models()
        build = (version("unilect"), platform.python_version())
        yield _family("build_info", [(build, 1)])
        if self._requests is not None:
            states = Counter(one.state for one in self._requests.values())
            yield _by("requests_in_flight", {state: states[state] for state in _REQUEST_STATES})
        if (connections := self._connections) is not None:
            yield _by("connections", connections.states)
            yield _number("connections_limit", connections.limits.connections)
            yield _number("connections_accepted", connections.accepted)
            yield _by("connections_closed", connections.closed)
        if self._database is not None:
            yield _number("store_up", self._database.works)
            yield _number("store_failures", self._database.failures)
        if self._rejoin is not None:
            yield _by("held_answers", self._rejoin.counts)
            yield _number("rejoin_bytes", self._rejoin.kept_bytes)

    def _of_models(self) -> Iterator[Family]:
        """Yield the metrics of the models and their backends."""
        names, models = self._registry.models.values(), self._registry.bases
        yield _by("model_loaded", {one.name: one.runs_here for one in models if one.runs_locally})
        yield from _of_places(models)
        if (residency := self._registry.residency) is not None and residency.budget is not None:
            yield _number("memory_budget_bytes", residency.budget)
            yield _number("memory_claimed_bytes", residency.claimed)
            account = residency.account
            for name, found in (("budget", account.budget), ("claimed", account.claimed)):
                gpus = {str(number): size for number, size in enumerate(found.gpus)}
                yield _by(f"gpu_memory_{name}_bytes", gpus)
        yield _by("retries", {one.name: one.retries for one in names})
        pairs = [((m.name, name), count) for m in names for name, count in m.fallbacks.items()]
        yield _family("fallbacks", pairs)
        members = [
            ((model.name, shorten(one.source)), one)
            for model in models
            for one in model.pool.members
        ]
        yield _family("backends", _states(members).items())
        for name, attribute in _OF_BACKEND.items():
            rows = [(labels, getattr(one, attribute)) for labels, one in members]
            yield _sums(f"backend_{name}", rows)
        engines = [(labels, one.backend.children) for labels, one in members]
        for name in _OF_ENGINE:
            rows = [(labels, getattr(one, name)) for labels, known in engines for one in known]
            yield _sums(f"engine_{name}", rows)
        memory = [(labels, self._memory.get(one, 0)) for labels, known in engines for one in known]
        yield _sums("engine_proportional_memory_bytes", memory)


def _of_places(models: list[Model]) -> Iterator[Family]:
    """Yield the metrics of the models' events, and of their places in memory."""
    places = [(one.name, one.place) for one in models if one.place is not None]
    kinds = [((one.name, kind), n) for one in models for kind, n in one.events.counts.items()]
    yield _family("model_events", kinds)
    yield _by("model_predicted_memory_bytes", {name: one.need.total for name, one in places})
    yield _by("model_measured_memory_bytes", {name: one.measured_bytes for name, one in places})
    yield _by("model_load_seconds", {name: one.load_s for name, one in places if one.load_s is not None})  # fmt: skip


@cache
def _boot_time() -> float:
    """Return the time when this machine was started; read once, since a clock that is set does not restart the process."""
    now_s, up_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(now_s - up_s)


def _of_process() -> Iterator[Family]:
    """Make the metrics that servers tell of their process, as far as there is a /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return
    ticks = os.sysconf("SC_CLK_TCK")
    numbers = {
        "virtual_memory_bytes": int(fields[20]),
        "resident_memory_bytes": int(fields[21]) * resource.getpagesize(),
        "start_time_seconds": _boot_time() + int(fields[19]) / ticks,
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / ticks,
        "open_fds": files,
        "max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    for name, number in numbers.items():
        yield _family(f"process_{name}", [((), number)])


def _family(name: str, rows: Collection[tuple[Sequence[str], float]]) -> Family:
    """Make a family from the values of its labels and its numbers."""
    kind, help, labels = _FAMILIES[name]
    prefix = "" if name.startswith("process_") else "unilect_"
    return Family(f"{prefix}{name}{'_total' * (kind == 'counter')}", kind, help, labels, rows)


def _by(name: str, numbers: Mapping[str, float]) -> Family:
    """Make a family with one label."""
    return _family(name, [((value,), number) for value, number in numbers.items()])


def _number(name: str, number: float) -> Family:
    """Make a family without labels."""
    return _family(name, [((), number)])


def _sums(name: str, rows: Iterable[tuple[tuple[str, str], float]]) -> Family:
    """Make a family with sums for each model and source."""
    sums = defaultdict[tuple[str, str], float](float)
    for labels, number in rows:
        sums[labels] += number
    return _family(name, sums.items())


def _states(members: list[tuple[tuple[str, str], PooledBackend]]) -> Counter[tuple[str, str, str]]:
    """Count backends by model, source and state; 0 for the states that none has."""
    now_s, counts = time.monotonic(), Counter[tuple[str, str, str]]()
    for labels, member in members:
        breaker = member.breaker
        state = "open" if breaker.open else "resting" if breaker.cooldown_s(now_s) else "up"
        for one in _BACKEND_STATES:
            counts[(*labels, one)] += one == state
    return counts
