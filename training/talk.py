"""
Short exchanges: greetings, capitals, sums, echoes, counting, and what the model does not know.

Every function takes a `Draw` and returns one `Turn`; the answer to a question is always the same.
"""

from __future__ import annotations

from training import words
from training.draw import Draw, Turn
from training.phrases import load

_TALK = load("talk")
WHO: dict[str, str] = _TALK["who"]
DONT_KNOW: dict[str, str] = _TALK["dont_know"]
CAPITAL_ASKS: dict[str, list[str]] = _TALK["capital"]
CAPITAL_MORE: dict[str, list[str]] = _TALK["capital_more"]
SUM_ASKS: dict[str, list[str]] = _TALK["sum"]
UNKNOWN: dict[str, list[str]] = _TALK["unknown"]
TOPICS: dict[str, list[str]] = _TALK["topics"]
# language -> answer -> what people say
SMALL_TALK: dict[str, dict[str, list[str]]] = {
    lang: {entry["answer"].replace("{who}", WHO[lang]): entry["says"] for entry in entries}
    for lang, entries in _TALK["small_talk"].items()
}


def small_talk(d: Draw) -> Turn:
    """Greet, introduce itself, thank, say goodbye."""
    table = SMALL_TALK[d.lang]

    def make() -> tuple[tuple[str, ...], Turn]:
        answer = d.pick(table) if d.chance(0.75) else WHO[d.lang]
        text = d.ask(table[answer])
        return ("talk", text), Turn(text, answer, "small talk")

    turn: Turn = d.until(make)
    return turn


def capital(d: Draw, *, follow: bool = False) -> Turn:
    """Name the capital of a country; `follow` asks as a second question ("And of Peru?")."""
    asks = (CAPITAL_MORE if follow else CAPITAL_ASKS)[d.lang]

    def make() -> tuple[tuple[str, ...], Turn]:
        row = d.pick(words.COUNTRIES)
        ask = d.pick(asks)
        if d.lang == "zh":
            text, answer = d.ask([ask], c=row[2]), f"{row[2]}的首都是{row[3]}。"
        else:
            named = d.pick([row[0], *words.ALIASES.get(row[0], [])])
            text, answer = d.ask([ask], c=named), f"The capital of {row[0]} is {row[1]}."
            if d.chance(0.12):
                text = text.lower()
        return ("capital", row[0], ask), Turn(text, answer, f"capitals {d.lang}")

    turn: Turn = d.until(make)
    return turn


def sums(d: Draw) -> Turn:
    """Add or subtract two whole numbers up to 99."""

    def make() -> tuple[tuple[object, ...], tuple[int, int, str]]:
        top = 20 if d.chance(0.12) else 99
        a, b, op = d.r.randint(0, top), d.r.randint(0, top), d.pick("+-")
        if op == "-" and a < b and d.chance(0.8):
            a, b = b, a
        return ("sum", a, op, b), (a, b, op)

    a, b, op = d.until(make)
    asks = SUM_ASKS[d.lang] if d.chance(0.6) else SUM_ASKS[d.lang + op]
    text = d.ask(asks, a=str(a), b=str(b), o=op)
    result = a + b if op == "+" else a - b
    answer = f"{a} {op} {b} = {result}" + ("。" if d.lang == "zh" else ".")
    return Turn(text, answer, f"arithmetic {d.lang}")


def echo(d: Draw) -> Turn:
    """Repeat what the user said, or say hello to somebody."""
    zh = d.lang == "zh"
    if d.chance(0.35):
        name = d.name("echo")
        asks = (
            ["跟{x}打个招呼", "向{x}问好", "请对{x}说你好。", "和{x}打个招呼吧"]
            if zh
            else ["Say hello to {x}.", "Say hi to {x}.", "Please say hello to {x}.", "Greet {x}."]
        )
        return Turn(d.ask(asks, x=name), f"你好，{name}！" if zh else f"Hello, {name}!", "echo")

    def make() -> tuple[tuple[str, ...], str]:
        pool = [
            *words.THINGS,
            *words.ANIMALS,
            *words.COLOURS,
            "the",
            "a",
            "is",
            "and",
            "we",
            "have",
        ]
        if zh:
            pool = [
                *words.ANIMALS_ZH,
                *words.COLOURS.values(),
                *words.FOODS.values(),
                "很",
                "我有",
                "喜欢",
            ]
        n = d.r.randint(1, 7)
        parts = [d.synthetic() if d.chance(0.4) else d.pick(pool) for _ in range(n)]
        text = ("" if zh else " ").join(parts)
        return ("echo", text), text

    text = d.until(make)
    asks = (
        ["请重复：{x}", "跟我说：{x}", "重复一遍：{x}", "跟我读：{x}", "请说：{x}"]
        if zh
        else ["Repeat after me: {x}", "Say: {x}", "Repeat: {x}", "Echo this: {x}", 'Say "{x}"',
              "Please repeat: {x}",
            "Say {x}", "Repeat the following: {x}"]
    )  # fmt: skip
    return Turn(d.ask(asks, prefix=False, x=text), text, "echo")


def count(d: Draw) -> Turn:
    """Count up to a small number, or list some things of a kind."""
    zh = d.lang == "zh"

    def make() -> tuple[tuple[object, ...], Turn]:
        n = d.r.randint(2, 20)
        text = d.ask(
            ["从1数到{n}", "数到{n}", "请数到{n}。", "请从1数到{n}。"]
            if zh
            else [
                "Count to {n}.",
                "Count from 1 to {n}.",
                "Please count to {n}.",
                "Can you count to {n}?",
            ],
            n=str(n),
        )
        numbers = ("、" if zh else ", ").join(str(i) for i in range(1, n + 1))
        return ("count", text), Turn(text, numbers + ("。" if zh else "."), "counting")

    turn: Turn = d.until(make)
    return turn


def unknown(d: Draw) -> Turn:
    """Say that it does not know."""
    zh = d.lang == "zh"
    topics = TOPICS["zh"] if zh else [*TOPICS["en"], *words.THINGS, *words.ANIMALS]

    def make() -> tuple[tuple[str, ...], Turn]:
        n = d.synthetic() if d.chance(0.15) else d.pick(topics).replace("-", " ")
        text = d.ask(
            UNKNOWN[d.lang],
            n=n, m=d.pick(topics).replace("-", " "), y=str(d.r.randint(1000, 2030)),
            k=d.pick(words.COLOURS), x=d.synthetic(),
        )  # fmt: skip
        return ("unknown", text), Turn(text, DONT_KNOW[d.lang], "unknown")

    turn: Turn = d.until(make)
    return turn
