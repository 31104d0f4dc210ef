"""
Renders the prompt of a chat for a FastChat worker from `conv`, the answer of /worker_get_conv_template.

The format of a conv is a number, `sep_style`, and the numbers have changed: the releases up to 0.2.36 only
appended to them, later code inserted LLAMA3 in the middle. So a conv is identified by its name, if that is known, then by the fields
that only later workers send, by markers in its separators, and last by its number.

Source: https://github.com/lm-sys/FastChat (fastchat/conversation.py, 0.2.36 and 2025-04)
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.requests import SYSTEM_ROLES, ImagePart, Message, Prompt
from unilect.http.error_bodies import decode_body
from unilect.templates import chat as templates

_PLACEHOLDER = "$$<image>$$"  # where an image stands in the prompt


class Conv(Struct, frozen=True):
    """A worker's conversation template. The last two fields come from later workers only."""

    name: str = ""
    system_template: str = "{system_message}"
    system_message: str = ""
    roles: tuple[str, str] = ("USER", "ASSISTANT")
    messages: list[tuple[str, str | None]] = []
    sep_style: int | None = None
    sep: str | None = "\n"
    sep2: str | None = None
    stop_str: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    system_message_vision: str | UnsetType | None = UNSET
    max_image_size_mb: float | UnsetType | None = UNSET

    @property
    def stop(self) -> list[str]:
        """The template's stop sequences."""
        if self.stop_str is None:
            return []
        return [self.stop_str] if isinstance(self.stop_str, str) else self.stop_str


class ChatPrompt(Struct, frozen=True):
    """
    A chat ready for a worker.

    Attributes:
        text: The prompt.
        stop: The stop sequences.
        stop_token_ids: The stop tokens.
        images: Base64, or a URL, of each image, in the order of their places in the text.
    """

    text: str
    stop: list[str]
    stop_token_ids: list[int]
    images: list[str] = []


class Style(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The format of a prompt: a table of `styles.toml`.

    Attributes:
        turn: A turn; also the assistant's unless `reply` is set.
        open: The beginning of the answer's turn.
        reply: A turn of the assistant.
        first: The first turn.
        round: The text before a user turn.
        between: The text between two turns.
        system: The beginning, with the system message.
        without: The beginning without a system message, if it differs.
        header_needed: `without` is used for an empty system message even if the system template has a header.
        system_in_turn: The format has no system message: its text is put before the first turn's.
        tight: Blank lines within a text are removed, because one would end the turn.
        strip: Whitespace around a text is stripped.
        later: Only later code has it.
        names: The templates that have it, where its number moved.
        marks: What a separator or a role of it alone holds; for templates that nobody here knows by name.
    """

    turn: str
    open: str
    reply: str | None = None
    first: str | None = None
    round: str = ""
    between: str = ""
    system: str = "{system}{sep}"
    without: str | None = None
    header_needed: bool = False
    system_in_turn: bool = False
    tight: bool = False
    strip: bool = False
    later: bool = False
    names: list[str] = []
    marks: list[str] = []


STYLES = msgspec.toml.decode(
    Path(__file__).with_name("styles.toml").read_bytes(), type=dict[str, Style]
)
_MOVED = 8  # numbers below it mean the same for everybody
_BY_NAME = {name: style for style in STYLES.values() for name in style.names}


def style(conv: Conv) -> Style:
    """
    Return the format of a conv.

    Raises:
        BackendError: Its number is unknown, and nothing else identifies it.
    """
    if found := _BY_NAME.get(conv.name):
        return found
    number = conv.sep_style or 0
    later = conv.system_message_vision is not UNSET or conv.max_image_size_mb is not UNSET
    if number >= _MOVED and not later:
        text = "".join([*conv.roles, conv.sep or "", conv.sep2 or "", conv.system_template])
        for one in STYLES.values():
            if any(mark in text for mark in one.marks):
                return one
    numbered = [one for one in STYLES.values() if later or not one.later]
    if not 1 <= number <= len(numbered):
        raise BackendError(
            f"The worker's prompt template `{conv.name[:50]}` has the style {conv.sep_style}, which is unknown. "
            "Set `chat_template` for this model."
        )
    return numbered[number - 1]


def chat_prompt(conv: Conv, messages: Sequence[Message]) -> ChatPrompt:
    """
    Return the prompt of a chat: by the named format of the conv's name, else by the conv's fields.

    Raises:
        InvalidRequest: A message has a role that the template does not have.
        BackendError: The template is not supported.
    """
    images = [url for message in messages for url in _images(message)]
    ids = conv.stop_token_ids or []
    if not images and (format := templates.find_named(conv.name)) is not None:
        stop = list(dict.fromkeys([*conv.stop, *format.stop]))
        ids = list(dict.fromkeys([*ids, *format.stop_token_ids]))
        return ChatPrompt(format.render(messages), stop, ids)
    return ChatPrompt(_fill_template(conv, style(conv), messages), conv.stop, ids, images)


def _fill_template(conv: Conv, how: Style, messages: Sequence[Message]) -> str:
    system, turns = _split_messages(conv, messages)
    if how.system_in_turn and system and turns:
        turns[0] = (turns[0][0], f"{system}\n\n{turns[0][1]}")
    names = {"sep": conv.sep or "", "sep2": conv.sep2 or ""}
    pieces = []
    for number, (role, text) in enumerate(turns):
        if how.tight:
            text = text.replace("\r\n", "\n").replace("\n\n", "\n")
        even = number % 2 == 0
        pattern = how.turn if even or how.reply is None else how.reply
        if number == 0 and how.first is not None:
            pattern = how.first
        text = text.strip() if how.strip else text
        pieces.append(
            _round(conv, how, number).format(**names)
            + pattern.format(role=role, text=text, **names)
        )
    begin = _beginning(conv, how, system).format(system=_system(conv, how, system), **names)
    last = _round(conv, how, len(turns)).format(**names)
    return begin + how.between.join(pieces) + last + how.open.format(role=conv.roles[1], **names)


def _split_messages(conv: Conv, messages: Sequence[Message]) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message and the turns, after the template's own examples. A system message replaces the template's."""
    turns = [(role, text or "") for role, text in conv.messages]
    systems = []
    for number, message in enumerate(messages):
        text = _PLACEHOLDER * len(_images(message)) + templates.flat_text(message)
        if message.role in SYSTEM_ROLES:
            systems.append(text)
        elif message.role in ("user", "assistant"):
            turns.append((conv.roles[message.role == "assistant"], text))
        else:
            where = f"messages[{number}].role"
            raise InvalidRequest(
                f"`{where}` is {message.role}; the worker's prompt template supports system, user and assistant.",
                param=where,
            )
    return "\n".join(systems) if systems else conv.system_message, turns


def _beginning(conv: Conv, how: Style, system: str) -> str:
    told = system if how.header_needed else _system(conv, how, system)
    return how.system if told or how.without is None else how.without


def _system(conv: Conv, how: Style, system: str) -> str:
    """Return the system message in its template. A ChatML-like template without a header for it gets ChatML's."""
    frame = conv.system_template
    if system and how is STYLES["CHATML"] and frame == "{system_message}":
        head, marked, _ = conv.roles[0].partition("user")
        frame = f"{head}system\n{frame}" if head and marked else frame
    return frame.replace("{system_message}", system)


def _round(conv: Conv, how: Style, number: int) -> str:
    """Return the text before a user turn; chatglm2 counts its rounds from one."""
    if number % 2:
        return ""
    return how.round.replace("{round}", str(number // 2 + (conv.name == "chatglm2")))


def _images(message: Message) -> list[str]:
    """Return the images of a message; of a `data:` URL only its base64, as workers expect it."""
    if not isinstance(message.content, list):
        return []
    urls = [part.image_url.url for part in message.content if isinstance(part, ImagePart)]
    return [url.partition(",")[2] if url.startswith("data:") else url for url in urls]


def decode(body: bytes) -> Conv:
    """
    Return the answer of /worker_get_conv_template.

    Raises:
        BackendError: The answer is not a template.
    """
    otherwise = "The worker's prompt template is not in FastChat's format. Set `chat_template` for this model."
    return decode_body(body, _Answer, otherwise).conv


class _Answer(Struct):
    conv: Conv


def text_of(prompt: Prompt, param: str) -> str:
    """
    Return a prompt, which must be text: a worker does not accept token ids, and has no endpoint to detokenize them.

    Raises:
        InvalidRequest: The prompt is a list of token ids.
    """
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequest(
        f"`{param}` has token ids, and this model's server accepts texts only. Send the text "
        "(with LangChain: `check_embedding_ctx_length=False`).",
        param=param,
    )


def check_images(messages: list[Message]) -> None:
    """
    Check that images are `data:` URLs: a worker would fetch any other URL.

    Raises:
        InvalidRequest: An image is another URL.
    """
    for number, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:image/"):
                where = f"messages[{number}].content"
                raise InvalidRequest(
                    f"`{where}`: an image must be a `data:image/...;base64,` URL; URLs are not fetched.",
                    param=where,
                )
