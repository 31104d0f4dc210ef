"""
The conversation of a Messages body as the messages of a chat.

Chat templates take one system message, first, then user and assistant in turns, with tool results between. So:

1. `system` and system turns before the first assistant turn are one system message. A later system turn is text of the user turn
   beside it: moved to the front it would change the prefix that is in the prompt cache.
2. Adjacent turns of one role are one message. The results in a user turn stand before its text, as its calls want them.
3. What a template would leave out silently (a document, a search result) becomes text.

Source: https://platform.claude.com/docs/en/api/messages
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from unilect.core.bounds import LARGE_BYTES
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import (
    MAX_MESSAGES,
    ImagePart,
    ImageUrl,
    Message,
    MessageToolCall,
    Part,
    TextPart,
)
from unilect.dialects.conversation import AssistantTurn, ChatBuilder
from unilect.dialects.messages._body import Block, Content, MessagesRequest, Source, Turn
from unilect.web.decode import wrong_field
from unilect.web.param_locations import MessageLocation

#: A signature of ours that holds the thought of a block whose text was omitted.
MARK = "unilect1."
_BILLING = "x-anthropic-billing-header:"  # Claude Code's; the service leaves it out of a text that says more
_NULL = (b"", b"null")
_MAX_SIGNATURE = 1024 * 1024  # characters; no model thinks that much at a time
_SHOWN = 50  # characters of a client's word in a message
_BETWEEN = "\n\n"
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
#: Blocks that Anthropic's own tools left in the conversation.
_HOSTED = ("server_tool_use", "mcp_tool_use", "container_upload", "fallback", "compaction")
_READ = "text, image, document, search_result, tool_use, tool_result, tool_reference, thinking and redacted_thinking"
_content = msgspec.json.Decoder(Content)
_source = msgspec.json.Decoder(Source)


def sign_thought(thought: str) -> str:
    """Return the signature that brings an omitted thought back in the next turn."""
    return MARK + b64encode(thought.encode(errors="surrogatepass")).decode()


class Conversation(ChatBuilder):
    """
    Reads the turns of a body.

    Args:
        body: The request.

    Attributes:
        referenced: The names of the tools that a `tool_reference` makes available.

    Raises:
        InvalidRequest: A block is wrong or cannot be read; the message names it.
    """

    def __init__(self, body: MessagesRequest) -> None:
        super().__init__()
        self.referenced: set[str] = set()
        self._calls: set[str] = set()
        self._unanswered: dict[str, str] = {}  # calls of the turn before, by their places
        self._inputs = 0  # bytes of all calls' arguments
        self._system: list[str] = []
        self._user: _User | None = None
        self._assistant_turn: AssistantTurn | None = None
        self._answered = False  # there was a turn of the assistant
        if body.system is not None:
            self._system += filter(None, _texts(_blocks(body.system), "system"))
        for number, turn in enumerate(body.messages):
            self._turn(turn, f"messages[{number}]")
        self._end_assistant()
        self._end_user()
        self._check_calls()
        if not self.messages:
            raise InvalidRequest.at("messages", "has no turn of the user. Send at least one.")
        if not all(text.startswith(_BILLING) for text in self._system):
            self.messages.insert(0, Message("system", _BETWEEN.join(self._system)))
            self.places.insert(0, MessageLocation("system", "system"))
        if len(self.messages) > MAX_MESSAGES:
            raise InvalidRequest.at(
                "messages",
                f"holds {len(self.messages)} turns and tool results; the maximum is {MAX_MESSAGES}. "
                "Remove older turns.",
            )

    def _turn(self, turn: Turn, place: str) -> None:
        where = f"{place}.content"
        if turn.role == "assistant":
            self._assistant(_blocks(turn.content), place)
        elif turn.role == "system" and not self._answered:
            self._system += filter(None, _texts(_blocks(turn.content), where))
        else:
            self._end_assistant()
            if self._user is None:
                self._user = _User(place)
            self._read_user(_blocks(turn.content), where)

    def _assistant(self, blocks: Sequence[Block], place: str) -> None:
        texts, thoughts, calls = list[str](), list[str](), dict[str, MessageToolCall]()
        for number, block in enumerate(blocks):
            where = f"{place}.content[{number}]"
            match block.type:
                case "text":
                    texts.append(_require(block.text, f"{where}.text"))
                case "thinking":
                    thoughts += filter(None, [_read_thought(block)])
                case "tool_use":
                    calls[where] = self._call(block, where)
                case "redacted_thinking":
                    pass  # nobody but who wrote it can read it
                case kind if _is_hosted(kind):
                    self.left_out.append(f"{where}:{kind[:_SHOWN]}")
                case kind:
                    raise _unreadable(f"{where}.type", kind, "text, thinking and tool_use")
        text = "".join(texts)
        if not (text or thoughts or calls):
            return
        self._end_user()
        if self._assistant_turn is None:
            self._check_calls()
        self._unanswered |= {call.id: where for where, call in calls.items()}
        self._answered = True
        if self._assistant_turn is None:
            self._assistant_turn = AssistantTurn(place)
        self._assistant_turn.texts += [text] if text else []
        self._assistant_turn.thoughts += thoughts
        self._assistant_turn.calls |= calls

    def _call(self, block: Block, where: str) -> MessageToolCall:
        """Return an earlier call."""
        id, name = _require(block.id, f"{where}.id"), _require(block.name, f"{where}.name")
        self._inputs += len(memoryview(block.input))
        compact = self._inputs <= LARGE_BYTES  # spaces of more are not worth another pass
        arguments = _arguments(block.input, f"{where}.input", compact)
        self._calls.add(id)
        return self.read_call(id, name, arguments, where, "input")

    def _check_calls(self) -> None:
        """
        Raises:
            InvalidRequest: A call has no result; Claude Code mends its conversation where it finds these words.
        """
        for id, where in self._unanswered.items():
            raise InvalidRequest.at(
                where,
                f": `tool_use` ids were found without `tool_result` blocks immediately after: {id[:100]}. Send the result of each "
                "call in the turn after it.",
            )

    def _read_user(self, blocks: Sequence[Block], where: str) -> None:
        """Add the blocks of a user turn, or of a later system turn, to the user message that is being read."""
        assert self._user is not None
        for number, block in enumerate(blocks):
            place = f"{where}[{number}]"
            if block.type == "tool_result":
                self._user.results.append((self._result(block, place), place))
            elif _is_hosted(block.type):
                self.left_out.append(f"{place}:{block.type[:_SHOWN]}")
            else:
                self._user.add(self._part(block, place), place)

    def _result(self, block: Block, where: str) -> Message:
        """Return a tool's result; its images go to the user's part of the turn, since a tool message is text to most templates."""
        assert self._user is not None
        id = _require(block.tool_use_id, f"{where}.tool_use_id")
        if id not in self._calls:
            raise InvalidRequest.at(
                f"{where}.tool_use_id",
                f"is {id[:100]!r}, and no `tool_use` block of an earlier assistant turn has this id. "
                "Send the turn with the call, too.",
            )
        self._unanswered.pop(id, None)
        texts = []
        for number, inner in enumerate(_inner(block.content, f"{where}.content")):
            place = f"{where}.content[{number}]"
            part = self._part(inner, place)
            if isinstance(part, str):
                texts.append(part)
            else:
                self._user.add(part, place)
        text = _BETWEEN.join(text for text in texts if text)
        return Message("tool", f"Error: {text}" if block.is_error else text, tool_call_id=id)

    def _part(self, block: Block, where: str) -> str | ImagePart:
        """Return a block as a text or an image."""
        match block.type:
            case "text":
                return _require(block.text, f"{where}.text")
            case "image":
                return _image(block, f"{where}.source")
            case "document":
                return self._document(block, where)
            case "search_result":
                texts = _texts(_inner(block.content, f"{where}.content"), f"{where}.content")
                source = _decode(block.source, str, f"{where}.source")
                return "\n".join([_require(block.title, f"{where}.title"), source, *texts])
            case "tool_reference":
                name = _require(block.tool_name, f"{where}.tool_name")
                self.referenced.add(name)
                return f"Tool {name} is now available."
        raise _unreadable(f"{where}.type", block.type, _READ)

    def _document(self, block: Block, where: str) -> str:
        """Return a document's text, after its title and what is said of it."""
        place = f"{where}.source"
        source = _decode(block.source, _source, place)
        if source.type == "text":
            texts = [_require(source.data, f"{place}.data")]
        elif source.type == "content":
            texts = _texts(_inner(source.content, f"{place}.content"), f"{place}.content")
        else:
            # words at which Claude Code goes on without the document
            what = "Could not process PDF: " if source.media_type == "application/pdf" else ""
            raise UnsupportedParameter(
                f"{what}`{place}` is a document of type {source.type[:50]!r}, which is not read here: only `text` and `content` "
                "are. Send the document's text.",
                param=place,
            )
        return "\n".join(filter(None, (block.title, block.context, *texts)))

    def _end_assistant(self) -> None:
        """Add the assistant's message that was read, if one was."""
        turn, self._assistant_turn = self._assistant_turn, None
        if turn is not None:
            text, thought = _BETWEEN.join(turn.texts), "".join(turn.thoughts)
            self.add_assistant(turn, text, thought, f"{turn.place}.content")

    def _end_user(self) -> None:
        """Add the messages of the user turn that was read, if one was."""
        user, self._user = self._user, None
        if user is None:
            return
        for result, place in user.results:
            self.add_message(result, MessageLocation(place, f"{place}.content"))
        if user.parts or not user.results:
            content = user.image or f"{user.place}.content"
            self.add_message(
                Message("user", user.content()), MessageLocation(user.place, content, user.places)
            )


class _User:
    """A user turn while it is read: its tool results, and what the user says."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.image = ""
        self.results: list[tuple[Message, str]] = []
        self.parts: list[str | ImagePart] = []
        self.places: list[str] = []  # of the parts

    def add(self, part: str | ImagePart, place: str) -> None:
        """Add a text, unless it is empty, or an image."""
        if part:
            self.parts.append(part)
            self.places.append(place)
        if not isinstance(part, str):
            self.image = self.image or place

    def content(self) -> str | list[Part]:
        """Return the content of a message: one text where there is nothing else."""
        texts = [part for part in self.parts if isinstance(part, str)]
        if len(texts) == len(self.parts):
            return _BETWEEN.join(texts)
        return [TextPart(part) if isinstance(part, str) else part for part in self.parts]


def _blocks(content: Content) -> list[Block]:
    """Return content as blocks."""
    return [Block("text", text=content)] if isinstance(content, str) else content


def _texts(blocks: Sequence[Block], where: str) -> list[str]:
    """Return the texts of blocks of which each must be one."""
    texts = []
    for number, block in enumerate(blocks):
        if block.type != "text":
            raise _unreadable(f"{where}[{number}].type", block.type, "text")
        texts.append(_require(block.text, f"{where}[{number}].text"))
    return texts


def _inner(raw: Raw, where: str) -> list[Block]:
    """Return the blocks of a block; none where it has no content."""
    return [] if bytes(memoryview(raw)[:5]) in _NULL else _blocks(_decode(raw, _content, where))


def _decode(raw: Raw, kind: Any, where: str) -> Any:
    """
    Decode a field that was kept as it was written.

    Raises:
        InvalidRequest: It is missing, or not of this type.
    """
    if not bytes(memoryview(raw)[:1]):
        raise _missing(where)
    decoder = kind if isinstance(kind, msgspec.json.Decoder) else msgspec.json.Decoder(kind)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error), where=where) from error


def _arguments(raw: Raw, where: str, compact: bool) -> str:
    """Return the input of a call as JSON text; a compact one is without the spaces between its values."""
    if bytes(memoryview(raw)[:1]) != b"{":
        if bytes(memoryview(raw)[:5]) in _NULL:
            return "{}"
        raise InvalidRequest.at(where, ": expected an object.")
    return (msgspec.json.format(bytes(raw), indent=-1) if compact else bytes(raw)).decode()


def _read_thought(block: Block) -> str:
    """Return the text of a thinking block; of an omitted one the text in its signature, where that is ours."""
    signature = block.signature or ""
    if block.thinking or not signature.startswith(MARK) or len(signature) > _MAX_SIGNATURE:
        return block.thinking or ""
    try:
        return b64decode(signature[len(MARK) :], validate=True).decode()
    except ValueError:  # another server's, or cut
        return ""


def _image(block: Block, where: str) -> ImagePart:
    """Return an image as a URL: of its data, or where it is; the service fetches it for backends that take data alone."""
    source = _decode(block.source, _source, where)
    if source.type == "url":
        url = _require(source.url, f"{where}.url")
        if not url[:8].lower().startswith(("http://", "https://")):
            raise InvalidRequest.at(
                f"{where}.url",
                ": expected an http or https URL; an image's data is sent as a source of type `base64`.",
            )
        return ImagePart(ImageUrl(url))
    if source.type != "base64":
        raise UnsupportedParameter.at(
            f"{where}.type",
            f"is {source.type[:50]!r}; images are read as `base64` and `url` only. Send the image's data.",
        )
    kind = _require(source.media_type, f"{where}.media_type")
    if kind not in _IMAGES:
        raise InvalidRequest.at(
            f"{where}.media_type", f"is {kind[:_SHOWN]!r}; expected one of {', '.join(_IMAGES)}."
        )
    return ImagePart(ImageUrl(f"data:{kind};base64,{_require(source.data, f'{where}.data')}"))


def _is_hosted(kind: str) -> bool:
    """Return True for a block of a tool that Anthropic's servers run."""
    return kind in _HOSTED or (kind.endswith("_tool_result") and kind != "tool_result")


def _require(value: str | None, where: str) -> str:
    """
    Return a field that a block of its type must have.

    Raises:
        InvalidRequest: It is missing.
    """
    if value is None:
        raise _missing(where)
    return value


def _missing(where: str) -> InvalidRequest:
    return InvalidRequest.at(where, "is missing; it is required.")


def _unreadable(where: str, kind: str, known: str) -> InvalidRequest:
    return InvalidRequest.at(
        where, f"is {kind[:_SHOWN]!r}, which is not read here; known here are {known}."
    )
