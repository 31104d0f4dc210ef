"""What the backends of one model can do: each by itself, and all together."""

from collections.abc import Callable, Sequence

import msgspec

from unilect.backend import Capabilities, Support
from unilect.errors import UnilectError

_ABILITIES = ("passes_unknown", "vision", "chat", "completions", "embeddings", "rerank")
#: None is what a backend does not know, and does not refuse.
_BEST: tuple[Support | None, ...] = ("native", "emulated", "accepted", None, "refused")


def can(known: Capabilities, judge: Callable[[Capabilities], object]) -> bool:
    """Whether a backend can do what is asked of it, as far as it is known before it has started."""
    try:
        judge(known)
    except UnilectError:
        return not known.settled
    return True


def alike(every: Sequence[Capabilities]) -> bool:
    """Whether all can do the same."""
    return all(one == every[0] for one in every[1:])


def together(every: Sequence[Capabilities]) -> Capabilities:
    """What backends can do of which a request gets one that can: each parameter as it is honoured best, and the shortest context."""
    support = dict[str, Support]()
    for name in {name for one in every for name in one.parameters}:
        found = {one.parameters.get(name) for one in every}
        if best := next(one for one in _BEST if one in found):
            support[name] = best
    contexts = [one.context for one in every if one.context is not None]
    abilities = {name: any(getattr(one, name) for one in every) for name in _ABILITIES}
    known = Capabilities(
        parameters=support,
        context=min(contexts, default=None),
        why_not={name: why for one in every for name, why in one.why_not.items()},
        settled=bool(every) and all(one.settled for one in every),
        adapters=every[0].adapters if len({one.adapters for one in every}) == 1 else (),
    )
    return msgspec.structs.replace(known, **abilities)
