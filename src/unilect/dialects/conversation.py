"""The messages of a chat while they are made of the turns or items of another API, with where each stands in the client's body."""

from msgspec import Struct, field

from unilect.core.bounds import MAX_PARTS as MAX_VALUES
from unilect.core.bounds import most_values
from unilect.core.errors import InvalidRequest
from unilect.core.requests import FunctionCall, Message, MessageToolCall
from unilect.web.param_locations import MessageLocation


class AssistantTurn(Struct):
    """
    The thoughts, texts and calls of the assistant that follow one another, which are one message.

    Attributes:
        place: Where it begins in the body.
        calls: The calls, by their places.
    """

    place: str
    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: dict[str, MessageToolCall] = field(default_factory=dict)


class ChatBuilder:
    """
    Collects the messages of a chat.

    Attributes:
        messages: What was added.
        places: Where each message stands in the body.
        left_out: What was left out, as `X-Unilect-Ignored` names it.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[MessageLocation] = []
        self.left_out: list[str] = []
        self._values = 0  # of the arguments of all calls

    def add_message(self, message: Message, place: MessageLocation) -> None:
        """Add a message."""
        self.messages.append(message)
        self.places.append(place)

    def add_assistant(
        self, turn: AssistantTurn, text: str | None, thought: str, content: str
    ) -> None:
        """
        Add the message of a turn of the assistant.

        Args:
            text, thought: All of its texts and thoughts.
            content: Where its content stands in the body.
        """
        message = Message(
            "assistant",
            text,
            tool_calls=[*turn.calls.values()] or None,
            reasoning_content=thought or None,
        )
        self.add_message(message, MessageLocation(turn.place, content, calls=[*turn.calls]))

    def read_call(
        self, id: str, name: str, arguments: str, where: str, named: str
    ) -> MessageToolCall:
        """
        Return an earlier call of the assistant.

        Args:
            where: Where it stands in the body.
            named: What its arguments are called there.

        Raises:
            InvalidRequest: The arguments of all calls have too many values.
        """
        self._values += most_values(arguments)
        if self._values > MAX_VALUES:
            raise InvalidRequest.at(
                where,
                f": the calls up to here have more than {MAX_VALUES} values in their `{named}`; that is the maximum. "
                "Remove older calls.",
            )
        return MessageToolCall(id, FunctionCall(name, arguments))
