"""
Conversations of agents: longer system prompts, tools for files and commands, results that tell of
an error, and questions after a result.

The stage "base" has none of them.
"""

from __future__ import annotations

import json
from typing import Any

from training import tools, words
from training.draw import Draw, Turn
from training.phrases import load
from training.tools import Tool, Use

_AGENTS = load("agents")
KINDS: dict[str, dict[str, Any]] = _AGENTS["kinds"]
REQUESTS: dict[str, dict[str, list[str]]] = _AGENTS["requests"]
ANSWERS: dict[str, dict[str, str]] = _AGENTS["answers"]
SYSTEMS: dict[str, list[str]] = _AGENTS["systems"]
AGAIN: dict[str, list[str]] = _AGENTS["again"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def system(d: Draw) -> str:
    """Write a system prompt of one to six sentences that change no answer."""
    lines = d.r.sample(SYSTEMS[d.lang], d.r.randint(1, 6))
    return ("" if d.lang == "zh" else d.pick([" ", " ", "\n", "\n\n"])).join(lines)


def equip(d: Draw, kind: str) -> Tool:
    """Make a tool for files or commands."""
    return tools.equip_as(d, kind, KINDS[kind])


def outfit(d: Draw) -> list[Tool]:
    """Give one to five tools: for files and commands, and of the common kinds."""
    found = [equip(d, kind) for kind in d.r.sample(list(KINDS), d.pick([1, 1, 2, 2, 3, 4]))]
    if d.chance(0.4):
        names = {tool.schema["name"] for tool in found}
        found += [tool for tool in tools.outfit(d)[:2] if tool.schema["name"] not in names]
    d.r.shuffle(found)
    return found


def _odd(d: Draw) -> str:
    """Make a word of pieces in an order that no word has: syllables, letters, beginnings and ends of words."""
    found = []
    for _ in range(d.r.randint(2, 4)):
        word = str(d.pick([*words.THINGS, *words.ANIMALS]))
        cut = d.r.randint(1, len(word))
        syllable = d.pick(words.SYLLABLES)
        found.append(d.pick([syllable, syllable, d.pick(LETTERS), word[:cut], word[-cut:]]))
    return "".join(found).lower()


def _file(d: Draw, odd: float = 0.0) -> str:
    if odd and d.chance(odd):
        return f"{_odd(d)}.{d.pick(_AGENTS['endings'])}"
    stem = d.pick([*words.THINGS, *words.ANIMALS]) if d.chance(0.4) else d.synthetic().lower()
    if d.chance(0.1):
        stem = stem.upper() if d.chance(0.5) else stem.capitalize()
    return f"{stem}.{d.pick(_AGENTS['endings'])}"


def _path(d: Draw, odd: float) -> str:
    return (d.pick(_AGENTS["folders"]) if d.chance(0.25) else "") + _file(d, odd)


def values(d: Draw, kind: str, odd: float = 0.0) -> dict[str, str]:
    """Draw the arguments of a call, from our side of the split."""

    def make() -> tuple[tuple[object, ...], dict[str, str]]:
        if kind == "list":
            folder = d.pick(_AGENTS["folders"]) if d.chance(0.3) else d.synthetic().lower() + "/"
            return ("any", d.r.random()), {"path": folder if d.chance(0.6) else folder[:-1] or "."}
        if kind == "run":
            common = d.pick(_AGENTS["commands"])
            made = f"{d.pick(_AGENTS['runners'])} {_path(d, odd)}"
            found = {"command": common if d.chance(0.3) else made}
            return (("any", d.r.random()) if found["command"] == common else ("call", made)), found
        found = {"path": _path(d, odd)}
        if kind == "write":
            found["text"] = tools.phrase(d)
        return ("call", kind, *found.values()), found

    result: dict[str, str] = d.until(make)
    return result


def _result(d: Draw, kind: str, v: dict[str, str], odd: float) -> tuple[str, str]:
    """Make up what the tool answers, and what the assistant says then."""
    said = ANSWERS[d.lang]
    if d.chance(0.1):
        found = d.pick(_AGENTS["errors"])
        text = d.pick([found, f"Error: {found}", f"error: {found}", json.dumps({"error": found})])
        return text, said["error"].format(found=found)
    if kind == "write":
        text = d.pick(["ok", "done", "OK", '{"ok": true}', "File written.", f"Wrote {v['path']}"])
        return text, said["write"].format(**v)
    if kind == "list":
        files = [_file(d, odd) for _ in range(d.r.randint(1, 4))]
        text = json.dumps(files) if d.chance(0.2) else "\n".join(files)
        return text, said["list"].format(found=("、" if d.lang == "zh" else ", ").join(files), **v)
    found = tools.phrase(d) if d.chance(0.75) else str(d.r.randint(0, 999))
    text = found + d.pick(["", "", "", "\n", "."])
    if d.chance(0.2):
        key = d.pick(["content", "output", "stdout", "result", "text"])
        text = json.dumps({key: found}, ensure_ascii=False)
    return text, said[kind].format(found=found, **v)


def request(d: Draw, tool: Tool, odd: float = 0.0) -> Use:
    """Ask for what the tool does; `odd` is the share of files whose names are made of unusual pieces."""
    if tool.kind not in KINDS:
        return tools.request(d, tool)
    v = values(d, tool.kind, odd)
    user = d.ask(REQUESTS[d.lang][tool.kind], prefix=tool.kind != "write", **v)
    result, answer = _result(d, tool.kind, v, odd)
    arguments = {tool.params[k]: x for k, x in v.items()}
    return Use(user, tool.schema["name"], arguments, result, answer)


def again(d: Draw, answer: str) -> Turn:
    """Ask for the last answer once more."""
    return Turn(d.ask(AGAIN[d.lang]), answer, "again")
