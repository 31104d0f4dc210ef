"""
Assigns the pieces of a stream to tool calls.

OpenAI numbers the calls of an answer and sends id and name once, in a call's first piece. Other servers repeat id and name in
every piece, send a new id with each piece, number every call 0, count from 1, or send no numbers. Clients cannot join such
pieces, so they are normalized: indexes from 0 without gaps, id and name once.

Source: https://platform.openai.com/docs/guides/function-calling
"""

import msgspec
from msgspec import Struct


class Call(Struct):
    """
    A tool call that has begun.

    Attributes:
        number: The index in unilect's answer, from 0.
        index: The server's index, or None.
        id: The server's id, or "".
        name: The function's name, or "" until it arrives.
        pieces: The arguments so far.
        is_sent: Its first piece was sent to the client.
    """

    number: int
    index: int | None
    id: str = ""
    name: str = ""
    pieces: list[str] = []
    is_sent: bool = False

    def is_whole(self) -> bool:
        """Return True if the arguments so far are a complete JSON object."""
        last = next((piece for piece in reversed(self.pieces) if not piece.isspace()), "")
        if not last.rstrip().endswith("}"):  # of a server that repeats names every piece is asked
            return False
        text = "".join(self.pieces)
        if not text.lstrip().startswith("{"):
            return False
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Calls:
    """The tool calls of one choice, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def assign_delta(
        self, index: int | None, id: str, name: str, arguments: str, apart: bool = False
    ) -> tuple[Call, str] | None:
        """
        Add a piece.

        Args:
            index, id, name, arguments: As the server sent them; None or "" for none.
            apart: The piece follows another one without an index in the same delta: with a name it begins a call.

        Returns:
            The piece's call, and the arguments to send; None if the call's name has not arrived.
        """
        call = self._latest(index, id)
        if call is None or (name and _is_another(call, index, id, name, arguments, apart)):
            call = Call(len(self._calls), index)
            self._calls.append(call)
        call.id = call.id or id
        call.name = call.name or name
        if arguments:
            call.pieces.append(arguments)
        if call.is_sent:
            return call, arguments
        return (call, "".join(call.pieces)) if call.name else None

    def nameless(self) -> list[Call]:
        """Return the calls that were never sent, because they have no name."""
        return [call for call in self._calls if not call.is_sent]

    def empty(self) -> list[Call]:
        """Return the calls that were told without arguments: an object without fields, which clients can read."""
        return [
            call for call in self._calls if call.is_sent and not any(map(str.strip, call.pieces))
        ]

    def _latest(self, index: int | None, id: str) -> Call | None:
        """Return the last call with this index; without an index the one with this id, else the last of all."""
        for call in reversed(self._calls):
            if index is not None and call.index == index:
                return call
            if index is None and (not id or call.id == id):
                return call
        return self._calls[-1] if index is None and self._calls else None


def _is_another(
    call: Call, index: int | None, id: str, name: str, arguments: str, apart: bool
) -> bool:
    """Return True if a piece with a name and the index of an earlier call begins another call: the server's indexes are wrong."""
    if not call.name or (id and id == call.id):
        return False
    if apart and index is None:
        return True
    if id and call.id:
        return name != call.name or call.is_whole()
    return name != call.name or (bool(arguments.strip()) and call.is_whole())
