"""A conversation whose calls and results of tools are text in a form, and a text for the model within it; nothing is lost."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from unilect.core.requests import RESULT_ROLES, SYSTEM_ROLES, Message, Part, TextPart
from unilect.families import ToolFormat
from unilect.tools.messages import arguments, parts_of, split_words


def has_calls(messages: Sequence[Message]) -> bool:
    """Return True if a conversation has tool calls or their results."""
    return any(message.is_of_tools for message in messages)


def rewrite_as_text(conversation: Sequence[Message], form: ToolFormat) -> list[Message]:
    """
    Return a conversation whose calls and results are text, results as the user's; two turns of the user in a row become one.
    """
    messages: list[Message] = []
    names: dict[str, tuple[str, int]] = {}
    turn: list[Part] = []  # of the user: results, and what the user says behind them
    made = 0
    for message in conversation:
        calls = _calls_of(message)
        if message.role in RESULT_ROLES:
            last = (message.name or "", form.number(made - 1, 0))
            name, place = names.get(message.tool_call_id or "", last)
            words, other = split_words(message)
            turn += [TextPart(form.result(name or "function", place, words)), *other]
            continue
        if turn:
            said = parts_of(message) if message.role == "user" else []
            messages.append(_of_user([*turn, *_behind(said, form)], form))
            turn = []
            if said:
                continue
        if calls:
            names |= {id: (name, form.number(made, n)) for n, (id, name, _) in enumerate(calls)}
            told = form.calls_text([(name, given) for _, name, given in calls], made)
            made += len(calls)
            words, other = split_words(message)
            content = _content([TextPart(f"{words}\n{told}" if words else told), *other])
            messages.append(replace(message, content=content, tool_calls=None, function_call=None))
        else:
            messages.append(message)
    return [*messages, _of_user(turn, form)] if turn else messages


def _behind(said: list[Part], form: ToolFormat) -> list[Part]:
    """Return what the user says behind results, in a turn of its own where results have theirs."""
    if not said or not form.user_turn:
        return said
    words, other = split_words(Message(role="user", content=said))
    return [TextPart(form.user_turn + words), *other]


def _of_user(turn: list[Part], form: ToolFormat) -> Message:
    """Make the message of results and of what the user says; turns of their own are joined without a separator."""
    return Message(role="user", content=_content(turn, "" if form.user_turn else "\n"))


def _calls_of(message: Message) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the id, the name and the arguments of each call of a message."""
    calls = [(call.id, call.function) for call in message.tool_calls or ()]
    if message.function_call is not None and not calls:
        calls = [("", message.function_call)]
    return [(id, function.name, arguments(function.arguments)) for id, function in calls]


def _content(turn: list[Part], between: str = "\n") -> str | list[Part]:
    """Return parts as a message has them: one text, where they are nothing else."""
    texts = [part.text for part in turn if isinstance(part, TextPart)]
    return between.join(texts) if len(texts) == len(turn) else turn


def with_text(
    messages: list[Message], text: str, in_user: bool, between: str = "\n\n"
) -> list[Message]:
    """Return a conversation with a text behind that of its system message, or before what the user says first."""
    if not in_user and messages and messages[0].role in SYSTEM_ROLES:
        first = messages[0]
        return [replace(first, content=_join(first.content, text, False, between)), *messages[1:]]
    if not in_user:
        return [Message(role="system", content=text), *messages]
    for number, message in enumerate(messages):
        if message.role == "user":
            changed = replace(message, content=_join(message.content, text, True))
            return [*messages[:number], changed, *messages[number + 1 :]]
    return [Message(role="user", content=text), *messages]


def _join(
    content: str | list[Part] | None, text: str, before: bool, between: str = "\n\n"
) -> str | list[Part]:
    if isinstance(content, list):
        return [TextPart(text), *content] if before else [*content, TextPart(text)]
    pieces = [text, content or ""] if before else [content or "", text]
    return between.join(filter(None, pieces))
