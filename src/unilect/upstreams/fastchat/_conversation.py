"""
The prompt of a chat, as a FastChat worker wants it: `conv`, the answer of /worker_get_conv_template, filled with messages.

A conv says how its pieces are put together by a number, `sep_style`, and the numbers moved: the releases up to 0.2.36 only
appended to them, later code put LLAMA3 in the middle. So a conv is told by its name where it has a known one, by the fields
that only later workers send, by marks in its separators, and by its number last.

Source: https://github.com/lm-sys/FastChat (fastchat/conversation.py, 0.2.36 and 2025-04)
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from unilect import templates
from unilect.errors import BackendError, InvalidRequest
from unilect.http.error_bodies import typed
from unilect.requests import ImagePart, Message

_PLACEHOLDER = "$$<image>$$"  # where an image stands in the prompt


class Conv(Struct, frozen=True):
    """What a worker says of its template. The last two fields come from later workers only."""

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
        """The words at which the template's answers end."""
        if self.stop_str is None:
            return []
        return [self.stop_str] if isinstance(self.stop_str, str) else self.stop_str


class ChatPrompt(Struct, frozen=True):
    """
    A chat ready for a worker.

    Attributes:
        text: The prompt.
        stop: The words at which the answer ends.
        stop_token_ids: The same as token ids.
        images: Base64, or a URL, of each image, in the order of their places in the text.
    """

    text: str
    stop: list[str]
    stop_token_ids: list[int]
    images: list[str] = []


class Style(Struct, frozen=True, kw_only=True):
    """
    How the pieces are put together. The texts name `{system}`, `{role}`, `{text}`, `{sep}`, `{sep2}` and `{round}`.

    Attributes:
        turn: A turn; the assistant's too unless `reply` says otherwise.
        open: What stands where the answer begins.
        reply: A turn of the assistant.
        first: The first turn of all.
        round: What stands before a turn of the user.
        between: What stands between two turns.
        system: The beginning.
        without: The beginning without a system text, where it differs.
        header_needed: `without` is for an empty system text also where the system template has a frame.
        system_in_turn: The format has no place for a system text: it goes before the first turn's.
        tight: Blank lines within a text are taken out, since one would end the turn.
        strip: The ends of a text are stripped.
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


_COLON = "{role}: {text}{sep}"
_COLON_2 = "{role}: {text}{sep2}"
_ROUND = "[Round {round}]{sep}"
_L3 = "<|start_header_id|>{role}<|end_header_id|>\n\n"
STYLES = {
    "ADD_COLON_SINGLE": Style(turn=_COLON, open="{role}:"),
    "ADD_COLON_TWO": Style(turn=_COLON, reply=_COLON_2, open="{role}:"),
    "ADD_COLON_SPACE_SINGLE": Style(turn=_COLON, open="{role}: "),
    "NO_COLON_SINGLE": Style(turn="{role}{text}{sep}", open="{role}", system="{system}"),
    "NO_COLON_TWO": Style(
        turn="{role}{text}{sep}", reply="{role}{text}{sep2}", open="{role}", system="{system}"
    ),
    "ADD_NEW_LINE_SINGLE": Style(turn="{role}\n{text}{sep}", open="{role}\n", without=""),
    "LLAMA2": Style(
        first="{text} ",
        turn="{role} {text}{sep}",
        reply="{role} {text}{sep2}",
        open="{role}",
        system="{system}",
        without="[INST] ",
        header_needed=True,
    ),
    "LLAMA3": Style(
        turn=_L3 + "{text}<|eot_id|>",
        open=_L3,
        system="<|begin_of_text|>{system}",
        without="<|begin_of_text|>",
        header_needed=True,
        strip=True,
    ),
    "CHATGLM": Style(turn="{role}：{text}{sep}", open="{role}：", round=_ROUND, without=""),
    "CHATML": Style(
        turn="{role}\n{text}{sep}\n", open="{role}\n", system="{system}{sep}\n", without=""
    ),
    "CHATINTERN": Style(
        turn="{role}:{text}{sep}\n",
        reply="{role}:{text}{sep2}\n",
        open="{role}:",
        round="<s>",
        system="{system}",
    ),
    "DOLLY": Style(
        turn="{role}:\n{text}{sep}",
        reply="{role}:\n{text}{sep2}\n\n",
        open="{role}:\n",
        system="{system}",
    ),
    "RWKV": Style(turn="{role}: {text}\n\n", open="{role}:", system="{system}", tight=True),
    "PHOENIX": Style(turn="{role}: <s>{text}</s>", open="{role}: <s>", system="{system}"),
    "ROBIN": Style(turn="{role}:\n{text}{sep}", open="{role}:\n"),
    "FALCON_CHAT": Style(turn=_COLON, open="{role}:", without="", header_needed=True),
    "CHATGLM3": Style(
        turn="{role}\n{text}", open="{role}", system="{system}", without="", header_needed=True
    ),
    "DEEPSEEK_CHAT": Style(turn=_COLON, reply=_COLON_2, open="{role}:", system="{system}"),
    "METAMATH": Style(
        turn="{role}:\n{text}{sep}", reply="{role}: {sep2}{text}", open="{role}: {sep2}", without=""
    ),
    "YUAN2": Style(
        turn="{text}",
        between="<n>",
        open="{sep}",
        system="{system}{sep2}",
        without="",
        header_needed=True,
    ),
    "GEMMA": Style(
        turn="<start_of_turn>{role}\n{text}{sep}",
        open="<start_of_turn>{role}\n",
        system="<bos>",
        system_in_turn=True,
    ),
    "CLLM": Style(turn=_COLON, reply=_COLON_2, open="{role}:"),
    "DEFAULT": Style(turn="{role}: {text}\n", open="{role}:", system="{system}\n"),
}

_LATER = list(STYLES)
_EARLIER = [name for name in _LATER if name not in ("LLAMA3", "GEMMA", "CLLM", "DEFAULT")]
_MOVED = 8  # numbers below it mean the same for everybody

#: The names of those templates whose numbers moved.
_NAMES = {
    "LLAMA3": "llama-3",
    "CHATGLM": "chatglm chatglm2",
    "CHATML": "chatml mpt-7b-chat mpt-30b-chat lemur-70b-chat starchat mistral-7b-openorca dolphin-2.2.1-mistral-7b "
    "OpenHermes-2.5-Mistral-7B Nous-Hermes-2-Mixtral-8x7B-DPO qwen-7b-chat Yi-34b-chat zephyr catppt TinyLlama orca-2",
    "CHATINTERN": "internlm-chat",
    "DOLLY": "dolly_v2 vigogne_instruct",
    "RWKV": "rwkv falcon",
    "PHOENIX": "phoenix ReaLM-7b-v1",
    "ROBIN": "Robin tigerbot",
    "FALCON_CHAT": "openchat_3.5 tenyxchat falcon-chat",
    "CHATGLM3": "chatglm3",
    "DEEPSEEK_CHAT": "deepseek-chat",
    "METAMATH": "metamath",
    "YUAN2": "yuan2",
    "GEMMA": "gemma",
    "CLLM": "cllm",
    "DEFAULT": "api_based_default",
}
_BY_NAME = {name: style for style, names in _NAMES.items() for name in names.split()}

#: What a separator or a role holds -> the style that it can only be; for templates that nobody here knows by name.
_MARKS = {
    "<|im_start|>": "CHATML",
    "<|im_end|>": "CHATML",
    "<|start_header_id|>": "LLAMA3",
    "<eoh>": "CHATINTERN",
    "<end_of_turn>": "GEMMA",
    "### End": "DOLLY",
}


def style(conv: Conv) -> Style:
    """
    How a conv's pieces are put together.

    Raises:
        BackendError: Its number means nothing here, and nothing else tells.
    """
    if found := _BY_NAME.get(conv.name):
        return STYLES[found]
    number = conv.sep_style or 0
    later = conv.system_message_vision is not UNSET or conv.max_image_size_mb is not UNSET
    if number >= _MOVED and not later:
        text = "".join([*conv.roles, conv.sep or "", conv.sep2 or "", conv.system_template])
        for mark, named in _MARKS.items():
            if mark in text:
                return STYLES[named]
    numbered = _LATER if later else _EARLIER
    if not 1 <= number <= len(numbered):
        raise BackendError(
            f"The worker's prompt template `{conv.name[:50]}` has the style {conv.sep_style}, which is not known here. "
            "Set `chat_template` for this model."
        )
    return STYLES[numbered[number - 1]]


def chat_prompt(conv: Conv, messages: Sequence[Message]) -> ChatPrompt:
    """
    A chat, as the worker wants it: by the named format of the conv's name, else by its fields.

    Raises:
        InvalidRequest: A message of a role that no such template has.
        BackendError: The template cannot be made out.
    """
    images = [url for message in messages for url in _images(message)]
    ids = conv.stop_token_ids or []
    if not images and (format := templates.named(conv.name)) is not None:
        stop = list(dict.fromkeys([*conv.stop, *format.stop]))
        ids = list(dict.fromkeys([*ids, *format.stop_token_ids]))
        return ChatPrompt(format.render(messages), stop, ids)
    return ChatPrompt(_filled(conv, style(conv), messages), conv.stop, ids, images)


def _filled(conv: Conv, how: Style, messages: Sequence[Message]) -> str:
    system, turns = _sorted_out(conv, messages)
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


def _sorted_out(conv: Conv, messages: Sequence[Message]) -> tuple[str, list[tuple[str, str]]]:
    """The system text and the turns, the template's own examples first. A system message stands instead of the template's."""
    turns = [(role, text or "") for role, text in conv.messages]
    systems = []
    for number, message in enumerate(messages):
        text = _PLACEHOLDER * len(_images(message)) + templates.flat_text(message)
        if message.role in ("system", "developer"):
            systems.append(text)
        elif message.role in ("user", "assistant"):
            turns.append((conv.roles[message.role == "assistant"], text))
        else:
            where = f"messages[{number}].role"
            raise InvalidRequest(
                f"`{where}` is {message.role}; the worker's prompt template knows system, user and assistant.",
                param=where,
            )
    return "\n".join(systems) if systems else conv.system_message, turns


def _beginning(conv: Conv, how: Style, system: str) -> str:
    told = system if how.header_needed else _system(conv, how, system)
    return how.system if told or how.without is None else how.without


def _system(conv: Conv, how: Style, system: str) -> str:
    """The system text in its frame. A frame that has none, in a template of ChatML's style, is given ChatML's."""
    frame = conv.system_template
    if system and how is STYLES["CHATML"] and frame == "{system_message}":
        head, marked, _ = conv.roles[0].partition("user")
        frame = f"{head}system\n{frame}" if head and marked else frame
    return frame.replace("{system_message}", system)


def _round(conv: Conv, how: Style, number: int) -> str:
    """What stands before a turn of the user; chatglm2 counts its rounds from one."""
    if number % 2:
        return ""
    return how.round.replace("{round}", str(number // 2 + (conv.name == "chatglm2")))


def _images(message: Message) -> list[str]:
    """The images of a message, a `data:` URL as its base64 alone, which is how workers read one."""
    if not isinstance(message.content, list):
        return []
    urls = [part.image_url.url for part in message.content if isinstance(part, ImagePart)]
    return [url.partition(",")[2] if url.startswith("data:") else url for url in urls]


def decode(body: bytes) -> Conv:
    """
    The answer of /worker_get_conv_template.

    Raises:
        BackendError: It is none.
    """
    otherwise = "The worker does not tell its prompt template as FastChat does. Set `chat_template` for this model."
    return typed(body, _Answer, otherwise).conv


class _Answer(Struct):
    conv: Conv
