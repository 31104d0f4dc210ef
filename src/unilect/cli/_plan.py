"""The work of `unilect plan`: what the requests of the past would have met with another memory."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from unilect.accounting.replay import PastRequest, Replay, replay
from unilect.cli._screen import tell, tell_table
from unilect.cli._server_view import size_text
from unilect.config import load as config_load
from unilect.config.durations import since as parse_since
from unilect.config.server import process_environment
from unilect.config.sizes import parse_size, wrong_size
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.models import sources
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.memory import total_bytes
from unilect.store.store import Store

_RIGHT = (1, 2, 3, 4, 5)


def show(config: Path | None, memory: Sequence[str], since: str, as_json: bool) -> None:
    """Print what the requests since a time would have met with each memory; by default with that of this machine, and twice that."""
    settings = config_load.load(config)
    sizes = [_size(text) for text in memory] or _default_sizes()
    begin = parse_since(since, "--since", time.time())
    registry = sources.registry(settings)
    needs = {model.name: need for model in registry.bases if (need := _need(model)) is not None}
    rows = asyncio.run(_requests(settings.store, begin))
    requests = [PastRequest(at, _base(registry, name), s) for at, name, s in rows]
    if not requests:
        raise ConfigError(
            "the ledger has no requests of that time. It is written for servers with keys or limits, or with `ledger` in [store]."
        )
    asked = Counter(one.model for one in requests)
    pinned = [model.name for model in registry.bases if model.pinned]
    replays = [replay(requests, needs, size, pinned) for size in sizes]
    if as_json:
        tell(json.dumps(_report(needs, asked, replays)))
        return
    _print(needs, asked, replays)


def _print(needs: Mapping[str, int], asked: Counter[str], replays: Sequence[Replay]) -> None:
    head = ["MODEL", "NEEDS", "REQUESTS", *(f"LOADS IN {size_text(one.memory_bytes)}" for one in replays)]  # fmt: skip
    rows = [
        [name, size_text(needs[name]), str(count), *(str(one.loads[name]) for one in replays)]
        for name, count in asked.most_common()
        if name in needs
    ]
    tell_table(head, rows, range(1, len(head)))
    for name, count in asked.items():
        if name not in needs:
            tell(f"{name}: {count} requests are left out: what it needs is not known here")
    tell()
    tell_table(
        ("MEMORY", "LOADS", "READ", "WAITED FOR ROOM", "SECONDS", "TOO LARGE"),
        [
            (
                size_text(one.memory_bytes),
                str(one.loads.total()),
                size_text(one.read_bytes),
                str(one.queued),
                f"{one.queued_s:.0f}",
                str(one.too_large),
            )
            for one in replays
        ],
        _RIGHT,
    )


def _report(
    needs: Mapping[str, int], asked: Counter[str], replays: Sequence[Replay]
) -> dict[str, Any]:
    """Make the JSON of a report: sizes in bytes."""
    return {
        "models": {name: {"requests": n, "needs_bytes": needs.get(name)} for name, n in asked.items()},
        "memories": [
            {
                "memory_bytes": one.memory_bytes,
                "loads": one.loads,
                "read_bytes": one.read_bytes,
                "queued": one.queued,
                "queued_s": round(one.queued_s, 3),
                "too_large": one.too_large,
            }
            for one in replays
        ],
    }  # fmt: skip


def _size(text: str) -> int:
    """
    Parse a size.

    Raises:
        ConfigError: It is none.
    """
    if wrong := wrong_size(text):
        raise ConfigError(f"--memory: {wrong}")
    return parse_size(text) or 0


def _default_sizes() -> list[int]:
    """
    Return the machine's memory, and twice that.

    Raises:
        ConfigError: The system does not tell.
    """
    total = total_bytes()
    if total is None:
        raise ConfigError("--memory: the system does not tell how much there is. Name a size.")
    return [total, 2 * total]


def _need(model: Model) -> int | None:
    """Return the bytes that a model takes once it is loaded; None for one that runs elsewhere, or is not here yet."""
    found = [member.backend.memory_need() for member in model.pool.members]
    return (
        sum(one.ready for one in found if one) if all(one and one.ready for one in found) else None
    )


def _base(registry: Registry, name: str) -> str:
    """Return the model that is loaded for a name of the ledger."""
    return registry.get(name).base.name if name in registry else name


async def _requests(config: StoreConfig, since: float) -> list[tuple[float, str, float]]:
    """
    Read the requests of a store's ledger.

    Raises:
        ConfigError: It cannot be read.
    """
    async with aclosing(Store(config, process_environment(), is_permanent=True)) as store:
        try:
            return await store.ledger.requests(since)
        except StoreUnavailable as error:
            raise ConfigError(error.for_operator) from error
