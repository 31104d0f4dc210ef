"""The states of a model, its changes to a request before a backend sees it, and the error where it has no room."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from unilect.api.backend import Capabilities
from unilect.api.parameters.rules import Unsupported, fill_defaults
from unilect.core.errors import BackendUnavailable

#: failed: its last start has failed. out: no backend of it can be asked. leaving: taken out by a reload, its last requests run.
State: TypeAlias = Literal[
    "leaving", "draining", "stopping", "loading", "stopped", "ready", "failed", "out"
]


_NO_ROOM = "does not fit into memory"  # in the words of all engines


class Settings(NamedTuple):
    """
    The changes of a model to a request.

    Attributes:
        prepare: What is done to it first.
        defaults: Values for what it leaves out.
        unsupported: What happens to parameters that its backend refuses.
    """

    prepare: Callable[[Any], Any]
    defaults: Mapping[str, Any]
    unsupported: Unsupported

    def apply(self, request: Any, can: Capabilities | None = None) -> Any:
        """The request with all that it leaves out, but for defaults that a backend which can do so much refuses."""
        request = self.prepare(request)
        return fill_defaults(request, self.defaults, can) if self.defaults else request


def name_idle(error: BackendUnavailable, idle: Callable[[], list[str]]) -> BackendUnavailable:
    """Return the error of a start, which tells the operator what is loaded and idle where it failed for want of memory."""
    names = idle() if _NO_ROOM in error.for_operator else []
    if not names:
        return error
    told = error.alone()
    told.reason = f"{error.for_operator} Loaded and idle: {', '.join(names[:10])}; `unilect stop MODEL` stops one."
    return told
