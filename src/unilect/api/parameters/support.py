"""The support of every parameter, from the list of those that a backend honours; see `Capabilities`."""

from collections.abc import Iterable

from unilect.api.backend import Support
from unilect.api.parameters.rules import ACCEPTED
from unilect.core.requests import LLAMACPP_NATIVE, ChatRequest, CompletionRequest

#: Those of both endpoints that say what the answer shall be.
_ALL = (
    {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *LLAMACPP_NATIVE}
    - {*ACCEPTED, *ChatRequest.gateway_fields, *CompletionRequest.gateway_fields, "raw_fields"}
)  # fmt: skip
TOOL_PARAMETERS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")


def names(text: str) -> tuple[str, ...]:
    """The names that stand in a text, with blanks between."""
    return tuple(text.split())


def declare_support(native: Iterable[str], emulated: Iterable[str]) -> dict[str, Support]:
    """All parameters: those that are neither native nor emulated are refused."""
    found: dict[str, Support] = dict.fromkeys(_ALL, "refused")
    return found | dict.fromkeys(native, "native") | dict.fromkeys(emulated, "emulated")
