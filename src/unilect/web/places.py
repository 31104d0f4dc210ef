"""Locations of the parts of a chat request in a body of another API: an error names what the client has sent."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from unilect.core.errors import UnilectError

_MESSAGE = re.compile(r"\bmessages\[(\d{1,6})\]((?:\.\w+(?:\[\d+\])?)*)")
_PART = re.compile(r"\.content\[(\d{1,6})\](\.image_url)?")
_CALL = re.compile(r"\.tool_calls\[(\d{1,6})\]")
_TOOL = re.compile(r"\btools\[(\d{1,6})\](\.function\.parameters)?")


class Place(Struct, frozen=True):
    """
    The location of one message of a chat in the body.

    Attributes:
        message: The message itself, such as `input[3]`.
        content: Its content; of a message with an image, the first.
        parts: Each part of its content, if that is not one text.
        calls: Each of its tool calls.
    """

    message: str
    content: str
    parts: Sequence[str] = ()
    calls: Sequence[str] = ()


class Places(Struct, frozen=True):
    """
    The locations of the parts of a chat request in the body that it was translated from.

    Attributes:
        names: The names of the chat's parameters there; empty for one that has no name.
        image: The suffix of a part's location for the image in it, such as `.source`.
        schema: The suffix of a tool's location for the schema of its parameters.
        messages: The location of each message.
        tools: The location of each tool.
    """

    names: Mapping[str, str]
    image: str
    schema: str
    messages: Sequence[Place]
    tools: Sequence[str]

    def reword(self, error: UnilectError) -> UnilectError:
        """The same error, with the client's names of what is wrong."""
        told = error.alone()
        told.reword(self._text)
        return told

    def _text(self, text: str) -> str:
        for ours, theirs in self.names.items():
            text = (
                theirs
                if theirs and text == ours
                else text.replace(f"`{ours}`", f"`{theirs or ours}`")
            )
        return _TOOL.sub(self._tool, _MESSAGE.sub(self._message, text))

    def _message(self, found: re.Match[str]) -> str:
        number, rest = int(found[1]), found[2]
        if number >= len(self.messages):
            return found[0]
        place = self.messages[number]
        if (part := _PART.match(rest)) is not None:
            at = int(part[1])
            told = place.parts[at] if at < len(place.parts) else place.content
            return told + (self.image if part[2] else "")
        if rest.startswith(".content"):
            return place.content
        call = _CALL.match(rest)
        if call is not None and int(call[1]) < len(place.calls):
            return place.calls[int(call[1])]
        return place.message

    def _tool(self, found: re.Match[str]) -> str:
        number = int(found[1])
        if number >= len(self.tools):
            return found[0]
        return self.tools[number] + (self.schema if found[2] else "")
