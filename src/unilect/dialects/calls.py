"""The tool calls of a whole answer, for the APIs whose calls have their arguments as objects."""

from collections.abc import Collection
from typing import Any

from unilect.core.errors import BackendError
from unilect.core.events import Choice, ToolCall


def parse_calls(
    choice: Choice, stop_words: Collection[str]
) -> list[tuple[ToolCall, dict[str, Any]]]:
    """
    Return the calls of an answer, each with its arguments; what a limit or the client's stop word has cut is no call.

    Raises:
        BackendError: The model has written arguments that are none.
    """
    is_cut = choice.finish_reason == "length" or choice.stop in stop_words
    found = []
    for call in choice.tool_calls:
        arguments = call.parse_arguments()
        if arguments is not None:
            found.append((call, arguments))
        elif not is_cut:
            raise BackendError(
                f"The model called `{call.name[:100]}` with arguments that are no JSON object. Send the request again."
            )
    return found
