"""Capabilities of the backends of one model, compared and merged."""

from collections.abc import Callable, Sequence

import msgspec

from unilect.api.backend import Capabilities, Support
from unilect.core.errors import UnilectError

_ABILITIES = ("passes_unknown", "vision", "chat", "completions", "embeddings", "rerank")
#: None is what a backend does not know, and does not refuse.
_BEST: tuple[Support | None, ...] = ("native", "emulated", "accepted", None, "refused")


def can(known: Capabilities, judge: Callable[[Capabilities], object]) -> bool:
    """Return True if `judge` accepts the capabilities, or they are not final before the backend has started."""
    try:
        judge(known)
    except UnilectError:
        return not known.is_final
    return True


def alike(every: Sequence[Capabilities]) -> bool:
    """Return True if all capabilities are equal."""
    return all(one == every[0] for one in every[1:])


def together(every: Sequence[Capabilities]) -> Capabilities:
    """
    Merge the capabilities of backends of which each request gets one that fits it.

    Each parameter gets the best support that a backend has. The context is the shortest.
    """
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
        is_final=bool(every) and all(one.is_final for one in every),
        adapters=every[0].adapters if len({one.adapters for one in every}) == 1 else (),
    )
    return msgspec.structs.replace(known, **abilities)
