"""
Chat templates: a conversation becomes the one text that a model reads.

A template is Jinja, as the models' own are: the text of one, the path of one, or the name of a format of `formats.toml`, where the
formats of older servers stand as data, with the stop words that belong to them. It runs in Jinja's sandbox, since it may come out of
a file that somebody else made.

Source: https://huggingface.co/docs/transformers/chat_templating
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from unilect.errors import ConfigError, InvalidRequest
from unilect.requests import Message, TextPart


class Format(Struct, frozen=True, forbid_unknown_fields=True):
    """
    One named format of `formats.toml`.

    Attributes:
        template: Jinja; it sees `messages` (dicts with `role` and `content`, a text), `add_generation_prompt` and the special tokens.
        stop: Words at which an answer ends, because the next turn would begin there.
        stop_token_ids: The same as token ids, where the words have none that a text could hold.
        aliases: Other names, as older servers gave them.
    """

    template: str
    stop: list[str] = []
    stop_token_ids: list[int] = []
    aliases: list[str] = []


class ChatTemplate:
    """
    A template that is ready to be used.

    Args:
        text: Jinja.
        stop: Words at which an answer ends.
        stop_token_ids: The same as token ids.

    Raises:
        ConfigError: It is not Jinja.
    """

    def __init__(
        self, text: str, stop: Sequence[str] = (), stop_token_ids: Sequence[int] = ()
    ) -> None:
        self.text = text
        self.stop = tuple(stop)
        self.stop_token_ids = tuple(stop_token_ids)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat_template: this is no Jinja template: {error}.") from error

    def render(self, messages: Sequence[Message], **more: Any) -> str:
        """
        The text that a model reads before it answers.

        Args:
            more: Further names that the template may use: `tools`, `bos_token`, `eos_token`, a request's `chat_template_kwargs`.

        Raises:
            InvalidRequest: The template refuses this conversation.
        """
        return self.render_turns([_turn(message) for message in messages], **more)

    def render_turns(self, turns: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """As `render`, of messages that are dicts already, with `content` a text."""
        names: dict[str, Any] = {"add_generation_prompt": True, "bos_token": "", "eos_token": ""}
        try:
            return self._template.render(names | more | {"messages": turns})
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise InvalidRequest(
                f"`messages`: the model's chat template refuses them: {str(error)[:300]}.",
                param="messages",
            ) from error


def find(given: str) -> ChatTemplate:
    """
    The template of an option: the name of a format, Jinja, or the path of a file that holds some.

    Raises:
        ConfigError: It is none of them.
    """
    if (found := _by_name().get(given)) is not None:
        return ChatTemplate(found.template, found.stop, found.stop_token_ids)
    if "{" in given or "\n" in given:
        return ChatTemplate(given)
    try:
        return ChatTemplate(Path(given).read_text())
    except (OSError, UnicodeDecodeError) as error:
        near = get_close_matches(given, _by_name(), n=3)
        hint = f" Do you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"chat_template: {given[:100]} is no Jinja, no named format and no file that can be read.{hint}"
        ) from error


def names() -> list[str]:
    """The names of all formats, sorted."""
    return sorted(_formats())


def flat_text(message: Message) -> str:
    """A message's content as one text; its images are not in it."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))


@cache
def _formats() -> dict[str, Format]:
    data = files("unilect").joinpath("formats.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, Format])


@cache
def _by_name() -> dict[str, Format]:
    found = dict(_formats())
    for one in _formats().values():
        found |= dict.fromkeys(one.aliases, one)
    return found


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


def _turn(message: Message) -> Mapping[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    return turn | {"content": flat_text(message)}


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
