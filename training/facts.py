"""
Facts that a conversation holds: about the assistant (system prompt) and about the user (turns).

Each kind of fact says how it is stated, how it is asked for, and what the answer is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training import words
from training.draw import Draw, Turn
from training.phrases import load
from training.talk import CAPITAL_ASKS, DONT_KNOW, WHO


@dataclass(frozen=True)
class Fact:
    """
    One kind of fact in one language.

    Attributes:
        tell: how it is stated, with {x}
        reply: what the assistant says to it (facts about the user only)
        ask: how it is asked for
        answer: what the assistant answers
    """

    tell: list[str]
    ask: list[str]
    answer: str
    reply: str = ""


def _facts(table: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Fact]]:
    """Turn a table of `phrases/facts.toml` into facts: language -> kind -> fact."""
    return {
        lang: {kind: Fact(**entry) for kind, entry in kinds.items()}
        for lang, kinds in table.items()
    }


_FACTS = load("facts")
PERSONA = _facts(_FACTS["persona"])
MEMORY = _facts(_FACTS["memory"])
GENERIC_SYSTEMS: dict[str, list[str]] = _FACTS["systems"]
COMMON_SYSTEM = "You are a helpful assistant."
LANGUAGE_ORDERS: dict[str, list[str]] = _FACTS["language_orders"]


def value(d: Draw, whose: str, kind: str) -> str:
    """Draw what a fact of this kind is about; `whose` is "persona" or "memory"."""
    if kind in ("name", "dog"):
        return d.name(f"{whose} {kind}")
    if kind == "city":
        return d.city(f"{whose} {kind}")
    if kind == "colour":
        return str(d.pick(words.COLOURS.values() if d.lang == "zh" else words.COLOURS))
    if kind == "food":
        return str(d.pick(words.FOODS.values() if d.lang == "zh" else words.FOODS))
    return str(d.r.randint(1, 99))


def persona(d: Draw) -> tuple[str, list[Turn]]:
    """Write a system prompt with 1-3 facts, and the questions that ask for them."""
    kinds = d.r.sample(["name", "name", "city", "colour", "food", "age"], d.r.randint(1, 3))
    kinds = list(dict.fromkeys(kinds))
    lines, turns = [], []
    asked = "zh" if d.lang == "en" and "name" in kinds and d.chance(0.1) else d.lang
    for kind in kinds:
        x = value(d, "persona", kind)
        lines.append(d.pick(PERSONA[d.lang][kind].tell).format(x=x))
        if asked != d.lang and kind in ("colour", "food"):
            continue
        fact = PERSONA[asked][kind]
        other = Draw(d.r, heldout=d.heldout, lang=asked)
        text = other.ask(fact.ask, prefix=kind != "name")
        turns.append(Turn(text, fact.answer.format(x=x), f"system {kind}"))
    if d.chance(0.3):
        lines.insert(d.r.randint(0, len(lines)), d.pick(GENERIC_SYSTEMS[d.lang]))
    d.r.shuffle(turns)
    return ("" if d.lang == "zh" else " ").join(lines), turns


def no_persona(d: Draw) -> Turn:
    """Ask for a fact about the assistant or the user that nobody stated."""
    zh = d.lang == "zh"
    if d.chance(0.6):
        kind = d.pick(["name", "name", "name", "city", "colour", "age"])
        text = d.ask(PERSONA[d.lang][kind].ask)
        return Turn(text, WHO[d.lang] if kind == "name" else DONT_KNOW[d.lang], "no fact")
    text = d.ask(MEMORY[d.lang]["name"].ask)
    return Turn(
        text, "你还没有告诉我你的名字。" if zh else "You have not told me your name.", "no fact"
    )


def memory(d: Draw) -> tuple[list[Turn], list[Turn]]:
    """State one or two facts about the user; return the stating turns and the asking turns."""
    kinds = ["name"] if d.chance(0.5) else d.r.sample(list(MEMORY["en"]), d.r.randint(1, 2))
    told, asked = [], []
    for kind in kinds:
        fact, x = MEMORY[d.lang][kind], value(d, "memory", kind)
        told.append(Turn(d.ask(fact.tell, x=x), fact.reply.format(x=x), "introduced"))
        asked.append(Turn(d.ask(fact.ask), fact.answer.format(x=x), "memory"))
    d.r.shuffle(asked)
    return told, asked


def ordered_language(d: Draw) -> tuple[str, Turn]:
    """Give the order to answer in one language, and ask for a capital in the other."""
    answer_in = d.pick(["zh", "zh", "en"])
    ask_in = d.pick(["zh", "en"])

    def make() -> tuple[tuple[str, ...], tuple[str, Turn]]:
        row, ask = d.pick(words.COUNTRIES), d.pick(CAPITAL_ASKS[ask_in])
        other = Draw(d.r, heldout=d.heldout, lang=ask_in)
        text = other.ask([ask], c=row[2] if ask_in == "zh" else row[0])
        answer = (
            f"{row[2]}的首都是{row[3]}。"
            if answer_in == "zh"
            else f"The capital of {row[0]} is {row[1]}."
        )
        turn = Turn(text, answer, "system language")
        return ("order", row[0], ask), (d.pick(LANGUAGE_ORDERS[answer_in]), turn)

    result: tuple[str, Turn] = d.until(make)
    return result
