"""
What conversations a chat template takes, and a conversation as it takes it.

Many templates take one system message, first; some take none; some refuse two turns of the user in a row, or one behind the result of a
tool. They refuse with an error, or leave a turn out silently. Agents send all of that. So a few short conversations are rendered, and what
comes out tells what the template takes:

1. A template that takes a conversation as it is gets it so.
2. System messages before the first answer become one system message. A later one becomes a turn of the user: moved to the front it
   would change the part of the prompt that is in a cache.
3. Where no system message is taken, its text stands before what the user says first.
4. Turns of one role in a row become one where the template wants roles in turn.

Sources: the templates of Mistral, Gemma 2 and 3, Llama 2 and 3.1, Qwen 2.5 and 3.5, gpt-oss, as their repositories have them
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from unilect.errors import InvalidRequest

Turn: TypeAlias = Mapping[str, Any]
_SYSTEM = frozenset({"system", "developer"})
_TOOL = frozenset({"tool", "function"})
_BETWEEN = "\n\n"
#: Words that no template has: what systems, users, assistants and tools say in a probe.
_S1, _S2, _U1, _U2, _U3, _A1, _A2, _T1 = (f"qz{name}q" for name in "abcdefgh")
_CALL_ID = "qzcall123"  # Mistral's templates insist on nine letters and digits


class Takes(Struct, frozen=True):
    """
    What conversations a template takes.

    Attributes:
        system: Where a system message may stand: *anywhere*, *first* and alone, or *never*.
        repeats: Turns of one role may follow each other.
        after_tools: A turn of the user may follow the result of a tool.
    """

    system: Literal["anywhere", "first", "never"] = "anywhere"
    repeats: bool = True
    after_tools: bool = True


ALL = Takes()
#: What nearly every template takes, and what every one does.
LITTLE = Takes("first", repeats=False, after_tools=False)
LEAST = Takes("never", repeats=False, after_tools=False)


def stands_out(roles: Iterable[str]) -> bool:
    """True for the roles of a conversation that not every template takes."""
    before = ""
    for role in roles:
        if role in _SYSTEM or (role == "user" and before in ("user", *_TOOL)):
            return True
        if role == before == "assistant":
            return True
        before = role
    return False


def probes(arguments: Any) -> list[list[dict[str, Any]]]:
    """
    The conversations to render, in the order of `learnt`.

    Args:
        arguments: No arguments of a call, in the form that the template gets: `{}` as an object or as a text.
    """
    function = {"name": "f", "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    called = [
        _user(_U1),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": _T1, "name": "f", "tool_call_id": _CALL_ID},
    ]
    return [
        [_user(_U1)],
        [_system(_S1), _user(_U1)],
        [_system(_S1), _system(_S2), _user(_U1), _assistant(_A1), _system(_S1), _user(_U2)],
        [_user(_U1), _user(_U2), _assistant(_A1), _assistant(_A2), _user(_U3)],
        called,
        [*called, _user(_U2), _assistant(_A1), _user(_U3)],
    ]


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str | list[Any]) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def learnt(prompts: Sequence[str | None]) -> Takes:
    """
    What a template takes.

    Args:
        prompts: What it made of each of `probes`; None where it refused.
    """
    plain, first, anywhere, repeats, called, behind = prompts
    if not _tells(plain, _U1):  # it shows nothing of a conversation, or not as it is written
        return ALL
    system: Literal["anywhere", "first", "never"] = "first" if _tells(first, _S1, _U1) else "never"
    if _tells(anywhere, _S1, _S2, _U1, _A1, _S1, _U2):
        system = "anywhere"
    return Takes(
        system,
        _tells(repeats, _U1, _U2, _A1, _A2, _U3),
        not _tells(called, _U1, _T1) or _tells(behind, _U1, _T1, _U2, _A1, _U3),
    )


def takes(render: Callable[[list[dict[str, Any]]], str], arguments: Any) -> Takes:
    """
    What a template takes.

    Args:
        render: Renders a conversation; raises InvalidRequest where the template refuses it.
        arguments: As of `probes`.
    """

    def prompt(turns: list[dict[str, Any]]) -> str | None:
        with suppress(InvalidRequest):
            return render(turns)
        return None

    return learnt([prompt(turns) for turns in probes(arguments)])


def _tells(prompt: str | None, *words: str) -> bool:
    """True where a prompt has these words, one after the other."""
    at = 0
    for word in words:
        at = -1 if prompt is None or at < 0 else prompt.find(word, at)
    return at >= 0


def placed(turns: Sequence[Turn], taken: Takes) -> list[Any]:
    """A conversation as a template takes it; what each turn says is in it, and nothing else."""
    found = list(turns)
    if taken.system != "anywhere":
        found = _with_one_system(found, taken.system == "first")
    if taken.repeats and taken.after_tools:
        return found
    return _joined(found, taken)


def _with_one_system(turns: list[Turn], stays: bool) -> list[Turn]:
    """
    A conversation with at most one system message.

    Args:
        stays: It stays, as the first turn; else its text stands before what the user says first.
    """
    head, rest, held = list[Turn](), list[Turn](), list[Turn]()
    answered = False
    for turn in turns:
        role = turn["role"]
        if role in _SYSTEM:
            (held if answered else head).append(turn)
            continue
        answered = answered or role == "assistant"
        if held and role not in _TOOL:  # between a call and its result nothing may stand
            rest += [{**one, "role": "user"} for one in held]
            held.clear()
        rest.append(turn)
    rest += [{**one, "role": "user"} for one in held]
    if not head:
        return rest
    if stays:
        return [head[0] if len(head) == 1 else {**head[0], "content": _content(head)}, *rest]
    at = next((place for place, turn in enumerate(rest) if turn["role"] == "user"), None)
    if at is None:
        return [_user(_content(head)), *rest]
    return [*rest[:at], {**rest[at], "content": _content([*head, rest[at]])}, *rest[at + 1 :]]


def _joined(turns: list[Turn], taken: Takes) -> list[Turn]:
    """A conversation in which roles take turns."""
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and _goes_with(groups[-1][-1], groups[-1][0], turn, taken):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _goes_with(before: Turn, first: Turn, turn: Turn, taken: Takes) -> bool:
    """True for a turn that becomes a part of those before it."""
    role = turn["role"]
    if role == "user" and first["role"] in _TOOL:
        return not taken.after_tools and isinstance(turn.get("content"), str)
    if taken.repeats or role != before["role"]:
        return False
    return role == "user" or (role == "assistant" and not before.get("tool_calls"))


def _one(group: Sequence[Turn]) -> Turn:
    """Turns as one: that of the first, with the calls of the last, and the texts and thoughts of all."""
    made: dict[str, Any] = {**group[-1], **group[0], "content": _content(group)}
    if group[-1].get("tool_calls"):
        made["tool_calls"] = group[-1]["tool_calls"]
    for name in ("reasoning_content", "reasoning"):
        if thoughts := [turn[name] for turn in group if turn.get(name)]:
            made[name] = "\n".join(thoughts)
    return made


def _content(turns: Sequence[Turn]) -> str | list[Any]:
    """What turns say together: one text where all of it is text, else parts."""
    contents = [turn.get("content") or "" for turn in turns]
    if all(isinstance(content, str) for content in contents):
        return _BETWEEN.join(filter(None, contents))
    parts: list[Any] = []
    for content in contents:
        if isinstance(content, str):
            parts += [{"type": "text", "text": content}] if content else []
        else:
            parts += content
    return parts
