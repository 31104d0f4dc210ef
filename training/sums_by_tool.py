"""
Sums that a tool calculates: the numbers are copied into the call, and its result into the answer.

The stage "tools" alone has them, so what the stages before it are trained on stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

from training import talk, tools
from training.draw import Draw
from training.phrases import load
from training.tools import Tool, Use

_SUMS = load("sums")
KINDS: dict[str, dict[str, Any]] = _SUMS["kinds"]
REQUESTS: dict[str, dict[str, list[str]]] = _SUMS["requests"]
SIGNS: dict[str, str] = {entry["sign"]: kind for kind, entry in KINDS.items() if entry["sign"]}


def equip(d: Draw, kind: str) -> Tool:
    """Make a tool that calculates; those of one operation take two numbers."""
    entry = KINDS[kind]
    if "params" not in entry:
        first, second = d.pick(_SUMS["pairs"])
        params = {
            "a": {"names": [first], "about": "The first number", "type": "integer"},
            "b": {"names": [second], "about": "The second number", "type": "integer"},
        }
        entry = entry | {"params": params}
    tool = tools.equip_as(d, kind, entry)
    schema = tool.schema["parameters"]
    if d.chance(0.15):
        for name, about in schema["properties"].items():
            about["description"] = f"The {name}."
    if d.chance(0.2):
        schema["title"] = tool.schema["name"]
    return tool


def outfit(d: Draw) -> list[Tool]:
    """Give one tool for everything, or one to three of one operation each; and now and then another tool or two."""
    single = list(SIGNS.values())
    kinds = ["calculate"] if d.chance(0.2) else d.r.sample(single, d.pick([1, 1, 2, 3]))
    if kinds != ["calculate"] and "add" not in kinds and d.chance(0.5):
        kinds[0] = "add"
    found = [equip(d, kind) for kind in kinds]
    if d.chance(0.4):
        names = {tool.schema["name"] for tool in found}
        others = [tool for tool in tools.outfit(d) if tool.kind not in ("add", "search")]
        found += [tool for tool in others[:2] if tool.schema["name"] not in names]
    d.r.shuffle(found)
    return found


def numbers(d: Draw, sign: str) -> tuple[int, int]:
    """Draw two numbers whose sum is on our side of the split, asked with a tool and without."""
    for _ in range(4000):
        top = d.pick([20, 99, 99, 99, 999, 999, 9999])
        a, b = d.r.randint(0, top), d.r.randint(0, top if sign != "*" else 99)
        if sign == "-" and a < b and d.chance(0.8):
            a, b = b, a
        if d.kept("call", SIGNS[sign], a, b) and d.kept("sum", a, sign, b):
            return a, b
    raise RuntimeError("no numbers left on this side of the split")


def request(d: Draw, tool: Tool) -> Use:
    """Ask for what the tool does."""
    if tool.kind not in KINDS:
        return tools.request(d, tool)
    sign = KINDS[tool.kind]["sign"] or d.pick(list(SIGNS))
    a, b = numbers(d, sign)
    c = {"+": a + b, "-": a - b, "*": a * b}[sign]
    own = REQUESTS[d.lang][sign]
    common = talk.SUM_ASKS[d.lang] + talk.SUM_ASKS[d.lang + sign] if sign != "*" else own
    user = d.ask(own if d.chance(0.3) else common, a=str(a), b=str(b), o=sign)
    said = {"a": str(a), "b": str(b), "o": sign, "c": str(c)}
    text = str(c)
    if d.chance(0.35):
        text = json.dumps({d.pick(_SUMS["result_keys"]): c})
    elif d.chance(0.2):
        text = d.pick(_SUMS["result_texts"]).format(**said)
    values: dict[str, Any] = {"a": a, "b": b, "expression": f"{a} {sign} {b}"}
    arguments = {param: values[ours] for ours, param in tool.params.items()}
    answer = f"{a} {sign} {b} = {c}" + ("。" if d.lang == "zh" else ".")
    return Use(user, tool.schema["name"], arguments, text, answer)
