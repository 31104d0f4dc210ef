"""
Answers that are JSON: asked for by field names, by a printed schema, or forced by a grammar.

Text between MUTE and UNMUTE is what a grammar writes for the model (the keys); the trainer takes
no loss there, so that plain questions do not teach it to open a brace.
"""

from __future__ import annotations

import json
from typing import Any

from training import words
from training.draw import Draw
from training.phrases import load
from training.stories import tell
from training.talk import capital, sums

MUTE, UNMUTE = "\ue000", "\ue001"

_JSON = load("json")
STRING_KEYS: list[str] = _JSON["string_keys"]
INTEGER_KEYS: list[str] = _JSON["integer_keys"]
BOOLEAN_KEYS: list[str] = _JSON["boolean_keys"]
ARRAY_KEYS: list[str] = _JSON["array_keys"]
ENUMS: list[tuple[str, list[str]]] = _JSON["enums"]
ELEMENTS: dict[str, str] = _JSON["elements"]  # key of an array -> key of its elements
VALUES: dict[str, list[str]] = _JSON["values"]
ASKS: dict[str, list[str]] = _JSON["asks"]
THINGS_ASKED: list[str] = _JSON["things_asked"]


def invent(d: Draw, key: str, type_: str, enum: list[str] | None = None) -> Any:
    """Make up a value that fits the name and the type of a field."""
    if enum:
        return d.pick(enum)
    if type_ == "integer":
        return d.r.randint(1990, 2030) if key == "year" else d.r.randint(1, 99)
    if type_ == "boolean":
        return d.chance(0.5)
    if type_ == "array":
        one = ELEMENTS.get(key, "word")
        return [invent(d, one, "string") for _ in range(d.r.randint(2, 3))]
    if key in ("name", "author", "friend", "pet", "first_name", "last_name"):
        return d.pick(words.NAMES_EN)
    if key in ("city", "street"):
        return d.pick(words.CITIES_EN[:40])
    pools: dict[str, Any] = {
        "country": [row[0].removeprefix("the ") for row in words.COUNTRIES],
        "colour": words.COLOURS,
        "color": words.COLOURS,
        "animal": words.ANIMALS,
        "food": words.FOODS,
        **VALUES,
    }
    return d.pick(pools.get(key, [*words.THINGS, *words.ANIMALS]))


def fields(d: Draw) -> list[tuple[str, str, list[str] | None]]:
    """Choose one to four fields: (key, type, enum or None)."""
    chosen: list[tuple[str, str, list[str] | None]] = []
    for _ in range(d.r.randint(1, 4)):
        roll = d.r.random()
        if roll < 0.45:
            one = (d.pick(STRING_KEYS) if d.chance(0.92) else d.synthetic().lower(), "string", None)
        elif roll < 0.68:
            one = (d.pick(INTEGER_KEYS), "integer", None)
        elif roll < 0.8:
            one = (d.pick(BOOLEAN_KEYS), "boolean", None)
        elif roll < 0.91:
            one = (d.pick(ARRAY_KEYS), "array", None)
        else:
            key, enum = d.pick(ENUMS)
            one = (key, "string", enum)
        if all(one[0] != c[0] for c in chosen):
            chosen.append(one)
    return chosen


def schema_of(d: Draw, chosen: list[tuple[str, str, list[str] | None]]) -> dict[str, Any]:
    """Write the JSON Schema of the fields."""
    properties: dict[str, Any] = {}
    for key, type_, enum in chosen:
        entry: dict[str, Any] = {"type": type_}
        if enum:
            entry["enum"] = enum
        if type_ == "array":
            entry["items"] = {"type": "string"}
        properties[key] = entry
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = list(properties)
    if d.chance(0.4):
        schema["additionalProperties"] = False
    return schema


def muted(value: Any) -> str:
    """Write JSON with everything muted that a grammar would dictate (braces, keys)."""
    parts = []
    for i, (key, item) in enumerate(value.items()):
        lead = ("{" if i == 0 else "") + json.dumps(key, ensure_ascii=False) + ": "
        tail = ", " if i < len(value) - 1 else "}"
        text = json.dumps(item, ensure_ascii=False)
        head = text[:1] if text[0] in '"[' else ""
        parts.append(f"{MUTE}{lead}{head}{UNMUTE}{text[len(head) :]}{tail}")
    return "".join(parts)


def keyed(value: dict[str, Any]) -> str:
    """Write JSON with everything muted that nobody can predict (the words and numbers of values)."""

    def quiet(item: Any) -> str:
        text = json.dumps(item, ensure_ascii=False)
        if isinstance(item, str):
            return f'"{MUTE}{text[1:-1]}{UNMUTE}"'
        if isinstance(item, list):
            return "[" + ", ".join(map(quiet, item)) + "]"
        return text if isinstance(item, bool) else f"{MUTE}{text}{UNMUTE}"

    parts = [f"{json.dumps(key, ensure_ascii=False)}: {quiet(item)}" for key, item in value.items()]
    return "{" + ", ".join(parts) + "}"


def listing(keys: list[str]) -> str:
    """Write "a, b and c"."""
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]


def extraction(d: Draw) -> tuple[str, dict[str, Any]]:
    """Write a sentence about somebody, and the facts in it."""
    name, age, city = d.name("json"), d.r.randint(1, 99), d.city("json")
    facts: dict[str, Any] = d.pick(
        [
            {"name": name, "age": age},
            {"name": name, "city": city},
            {"name": name, "age": age, "city": city},
            {"name": name, "age": age},
        ]
    )
    text = name
    if "age" in facts:
        text += f" is {age} years old"
    if "city" in facts:
        text += (" and" if "age" in facts else "") + f" lives in {city}"
    return text + ".", facts


def _prompted(d: Draw) -> tuple[str, dict[str, Any]]:
    """Ask for JSON by naming the fields, with the values given or to be made up."""
    if d.chance(0.5):
        text, facts = extraction(d)
        keys = listing(list(facts))
        return d.ask(ASKS["extract"], t=text, k=keys), facts
    chosen = fields(d)
    value = {key: invent(d, key, type_, enum) for key, type_, enum in chosen if not enum}
    value = value or {"name": d.pick(words.NAMES_EN)}
    return d.ask(ASKS["make"], o=d.pick(THINGS_ASKED), k=listing(list(value))), value


def _with_schema(d: Draw) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Ask with a schema printed in the system prompt or in the question."""
    if d.chance(0.4):
        text, value = extraction(d)
        chosen = [(k, "integer" if k == "age" else "string", None) for k in value]
    else:
        chosen = fields(d)
        value = {key: invent(d, key, type_, enum) for key, type_, enum in chosen}
        text = d.pick(
            [
                f"Give me {d.pick(THINGS_ASKED)}.",
                f"Describe {d.pick(THINGS_ASKED)}.",
                "Make one up.",
            ]
        )
    schema = schema_of(d, chosen)
    order = d.pick(["Answer with JSON that fits this schema: ", "Answer in JSON with this schema: ",
                    "Reply with JSON only. Schema: ", "JSON schema: "])  # fmt: skip
    printed = order + json.dumps(schema, ensure_ascii=False)
    if d.chance(0.6):
        return printed, text, value, schema
    return "", f"{text} {printed}", value, schema


def _forced(d: Draw) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Ask without a word about JSON; a grammar alone forces the form."""
    roll = d.r.random()
    if roll < 0.3:
        text, value = extraction(d)
        chosen = [(k, "integer" if k == "age" else "string", None) for k in value]
        user = d.ask(ASKS["forced_extract"], t=text)
        return user, value, schema_of(d, chosen)
    if roll < 0.45 and not d.heldout:
        turn = capital(d)
        city = turn.answer.rstrip(".。").split("的首都是" if d.lang == "zh" else " is ")[-1]
        key = d.pick(["capital", "answer", "city", "result"])
        return turn.user, {key: city}, schema_of(d, [(key, "string", None)])
    if roll < 0.55 and not d.heldout:
        turn = sums(d)
        key = d.pick(["result", "answer", "sum", "value"])
        return (
            turn.user,
            {key: int(turn.answer.rstrip(".。").split(" = ")[1])},
            schema_of(d, [(key, "integer", None)]),
        )
    chosen = fields(d)
    value = {key: invent(d, key, type_, enum) for key, type_, enum in chosen}
    if roll < 0.6:
        text = "Is this text positive or negative? " + tell(
            d, d.pick(words.ANIMALS), d.name("story")
        )
    else:
        text = d.ask(ASKS["forced"], o=d.pick(THINGS_ASKED))
    return text, value, schema_of(d, chosen)


def json_answer(d: Draw) -> dict[str, Any]:
    """
    Make one request for JSON.

    Returns:
        system, user, answer (muted where a grammar writes), schema (or None), forced, value
    """

    def make() -> tuple[tuple[str, ...], dict[str, Any]]:
        roll, schema, system, forced = d.r.random(), None, "", False
        if roll < 0.55:
            user, value = _prompted(d)
        elif roll < 0.8:
            system, user, value, schema = _with_schema(d)
        else:
            user, value, schema = _forced(d)
            forced = True
        answer = muted(value) if forced else json.dumps(value, ensure_ascii=False)
        found = {"system": system, "user": user, "answer": answer, "schema": schema,
                 "forced": forced, "value": value}  # fmt: skip
        return ("json", user, *value), found

    result: dict[str, Any] = d.until(make)
    return result
