"""
The conversations that a chat template takes, found out by rendering short ones.

Templates refuse with an error what they do not take, or leave it out silently: a second system message, two turns of the user in a row, two
calls in one turn, ids of another form than their own. No template says so, and a model's name says too little. So each kind of conversation
is rendered once, in words that no template has, and the prompt tells if all of them came through.

Sources: the templates that the makers of Mistral, Gemma, Llama, Qwen, gpt-oss, GigaChat, Command, MiniMax and DeepSeek publish
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from unilect.core.errors import InvalidRequest

Turn: TypeAlias = Mapping[str, Any]
#: The names of a turn's thoughts.
THOUGHTS = ("reasoning_content", "reasoning")
#: Words that no template has: what systems, users, assistants and tools say in a probe, and the names of its functions.
_S1, _S2, _U1, _U2, _U3, _A1, _A2, _T1, _T2, _F1, _F2 = (f"qz{name}q" for name in "abcdefghijk")
_ARGUMENT, _THOUGHT = "qzlq", "qzmq"
_ID, _ID_2 = "qzcall123", "qzcall456"  # nine letters and digits, which every template takes
_LONG_ID = "call_0123456789abcdef01234567"


class Takes(Struct, frozen=True):
    """
    The conversations that a template takes.

    Each field is true where it takes what its first sentence names. Else that becomes what the others say.

    Attributes:
        system: Several system messages, or one behind an answer. Those before the first answer become one. A later one becomes a
            turn of the user, so that the cached prefix stays the same. Where no system message is taken, its text stands before what the
            user says first.
        ends: A system message, and a last turn that is not the user's. The system's text stands before what the user says first.
        repeats: Turns of one role in a row. They become one, with blank lines between.
        after_tools: A turn of the user behind a tool's result. It becomes a part of the result.
        opens: A turn of the assistant first. An empty turn of the user stands before it.
        alone: No turn of the user. An empty turn of the user stands behind the system message.
        empties: An empty turn of the assistant. It is left out.
        thoughts: An answer's text beside its thoughts. The thoughts are left out.
        calls: Calls and their results. They become text, in the form in which the model's family was trained; results become a turn
            of the user.
        ids: Ids of calls of any form. Ids become nine letters and digits, different ones different. The client sees its own.
        several: Several calls in a turn. Each call becomes a turn, followed by its result.
        texts: A text beside a call. The text becomes a turn before the call, if the template takes two turns of the assistant in a row.
        between: A text between a call and its result. Results come first.
        unanswered: A call without a result. An empty result follows it.
        strays: A result without a call. It becomes a turn of the user.
        objects: Arguments of calls as objects. They are given as JSON text (transformers; llama.cpp does so itself).
    """

    system: Literal["anywhere", "first", "never"] = "anywhere"
    ends: bool = True
    repeats: bool = True
    after_tools: bool = True
    opens: bool = True
    alone: bool = True
    empties: bool = True
    thoughts: bool = True
    calls: bool = True
    ids: bool = True
    several: bool = True
    texts: bool = True
    between: bool = True
    unanswered: bool = True
    strays: bool = True
    objects: bool = True


ALL = Takes()
#: The fields that are about calls and their results, where the template shows any.
_OF_CALLS = ("ends", "after_tools", "ids", "several", "texts", "between", "unanswered", "strays")
_FLAGS = ("repeats", "opens", "alone", "empties", *_OF_CALLS)
#: The forms that nearly every template takes, and those that every one does.
LITTLE = Takes("first", **dict.fromkeys(_FLAGS, False))
LEAST = Takes("never", **dict.fromkeys(_FLAGS, False))


def stands_out(turns: Sequence[Turn]) -> bool:
    """Return True for a conversation that not every template takes."""
    if not turns or turns[0]["role"] != "user":
        return True
    before = ""
    for turn in turns:
        role = turn["role"]
        if role not in ("user", "assistant") or role == before or turn.get("tool_calls"):
            return True
        if role == "assistant" and (not turn.get("content") or any(map(turn.get, THOUGHTS))):
            return True
        before = role
    return False


def probes(as_text: bool = False) -> dict[str, list[Turn]]:
    """
    Make the conversations to render, by the field of `Takes` that each is for.

    Args:
        as_text: Arguments of calls are JSON text, and no objects.
    """
    one, two = _call(_F1, _ID, as_text), _call(_F2, _ID_2, as_text)
    result = _result(_T1, _F1, _ID)
    called = [_user(_U1), _assistant("", [one]), result]
    nameless = {"role": "tool", "content": _T1, "tool_call_id": _ID}
    return {
        "plain": [_user(_U1)],
        "first": [_system(_S1), _user(_U1)],
        "anywhere": [_system(_S1), _system(_S2), _user(_U1), _assistant(_A1), _system(_S1), _user(_U2)],
        "repeats": [_user(_U1), _user(_U2), _assistant(_A1), _assistant(_A2), _user(_U3)],
        "opens": [_assistant(_A1), _user(_U1)],
        "alone": [_system(_S1)],
        "empties": [_user(_U1), _assistant(""), _user(_U2)],
        "thoughts": [_user(_U1), {**_assistant(_A1), "reasoning_content": _THOUGHT}, _user(_U2)],
        "called": called,
        "ends": [_system(_S1), *called],
        "after_tools": [*called, _user(_U2), _assistant(_A1), _user(_U3)],
        "ids": [_user(_U1), _assistant("", [{**one, "id": _LONG_ID}]), {**result, "tool_call_id": _LONG_ID}],
        "several": [_user(_U1), _assistant("", [one, two]), result, _result(_T2, _F2, _ID_2)],
        "texts": [_user(_U1), _assistant(_A1, [one]), result],
        "between": [_user(_U1), _assistant("", [one]), _user(_U2), result],
        "unanswered": [_user(_U1), _assistant("", [one]), _user(_U2)],
        "strays": [_user(_U1), _assistant(_A1), nameless, _assistant(_A2)],
    }  # fmt: skip


def _system(text: str) -> Turn:
    return {"role": "system", "content": text}


def _user(text: str) -> Turn:
    return {"role": "user", "content": text}


def _assistant(text: str, calls: Sequence[Turn] = ()) -> Turn:
    turn = {"role": "assistant", "content": text}
    return turn | {"tool_calls": list(calls)} if calls else turn


def _call(name: str, id: str, as_text: bool) -> dict[str, Any]:
    given: Any = f'{{"{_ARGUMENT}": ""}}' if as_text else {_ARGUMENT: ""}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def _result(text: str, name: str, id: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "name": name, "tool_call_id": id}


def learn(prompts: Mapping[str, str | None], objects: bool = True) -> Takes:
    """
    Return what a template takes.

    Args:
        prompts: What it made of each of `probes`; None where it refused.
        objects: The arguments of calls were objects.
    """
    turns = probes()
    if not _shows(prompts["plain"], turns["plain"]):
        return ALL  # it shows nothing of a conversation, or not as it is written
    shown = {name: _shows(prompts[name], turns[name]) for name in turns}
    calls = all(word in (prompts["called"] or "") for word in (_U1, _F1, _ARGUMENT, _T1))
    if not (calls and shown["called"]):
        shown |= dict.fromkeys(_OF_CALLS, True)
    system: Literal["anywhere", "first", "never"] = "first" if shown["first"] else "never"
    if shown["anywhere"]:
        system = "anywhere"
    flags = {name: shown[name] for name in (*_FLAGS, "thoughts")}
    return Takes(system, **flags, calls=calls, objects=objects)


def takes(render: Callable[[list[Any]], str]) -> Takes:
    """
    Return what a template takes.

    Args:
        render: Renders a conversation whose arguments of calls are objects; raises InvalidRequest where the template refuses it.
    """

    def prompt(turns: list[Turn]) -> str | None:
        with suppress(InvalidRequest):
            return render(turns)
        return None

    called = prompt(probes()["called"])
    # one that puts arguments between texts as they are refuses an object, or writes it as Python does
    objects = called is not None and f"'{_ARGUMENT}'" not in called
    if not objects and f'"{_ARGUMENT}"' not in (prompt(probes(True)["called"]) or ""):
        objects = True
    made = probes(as_text=not objects)
    return learn({name: prompt(turns) for name, turns in made.items()}, objects)


def _shows(prompt: str | None, turns: Sequence[Turn]) -> bool:
    """Return True if a prompt has the words of all turns, in their order; thoughts may be missing."""
    if prompt is None:
        return False
    at = 0
    for turn in turns:
        found = [prompt.find(word, at) for word in _words(turn)]
        if -1 in found:
            return False
        at = max(found, default=at)
    return True


def _words(turn: Turn) -> Iterator[str]:
    if turn["content"]:
        yield turn["content"]
    for call in turn.get("tool_calls", ()):
        yield call["function"]["name"]
