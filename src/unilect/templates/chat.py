"""
Chat templates: a conversation becomes the one text that a model reads.

A template is Jinja, as the models' own are: the text of one, the path of one, or the name of a format of `formats.toml`, where the
formats of older servers stand as data, with the stop words that belong to them. It runs in a sandbox and within a limit of time, since it
may come out of a file that somebody else made.

Source: https://huggingface.co/docs/transformers/chat_templating
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import msgspec
from msgspec import Struct

from unilect.config.paths import is_jinja
from unilect.config.plain_file import read_plain
from unilect.core.errors import ConfigError, InvalidRequest
from unilect.core.requests import Message, TextPart
from unilect.templates.sandbox import Generation, Sandbox, limit_time, strftime

#: The formats of older servers, and llama.cpp's built-in ones.
_FORMATS = ("formats.toml", "formats_llamacpp.toml")
#: The processor time of a template, where a server waits for it; rendering 2,000 messages takes some 10 ms.
LIMIT_S = 0.25
MAX_TEMPLATE = 1024 * 1024  # characters
_COMPILE_S = 2.0
#: What compiling and rendering may end with: a template may do anything that Python's operators can refuse.
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError, MemoryError, SyntaxError)  # fmt: skip
#: Variables of every template, as in transformers.
_NAMES: dict[str, Any] = {
    "add_generation_prompt": True,
    "bos_token": "",
    "eos_token": "",
    "tools": None,
    "documents": None,
}
#: Names that templates give the thoughts of an earlier answer; the first is set where any is.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_WORD = re.compile(r"[A-Za-z_]\w*")


class Format(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One named format of `formats.toml`: Jinja, or a table of turns that becomes Jinja.

    Attributes:
        template: Jinja; it sees `messages` (dicts with `role` and `content`, a text), `add_generation_prompt` and the special tokens.
        preamble: What every prompt begins with.
        system, user, assistant, tool: A turn, with `{}` for its text; a tool's result is the user's where `tool` is None.
        opening: What the answer is written after.
        default_system: The text of the system where no message has one; empty for none.
        system_in_user: The system has no turn of its own, and is put before the text of the user's next one.
        stop: Words at which an answer ends, because the next turn would begin there.
        stop_token_ids: The same as token ids, where the words have none that a text could hold.
        aliases: Other names, as older servers gave them.
    """

    template: str | None = None
    preamble: str = ""
    system: str = "{}"
    user: str = "{}"
    assistant: str = "{}"
    tool: str | None = None
    opening: str = ""
    default_system: str = ""
    system_in_user: bool = False
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
        limit_s: The processor time that it may take for a conversation.

    Raises:
        ConfigError: It is not Jinja, or too long.
    """

    def __init__(
        self,
        text: str,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        limit_s: float = LIMIT_S,
    ) -> None:
        self.text = text
        self.stop = tuple(stop)
        self.stop_token_ids = tuple(stop_token_ids)
        self._limit_s = limit_s
        if len(text) > MAX_TEMPLATE:
            raise ConfigError(
                f"chat_template: it has {len(text)} characters, and may have {MAX_TEMPLATE}. Shorten it."
            )
        try:
            with limit_time(_COMPILE_S):
                self._template = _environment().from_string(text)
        except _FAULTS as error:
            raise ConfigError(
                f"chat_template: not valid Jinja: {sentence(_words(error))} Correct it, or name a format of docs/templates.md."
            ) from error

    def render(self, messages: Sequence[Message], **more: Any) -> str:
        """
        Render the text that a model reads before it answers.

        Args:
            more: Further names that the template may use: `tools`, `bos_token`, `eos_token`, a request's `chat_template_kwargs`.

        Raises:
            InvalidRequest: The template refuses this conversation.
        """
        turns = [msgspec.to_builtins(one) | {"content": flat_text(one)} for one in messages]
        return self.render_turns(turns, **more)

    def render_turns(self, turns: Sequence[Mapping[str, Any]], /, **more: Any) -> str:
        """Render messages that are dicts already, as `render` does, with `content` a text."""
        try:
            with limit_time(self._limit_s):
                return self._template.render(
                    _NAMES | more | {"messages": [_with_thoughts(turn) for turn in turns]}
                )
        except _FAULTS as error:
            raise template_refusal(_words(error)) from error


def template_refusal(words: str) -> InvalidRequest:
    """Return the error for a conversation that a chat template refuses with these words."""
    told = "`messages`: the model's chat template refuses them"
    return InvalidRequest(
        f"{told}: {sentence(words)} Send what it takes: other roles, or another order.",
        param="messages",
        logged=f"{told}.",
    )


def find(given: str) -> ChatTemplate:
    """
    Find the template of an option, ready to be used; see `read`.

    Raises:
        ConfigError: It is none, or no Jinja.
    """
    form = read(given)
    return ChatTemplate(jinja(form), form.stop, form.stop_token_ids)


def read(given: str) -> Format:
    """
    Read the format of an option: by its name, as Jinja, or from a file that holds some.

    Raises:
        ConfigError: It is none of them.
    """
    if (found := _by_name().get(given)) is not None:
        return found
    if is_jinja(given):
        return Format(template=given)
    try:
        return Format(template=read_plain(given, 4 * MAX_TEMPLATE).decode())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        near = get_close_matches(given, _by_name(), n=3)
        hint = (
            f" Do you mean {' or '.join(near)}?"
            if near
            else " docs/templates.md lists the formats."
        )
        raise ConfigError(
            f"chat_template: {given[:100]} is no Jinja, no named format and no file that can be read ({why}).{hint}"
        ) from error


def check_syntax(given: str, text: str) -> None:
    """
    Hold a template that llama.cpp is to run against Jinja's syntax, for the line of a mistake; tags that only others have may stand in it.

    Args:
        given: The option, for its file.
        text: The template.

    Raises:
        ConfigError: It is no Jinja.
    """
    try:
        _environment().parse(text)
    except jinja2.TemplateSyntaxError as error:
        if "unknown tag" not in str(error):
            file = "" if text == given else f"{given[:200]}: "
            raise ConfigError(
                f"chat_template: {file}line {error.lineno} is not valid Jinja: {sentence(_words(error))} Correct it, or name a format of docs/templates.md."
            ) from error
    except RecursionError as error:
        raise ConfigError(
            "chat_template: this is not valid Jinja: it is nested too deep. Write it flatter."
        ) from error


def unknown_word(text: str) -> str:
    """Return the line and the name of a filter or test that Jinja does not have, of a template that llama.cpp has refused; empty without one."""
    try:
        _environment().compile(text)
    except jinja2.TemplateAssertionError as error:
        return f"line {error.lineno}: {_words(error)}"
    except (jinja2.TemplateSyntaxError, RecursionError):
        pass
    return ""


def find_named(name: str) -> ChatTemplate | None:
    """Find the template of this name or alias in `formats.toml`; never a file, so that a stranger may have given the name."""
    form = _by_name().get(name)
    return ChatTemplate(jinja(form), form.stop, form.stop_token_ids) if form is not None else None


def jinja(form: Format) -> str:
    """
    Return a format as Jinja, in what every implementation of Jinja has, llama.cpp's too.

    >>> jinja(Format(user="Q: {}", opening="A:")).splitlines()[-1]
    '{%- if add_generation_prompt -%}{{- "A:" -}}{%- endif -%}'
    """
    if form.template is not None:
        return form.template
    held, content = form.system_in_user, "message.content"
    system, default = (_around(form.system, x) for x in (content, _literal(form.default_system)))
    lines = [_say(_literal(form.preamble)), '{%- set held = namespace(text="") -%}']
    if form.default_system:
        lines += [
            '{%- if messages[0].role not in ["system", "developer"] -%}',
            _hold(default) if held else _say(default),
            "{%- endif -%}",
        ]
    lines += [
        "{%- for message in messages -%}",
        '{%- if message.role in ["system", "developer"] -%}',
        _hold(system) if held else _say(system),
        '{%- elif message.role == "assistant" -%}',
        _say(_around(form.assistant, content)),
    ]
    if form.tool is not None:
        lines += ['{%- elif message.role in ["tool", "function"] -%}']
        lines += [_say(_around(form.tool, content))]
    lines += [
        "{%- else -%}",
        _say(_around(form.user, f"held.text ~ {content}")),
        '{%- set held.text = "" -%}',
        "{%- endif -%}",
        "{%- endfor -%}",
        "{%- if held.text -%}" + _say(_around(form.user, "held.text")) + "{%- endif -%}",
        "{%- if add_generation_prompt -%}" + _say(_literal(form.opening)) + "{%- endif -%}",
    ]
    return "\n".join(lines)


class Variables(Set[str]):
    """
    The names that a template asks for, as of `variables`, looked for by the first who asks: that takes longer than all else that is read of
    a model, and many are never asked for.

    >>> "messages" in Variables("{{ messages }}"), len(Variables(""))
    (True, 0)
    """

    def __init__(self, template: str) -> None:
        self._template = template

    def __contains__(self, name: object) -> bool:
        return name in variables(self._template)

    def __iter__(self) -> Iterator[str]:
        return iter(variables(self._template))

    def __len__(self) -> int:
        return len(variables(self._template))


@lru_cache(maxsize=512)  # of as many templates as a large server has
def variables(text: str) -> frozenset[str]:
    """
    Return the names that a template asks for, without Jinja's own; of one in another Jinja than ours every word, since it may be one.

    >>> sorted(variables("{% for m in messages %}{{ m.role }}{% endfor %}{{ date_string }}"))
    ['date_string', 'messages']
    """
    environment = _environment()
    found = set()
    try:
        if len(text) <= MAX_TEMPLATE:
            found = jinja2.meta.find_undeclared_variables(environment.parse(text))
    except _FAULTS:
        found = set(_WORD.findall(text))
    return frozenset(found - environment.globals.keys())


def names() -> list[str]:
    """Return the names of all formats, sorted."""
    return sorted(forms(), key=str.lower)


def flat_text(message: Message) -> str:
    """Return a message's content as one text; its images are not in it."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))


@cache
def forms() -> dict[str, Format]:
    """Return all named formats."""
    tables: dict[str, dict[str, Any]] = {}
    for name in _FORMATS:
        tables |= msgspec.toml.decode(files("unilect.templates").joinpath(name).read_bytes())
    return {name: msgspec.convert(_whole(tables, name), Format) for name in tables}


def _whole(tables: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a format's table, with what the one that it is like has beside."""
    table = dict(tables[name])
    if (like := table.pop("like", None)) is None:
        return table
    return {**_whole(tables, like), "aliases": []} | table


def _around(turn: str, text: str) -> str:
    """Return a turn around a text, as an expression of Jinja."""
    before, _, after = turn.partition("{}")
    return f"{_literal(before)} ~ {text} ~ {_literal(after)}"


def _say(expression: str) -> str:
    return f"{{{{- {expression} -}}}}"


def _hold(expression: str) -> str:
    return f"{{%- set held.text = held.text ~ {expression} -%}}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@cache
def _by_name() -> dict[str, Format]:
    found = dict(forms())
    for one in forms().values():
        found |= dict.fromkeys(one.aliases, one)
    return found


@cache
def _environment() -> Sandbox:
    """Return Jinja as transformers sets it up for chat templates."""
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    environment.add_filter("tojson", _to_json)
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: strftime(form, datetime.now()),
    }
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _with_thoughts(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its thoughts by the names that templates know, as transformers does it."""
    found = next((turn[name] for name in _THOUGHTS if turn.get(name) is not None), None)
    if found is None:
        return dict(turn)
    return {"thinking": found, **turn, "reasoning_content": found}


def _words(error: BaseException) -> str:
    """Return the words of an error."""
    return str(error)[:300] or type(error).__name__


def sentence(words: str) -> str:
    """Return words as they are, with an end."""
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
