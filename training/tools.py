"""
Conversations with tools: read the schema, call the right one, answer from its result.

A `Kind` is one thing a tool can do; `equip` turns it into a schema in one of many styles and
`request` asks for it. Half of the kinds are invented on the spot, so that the schema must be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training import words
from training.draw import Draw
from training.phrases import load
from training.talk import TOPICS


@dataclass
class Tool:
    """
    One tool as given to the model, and how to use it.

    Attributes:
        schema: the OpenAI function object (name, description, parameters)
        kind: what it does
        params: our name of each parameter -> its name in the schema
        noun: what a lookup looks up, in English and Chinese
    """

    schema: dict[str, Any]
    kind: str
    params: dict[str, str]
    noun: tuple[str, str] = ("", "")


@dataclass
class Use:
    """One use of a tool: the request, the right call, a result and the answer to it."""

    user: str
    name: str
    arguments: dict[str, Any]
    result: str
    answer: str
    skill: str = "tool call"
    must: list[str] = field(default_factory=list)


_TOOLS = load("tools")
# kind -> names, descriptions, params: our parameter -> names, about, type
KINDS: dict[str, dict[str, Any]] = _TOOLS["kinds"]
REQUESTS: dict[str, dict[str, list[str]]] = _TOOLS["requests"]
EXAMPLES: dict[str, list[str]] = _TOOLS["examples"]
# English -> Chinese
NOUNS: dict[str, str] = _TOOLS["nouns"]
PLAIN_WEATHER: list[str] = _TOOLS["plain_weather"]
LOOKUP_PARAMS: list[str] = _TOOLS["lookup_params"]
DEVICES: dict[str, str] = _TOOLS["devices"]


def _parameters(d: Draw, params: dict[str, Any], named: dict[str, str]) -> dict[str, Any]:
    """Write the JSON Schema of the parameters in one of several styles."""
    described, titled = d.chance(0.5), d.chance(0.1)
    properties: dict[str, Any] = {}
    for ours, param in params.items():
        about, type_ = param["about"], param["type"]
        entry: dict[str, Any] = {"type": type_ if type_ == "string" or d.chance(0.8) else "number"}
        if described:
            entry["description"] = d.pick([about, about, about.lower(), *EXAMPLES.get(ours, [])])
        if titled:
            entry = {"title": named[ours].capitalize(), **entry}
        properties[named[ours]] = entry
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if d.chance(0.85):
        schema["required"] = list(properties)
    if d.chance(0.15):
        schema["additionalProperties"] = False
    if d.chance(0.1):
        keys = list(schema)
        d.r.shuffle(keys)
        schema = {k: schema[k] for k in keys}
    return schema


def equip(d: Draw, kind: str) -> Tool:
    """Make a tool of this kind; kind "lookup" invents one."""
    if kind == "lookup":
        noun = d.pick(NOUNS) if d.chance(0.6) else d.synthetic().lower()
        pair = (noun, NOUNS.get(noun, noun))
        name = d.pick(
            ["get_{}", "get_{}", "find_{}", "lookup_{}", "{}_of", "{}_lookup", "fetch_{}", "{}"]
        )
        about = d.pick(
            ["Get the {} of something.", "Returns the {}", "Look up the {}.", "Find a {}", "{}"]
        )
        names = [*LOOKUP_PARAMS, d.synthetic(2, 2).lower()]
        params = {"x": {"names": names, "about": "What it is about", "type": "string"}}
        spec = {"names": [name.format(noun)], "descriptions": [about.format(noun)]}
        return equip_as(d, kind, spec | {"params": params}, pair)
    tool = equip_as(d, kind, KINDS[kind])
    if kind == "weather" and d.chance(0.3):
        unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        tool.schema["parameters"]["properties"]["unit"] = unit
        tool.params["unit"] = "unit"
    return tool


def equip_as(d: Draw, kind: str, entry: dict[str, Any], noun: tuple[str, str] = ("", "")) -> Tool:
    """Make a tool from the names, descriptions and parameters of an entry of `phrases/`."""
    params = entry.get("params", {})
    named = {ours: d.pick(spec["names"]) for ours, spec in params.items()}
    function: dict[str, Any] = {"name": d.pick(entry["names"])}
    if d.chance(0.85):
        function["description"] = d.pick(entry["descriptions"])
    function["parameters"] = _parameters(d, params, named)
    return Tool(function, kind, named, noun)


def outfit(d: Draw) -> list[Tool]:
    """Give one to three tools of different kinds and names."""
    kinds = [*KINDS, "weather", "weather", "time", "add", "capital", "search", *["lookup"] * 9]
    tools: list[Tool] = []
    for kind in d.r.sample(kinds, d.pick([1, 1, 2, 2, 2, 3])):
        tool = equip(d, kind)
        if kind != "lookup" and any(t.kind == kind for t in tools):
            continue
        new = tool.schema["name"] not in {t.schema["name"] for t in tools}
        if new and (not tool.noun[0] or tool.noun not in {t.noun for t in tools}):
            tools.append(tool)
    return tools


def different(d: Draw, count: int) -> list[Tool]:
    """Give tools of different kinds and names, most of which look up something."""
    found: dict[str, Tool] = {}
    for _ in range(99):
        tool = equip(d, "lookup" if d.chance(0.6) else d.pick(KINDS))
        known = {(each.kind, each.noun) for each in found.values()}
        if tool.schema["name"] not in found and (tool.kind, tool.noun) not in known:
            found[tool.schema["name"]] = tool
        if len(found) == count:
            break
    return list(found.values())


def phrase(d: Draw) -> str:
    """Write one to three words about something."""
    pool = TOPICS["zh"] if d.lang == "zh" else [*TOPICS["en"], *words.THINGS, *words.ANIMALS]
    parts = [
        d.synthetic() if d.chance(0.2) else str(d.pick(pool)).replace("-", " ")
        for _ in range(d.r.randint(1, 3))
    ]
    return ("" if d.lang == "zh" else " ").join(parts)


def values(d: Draw, kind: str) -> dict[str, Any]:
    """Draw the arguments of a call, from our side of the split."""

    def make() -> tuple[tuple[object, ...], dict[str, Any]]:
        zh = d.lang == "zh"
        found: dict[str, Any] = {}
        if kind in ("weather", "time"):
            found = {"city": d.city(kind)}
            return ("any", d.r.random()), found
        if kind == "add":
            found = {"a": d.r.randint(0, 999), "b": d.r.randint(0, 999)}
        elif kind == "capital":
            row = d.pick(words.COUNTRIES)
            found = {"country": row[2] if zh else row[0].removeprefix("the ")}
        elif kind == "timer":
            found = {"minutes": d.r.randint(1, 120)}
        elif kind == "message":
            found = {"to": d.name(kind), "text": phrase(d)}
        elif kind == "switch":
            known = d.pick(DEVICES.values() if zh else DEVICES)
            found = {"device": known if d.chance(0.5) else d.synthetic(2, 2).lower()}
        elif kind == "order":
            pool = list(words.FOODS.values()) if zh else [f"{t}s" for t in words.THINGS]
            found = {"item": d.pick(pool), "amount": d.r.randint(2, 40)}
        elif kind == "date":
            return ("any", d.r.random()), {}
        elif kind == "lookup":
            found = {
                "x": d.pick(
                    [
                        lambda: d.name(kind),
                        d.synthetic,
                        lambda: phrase(d),
                        lambda: d.city(kind),
                    ]
                )()
            }
        else:
            found = {"query" if kind == "search" else "song": phrase(d)}
        return ("call", kind, *found.values()), found

    result: dict[str, Any] = d.until(make)
    return result


def _result(d: Draw, tool: Tool, v: dict[str, Any]) -> tuple[str, str]:
    """Make up what the tool answers, and what the assistant says then."""
    zh, kind = d.lang == "zh", tool.kind
    if kind == "weather":
        return _weather_result(d, v["city"])
    if kind == "time":
        clock = f"{d.r.randint(0, 23)}:{d.r.randint(0, 59):02d}"
        key = d.pick(["time", "time", "current_time", "local_time"])
        text = (
            clock
            if d.chance(0.3)
            else json.dumps(
                d.pick([{key: clock}, {"city": v["city"], key: clock}]), ensure_ascii=False
            )
        )
        return text, f"{v['city']}现在是{clock}。" if zh else f"It is {clock} in {v['city']}."
    if kind == "add":
        total = str(v["a"] + v["b"])
        text = (
            total if d.chance(0.5) else json.dumps({d.pick(["result", "sum", "value"]): int(total)})
        )
        return text, f"{v['a']} + {v['b']} = {total}" + ("。" if zh else ".")
    if kind == "capital":
        row = next(
            r for r in words.COUNTRIES if v["country"] in (r[2], r[0], r[0].removeprefix("the "))
        )
        city = row[3] if zh else row[1]
        text = (
            city
            if d.chance(0.4)
            else json.dumps({d.pick(["capital", "city", "result"]): city}, ensure_ascii=False)
        )
        return text, f"{row[2]}的首都是{city}。" if zh else f"The capital of {row[0]} is {city}."
    if kind == "date":
        date = f"{d.r.randint(1990, 2040)}-{d.r.randint(1, 12):02d}-{d.r.randint(1, 28):02d}"
        text = date if d.chance(0.5) else json.dumps({"date": date})
        return text, f"今天是{date}。" if zh else f"Today is {date}."
    if kind in ("search", "lookup"):
        found = phrase(d) if d.chance(0.6) else str(d.r.randint(1, 999))
        key = d.pick(["result", "value", "answer", tool.noun[0] or "text"])
        text = found if d.chance(0.5) else json.dumps({key: found}, ensure_ascii=False)
        if kind == "search":
            return text, f"我找到了：{found}。" if zh else f"I found this: {found}."
        noun = tool.noun[1] if zh else tool.noun[0]
        return text, f"{v['x']}的{noun}是{found}。" if zh else f"The {noun} of {v['x']} is {found}."
    text = d.pick(
        ["ok", "done", "OK", '{"ok": true}', '{"status": "ok"}', '{"success": true}', "null"]
    )
    return text, "好的，完成了。" if zh else "Done."


def _weather_result(d: Draw, city: str) -> tuple[str, str]:
    zh = d.lang == "zh"
    warm, sky = d.r.randint(-9, 39), d.pick(words.CONDITIONS)
    sky_zh = words.CONDITIONS[sky]
    shown: str = sky_zh if zh and d.chance(0.5) else sky
    both = f"{city}现在{warm}度，{sky_zh}。" if zh else f"It is {warm} degrees and {sky} in {city}."
    if d.chance(0.2):
        text = d.pick(PLAIN_WEATHER).format(warm=warm, sky=shown)
        return text, both
    t = {d.pick(["temperature", "temperature", "temp_c", "temp", "degrees"]): warm}
    c = {d.pick(["condition", "condition", "weather", "conditions", "sky", "description"]): shown}
    name = {d.pick(["city", "location"]): city}
    roll = d.r.random()
    if roll < 0.12:
        return json.dumps({**name, **t}, ensure_ascii=False), (
            f"{city}现在{warm}度。" if zh else f"It is {warm} degrees in {city}."
        )
    if roll < 0.24:
        return json.dumps(
            c, ensure_ascii=False
        ), f"{city}现在{sky_zh}。" if zh else f"It is {sky} in {city}."
    extra = {"humidity": d.r.randint(20, 99)} if d.chance(0.1) else {}
    full = d.pick([{**t, **c}, {**c, **t}, {**name, **t, **c}, {**t, **extra, **c}])
    return json.dumps(full, ensure_ascii=False), both


def request(d: Draw, tool: Tool) -> Use:
    """Ask for what the tool does."""
    v = values(d, tool.kind)
    lang = d.lang
    ask = {k: str(x) for k, x in v.items()}
    if tool.kind == "lookup":
        ask["noun"] = tool.noun[1 if lang == "zh" else 0]
    if tool.kind == "capital" and lang == "en":
        row = next(r for r in words.COUNTRIES if r[0].removeprefix("the ") == v["country"])
        ask["country"] = row[0]
    user = d.ask(REQUESTS[lang][tool.kind], prefix=tool.kind != "message", **ask)
    arguments = {tool.params[k]: x for k, x in v.items()}
    if "unit" in tool.params and d.chance(0.4):
        unit = d.pick(["celsius", "fahrenheit"])
        said = {"celsius": "摄氏度", "fahrenheit": "华氏度"}[unit] if lang == "zh" else unit
        user = user.rstrip() + (f"用{said}" if lang == "zh" else f" In {unit}, please.")
        arguments["unit"] = unit
    result, answer = _result(d, tool, v)
    return Use(user, tool.schema["name"], arguments, result, answer)
