"""
A conversation as a chat template takes it: what each turn says is in it, and nothing else.

Each step leaves alone what the template takes; `Takes` has what becomes of the rest.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from unilect.core.requests import RESULT_ROLES, SYSTEM_ROLES, Message
from unilect.families import PLAIN, ToolFormat
from unilect.templates.takes import ALL, THOUGHTS, Takes, Turn
from unilect.tools.conversation import rewrite_as_text

_BETWEEN = "\n\n"
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def fit(turns: Sequence[Turn], taken: Takes, form: ToolFormat = PLAIN.written) -> list[Any]:
    """
    Return a conversation as a template takes it.

    Args:
        form: How calls and results are written where the template shows none.
    """
    found = _fill_ids(turns)
    if taken == ALL:
        return found
    if not taken.calls:
        found = _with_calls_as_text(found, form)
    if not taken.thoughts:
        found = [_without_thoughts(turn) if turn.get("content") else turn for turn in found]
    found = _with_results(found, taken)
    if not taken.empties:
        found = [*filter(_says, found)] or [_of_user({})]
    found = _with_user(found, taken)
    if taken.system != "anywhere" or not taken.ends:
        found = _with_one_system(found)
    if not (taken.repeats and taken.after_tools):
        found = _join(found, taken)
    if taken.system == "never" or not (taken.ends or found[-1]["role"] == "user"):
        found = _without_system(found)
    if not taken.ids:
        found = _with_short_ids(found)
    return found if taken.objects else [_with_text_arguments(turn) for turn in found]


def _fill_ids(turns: Iterable[Turn]) -> list[Turn]:
    """Give results that say no id that of their call: the next one with their name, else the next one."""
    found, waiting = list[Turn](), list[Any]()
    for turn in turns:
        if turn["role"] == "assistant":
            waiting = list(turn.get("tool_calls") or ())
        elif turn["role"] in RESULT_ROLES and waiting:
            call = _call_of(turn, waiting)
            waiting = [one for one in waiting if one is not call]
            if not turn.get("tool_call_id") and call is not None:
                turn = {**turn, "tool_call_id": call["id"]}
        found.append(turn)
    return found


def _with_calls_as_text(turns: list[Turn], form: ToolFormat) -> list[Turn]:
    """Write calls and results into the texts of the conversation."""
    if not any(turn.get("tool_calls") or turn["role"] in RESULT_ROLES for turn in turns):
        return turns
    told = msgspec.convert([_with_text_arguments(turn) for turn in turns], list[Message])
    return [
        {"content": "", **msgspec.to_builtins(message)} for message in rewrite_as_text(told, form)
    ]


def _without_thoughts(turn: Turn) -> Turn:
    return {name: value for name, value in turn.items() if name not in THOUGHTS}


def _call_of(result: Turn, calls: Sequence[Any]) -> Any:
    """Return the call that a result is of; None where its id is that of none."""
    if id := result.get("tool_call_id"):
        return next((call for call in calls if call["id"] == id), None)
    named = (call for call in calls if call["function"]["name"] == result.get("name"))
    return next(named, calls[0])


def _with_results(turns: Iterable[Turn], taken: Takes) -> list[Turn]:
    """Put calls and their results as the template takes them."""
    groups: list[list[Turn]] = [[]]
    for turn in turns:  # an answer begins a group
        groups += [[]] if turn["role"] == "assistant" else []
        groups[-1].append(turn)
    found: list[Turn] = []
    for group in groups:
        if group and group[0].get("tool_calls"):
            found += _fit_group(group, taken, is_last=group is groups[-1])
        elif taken.strays:
            found += group
        else:
            found += [_of_user(turn) if turn["role"] in RESULT_ROLES else turn for turn in group]
    return found


def _of_user(turn: Turn) -> Turn:
    """Return a turn as one of the user's."""
    return {"role": "user", "content": turn.get("content") or ""}


def _fit_group(group: Sequence[Turn], taken: Takes, is_last: bool) -> list[Turn]:
    """
    Put a turn with calls, and what follows it up to the next answer, as the template takes it.

    Args:
        is_last: No answer follows.
    """
    first, *behind = group
    calls = first["tool_calls"]
    results = [turn for turn in behind if turn["role"] in RESULT_ROLES]
    rest = [turn for turn in behind if turn["role"] not in RESULT_ROLES]
    made = not taken.unanswered and not results and (bool(rest) or not is_last)
    if made:
        results = [_no_result(call) for call in calls]
    head: list[Turn] = []
    if not taken.texts and taken.repeats and first.get("content"):
        head = [{"role": "assistant", "content": first["content"]}]
        first = {**first, "content": ""}
    if len(calls) > 1 and not taken.several:
        return [*head, *_one_by_one(first, results), *rest]
    if made or not taken.between:
        return [*head, first, *results, *rest]
    return [*head, first, *behind]


def _no_result(call: Any) -> Turn:
    name = call["function"]["name"]
    return {"role": "tool", "content": "", "name": name, "tool_call_id": call["id"]}


def _one_by_one(turn: Turn, results: list[Turn]) -> list[Turn]:
    """Make a turn of each call, followed by its result; the first has what is said and thought beside."""
    found, left = list[Turn](), list(results)
    for number, call in enumerate(turn["tool_calls"]):
        with_it = turn if number == 0 else {"role": "assistant", "content": ""}
        found.append({**with_it, "tool_calls": [call]})
        own = next((one for one in left if one.get("tool_call_id") == call["id"]), None)
        if own is not None:
            found.append(own)
            left = [one for one in left if one is not own]
    return [*found, *left]


def _says(turn: Turn) -> bool:
    """Return False for an empty turn of the assistant."""
    return turn["role"] != "assistant" or bool(turn.get("content") or turn.get("tool_calls"))


def _with_user(turns: list[Turn], taken: Takes) -> list[Turn]:
    """Put an empty turn of the user first, behind the system's, where the template wants one."""
    roles = [turn["role"] for turn in turns]
    at = next((place for place, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    opens = at < len(roles) and roles[at] != "user" and not taken.opens
    if opens or ("user" not in roles and not taken.alone):
        return [*turns[:at], {"role": "user", "content": ""}, *turns[at:]]
    return turns


def _with_one_system(turns: list[Turn]) -> list[Turn]:
    """Leave at most one system message, as the first turn; one behind an answer becomes the user's."""
    head, rest, held = list[Turn](), list[Turn](), list[Turn]()
    answered = False
    for turn in turns:
        role = turn["role"]
        if role in SYSTEM_ROLES:
            (held if answered else head).append(turn)
            continue
        answered = answered or role == "assistant"
        if held and role not in RESULT_ROLES:  # between a call and its result nothing may stand
            rest += [{**one, "role": "user"} for one in held]
            held.clear()
        rest.append(turn)
    rest += [{**one, "role": "user"} for one in held]
    if len(head) > 1:
        head = [{**head[0], "content": _content(head)}]
    return [*head, *rest]


def _without_system(turns: list[Turn]) -> list[Turn]:
    """Put the text of the system message, the first turn, before what the user says first."""
    if turns[0]["role"] not in SYSTEM_ROLES:
        return turns
    system, *rest = turns
    at = next((place for place, turn in enumerate(rest) if turn["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": _content([system])}, *rest]
    return [*rest[:at], {**rest[at], "content": _content([system, rest[at]])}, *rest[at + 1 :]]


def _join(turns: list[Turn], taken: Takes) -> list[Turn]:
    """Join turns so that roles take turns."""
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and _goes_with(groups[-1][-1], groups[-1][0], turn, taken):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _goes_with(before: Turn, first: Turn, turn: Turn, taken: Takes) -> bool:
    """Return True for a turn that becomes a part of those before it."""
    role = turn["role"]
    if role == "user" and first["role"] in RESULT_ROLES:
        return not taken.after_tools and isinstance(turn.get("content"), str)
    if taken.repeats or role != before["role"]:
        return False
    return role == "user" or (role == "assistant" and not before.get("tool_calls"))


def _one(group: Sequence[Turn]) -> Turn:
    """Make one turn: that of the first, with the calls of the last, and the texts and thoughts of all."""
    made: dict[str, Any] = {**group[-1], **group[0], "content": _content(group)}
    if group[-1].get("tool_calls"):
        made["tool_calls"] = group[-1]["tool_calls"]
    for name in THOUGHTS:
        if thoughts := [turn[name] for turn in group if turn.get(name)]:
            made[name] = "\n".join(thoughts)
    return made


def _content(turns: Sequence[Turn]) -> str | list[Any]:
    """Return what turns say together: one text where all of it is text, else parts."""
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


def _with_short_ids(turns: Iterable[Turn]) -> list[Turn]:
    """Replace ids of calls by nine letters and digits; the same id by the same, different ones by different ones."""
    short, used = dict[str, str](), set[str]()

    def shorten(id: str) -> str:
        if id not in short:
            made, number = id, 0
            while made in used or not _SHORT_ID.fullmatch(made):
                made = hashlib.sha256(f"{number}{id}".encode(errors="replace")).hexdigest()[:9]
                number += 1
            short[id] = made
            used.add(made)
        return short[id]

    found: list[Turn] = []
    for turn in turns:
        if calls := turn.get("tool_calls"):
            turn = {**turn, "tool_calls": [{**one, "id": shorten(one["id"])} for one in calls]}
        elif turn["role"] in RESULT_ROLES:
            turn = {**turn, "tool_call_id": shorten(turn.get("tool_call_id") or "")}
        found.append(turn)
    return found


def _with_text_arguments(turn: Turn) -> Turn:
    """Write the arguments of a turn's calls as JSON."""
    if not turn.get("tool_calls"):
        return turn
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": _text(call["function"]["arguments"])},
        }
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
