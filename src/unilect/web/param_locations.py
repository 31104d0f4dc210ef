"""Locations of the parts of a request in a body of another API: an error names what the client has sent."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from unilect.api.parameters.constraints import rename_params
from unilect.core.errors import UnilectError

_NAME = re.compile(r"\w*")
_MESSAGE = re.compile(r"messages\[(\d{1,6})\](.*)")
_PART = re.compile(r"\.content\[(\d{1,6})\](\.image_url)?")
_CALL = re.compile(r"\.tool_calls\[(\d{1,6})\]")
_TOOL = re.compile(r"tools\[(\d{1,6})\](\.function\.parameters)?")


class MessageLocation(Struct, frozen=True):
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

    def locate(self, path: str, image: str) -> str:
        """Return the client's path of a part of the message, such as `.content[0].image_url`."""
        if part := _PART.match(path):
            at = int(part[1])
            found = self.parts[at] if at < len(self.parts) else self.content
            return found + (image if part[2] else "")
        if path.startswith(".content"):
            return self.content
        call = _CALL.match(path)
        if call is not None and int(call[1]) < len(self.calls):
            return self.calls[int(call[1])]
        return self.message


class ParamLocations(Struct, frozen=True):
    """
    The locations of the parameters of a request in the body that it was translated from.

    Attributes:
        names: The names of the request's parameters there; empty for one that has no name.
        image: The suffix of a part's location for the image in it, such as `.source`.
        schema: The suffix of a tool's location for the schema of its parameters.
        messages: The location of each message.
        tools: The location of each tool.
    """

    names: Mapping[str, str]
    image: str = ""
    schema: str = ""
    messages: Sequence[MessageLocation] = ()
    tools: Sequence[str] = ()

    def rename(self, error: UnilectError) -> UnilectError:
        """Return the same error, with the client's names of what is wrong."""
        return rename_params(error.alone(), self.locate)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Rename the errors that are raised within."""
        try:
            yield
        except UnilectError as error:
            raise self.rename(error) from error

    def locate(self, path: str) -> str:
        """
        Return the client's path of a parameter or a part of one.

        >>> ParamLocations({"stop": "options.stop"}).locate("stop[0]")
        'options.stop[0]'
        """
        message = _MESSAGE.fullmatch(path)
        if message is not None and self.messages:
            number = int(message[1])
            known = number < len(self.messages)
            return self.messages[number].locate(message[2], self.image) if known else path
        tool = _TOOL.match(path)
        if tool is not None and int(tool[1]) < len(self.tools):
            return self.tools[int(tool[1])] + (self.schema if tool[2] else "") + path[tool.end() :]
        name = _NAME.match(path)[0]  # type: ignore[index]
        return (self.names.get(name) or name) + path[len(name) :]


#: Of a request whose client has sent it as it is.
AS_SENT = ParamLocations({})
