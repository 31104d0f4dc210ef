"""
Replays the requests of a ledger with a memory of another size: which models would have been loaded, and for whom.

A model stays until another one needs its place; then the idle one goes that was asked least recently. One that answers stays, and a pinned one
always.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field


class PastRequest(NamedTuple):
    """
    A request that was answered.

    Attributes:
        at: When it came, in seconds since 1970.
        model: The model that was asked for.
        duration_s: From then to its end.
    """

    at: float
    model: str
    duration_s: float


class Replay(Struct):
    """
    The outcome with a memory.

    Attributes:
        memory_bytes: Its size.
        loads: How often each model was loaded.
        read_bytes: What those loads put into memory, together.
        queued: Requests that waited until another model's answer had ended, since all others answered.
        queued_s: How long they waited for that, together; the time of loading is not known, and not in it.
        too_large: Requests to models that are larger than the memory.
    """

    memory_bytes: int
    loads: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    queued: int = 0
    queued_s: float = 0.0
    too_large: int = 0


def replay(
    requests: Iterable[PastRequest],
    needs: Mapping[str, int],
    memory_bytes: int,
    pinned: Collection[str] = (),
) -> Replay:
    """
    Replay requests.

    Args:
        requests: In the order in which they came; those to models without a need are left out.
        needs: Bytes of each model.
        pinned: Models that are loaded at the start, and stay. Without room for all of them nothing can be answered.
    """
    told, busy_until, used = Replay(memory_bytes), OrderedDict[str, float](), 0
    stay = {name: needs[name] for name in pinned if name in needs}
    room = memory_bytes - sum(stay.values())
    if room >= 0:
        told.loads.update(stay.keys())
        told.read_bytes = memory_bytes - room
    begins = dict[str, float]()  # of a model that is in memory: not before this it answers
    for request in requests:
        name = request.model
        if (need := needs.get(name)) is None:
            continue
        if room < 0 or (name not in stay and need > room):
            told.too_large += 1
            continue
        if name in stay:
            continue
        if name not in busy_until:
            now = request.at
            while used + need > room:
                idle = next((one for one, until in busy_until.items() if until <= now), None)
                if idle is None:
                    now = min(busy_until.values())
                else:
                    del busy_until[idle]
                    used -= needs[idle]
            used += need
            told.loads[name] += 1
            told.read_bytes += need
            begins[name] = busy_until[name] = now
        start = max(request.at, begins[name])
        told.queued += start > request.at
        told.queued_s += start - request.at
        busy_until[name] = max(busy_until[name], start + request.duration_s)
        busy_until.move_to_end(name)
    return told
