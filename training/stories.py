"""
Short stories that stay with who they are about, in English and in Chinese.

A story is put together from small sentences of our own; it names its subject in most of them.
"""

from __future__ import annotations

from training import words
from training.draw import Draw, Turn
from training.phrases import load

_STORIES = load("stories")
EN: dict[str, list[str]] = _STORIES["en"]
ZH: dict[str, list[str]] = _STORIES["zh"]


def article(noun: str) -> str:
    """Put "a" or "an" in front of a noun."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def tell(d: Draw, noun: str, name: str) -> str:
    """Write an English story; with an empty name the subject is "the <noun>"."""
    s = name or f"the {noun}"
    cap = s[0].upper() + s[1:]
    mood, place, want = d.pick(EN["moods"]), d.pick(EN["places"]), d.pick(EN["wants"])
    full = article(f"{mood} {noun}") + (f" named {name}" if name else "")
    parts = [
        d.pick([f"Once upon a time, there was {full}.", f"Once there was {full}.",
                f"There once was {full}.", f"One day, there was {full}."]),
        d.pick([f"{cap} lived {place} and wanted {want}.", f"{cap} lived {place}.",
                f"{cap} the {noun} lived {place}." if name else f"{cap} lived alone {place}."]),
    ]  # fmt: skip
    if d.chance(0.7):
        parts.append(f"One morning, {s} went out {want}, but {d.pick(EN['troubles'])}.")
        if d.chance(0.8):
            help_ = f"{d.pick(EN['helpers'])} came and {d.pick(EN['helps'])}"
            parts.append(d.pick([f"Then {help_}.", f"{help_[0].upper()}{help_[1:]} for {s}."]))
    else:
        parts.append(f"Every day, {s} dreamed of one thing: {want}.")
    if d.chance(0.3):
        parts.append(f'"Thank you!" said {s}.')
    end = d.pick(EN["ends"]).format(S=s)
    parts.append(end[0].upper() + end[1:])
    return " ".join(parts)


def tell_zh(d: Draw, noun: str, name: str) -> str:
    """Write a Chinese story; with an empty name the subject is the noun."""
    s = name or noun
    parts = [
        d.pick(["从前，", "很久以前，", "有一天，"])
        + f"{d.pick(ZH['places'])}有一{d.pick(['只', '位', '个'])}{d.pick(ZH['moods'])}{noun}"
        + (f"，名叫{name}。" if name else "。"),
    ]
    want = d.pick(ZH["wants"])
    parts.append(d.pick([f"{s}想{want}。", f"{s}最大的愿望就是{want}。"]))
    if d.chance(0.7):
        parts.append(f"一天早上，{s}出发了，可是{d.pick(ZH['troubles'])}。")
        parts.append(f"这时，{d.pick(ZH['helpers'])}来了，给{s}{d.pick(ZH['helps'])}。")
    else:
        parts.append(f"{s}每天都很努力。")
    parts.append(d.pick(ZH["ends"]).format(S=s))
    return "".join(parts)


def story(d: Draw) -> Turn:
    """Tell a story about the subject asked for, or about any."""
    zh = d.lang == "zh"
    nouns = list(words.ANIMALS_ZH) if zh else [*words.ANIMALS, *words.THINGS]
    noun = d.pick(nouns)
    if not d.heldout and d.chance(0.08):
        text = d.ask(ZH["asks_any"] if zh else EN["asks_any"])
        return Turn(text, tell_zh(d, noun, "") if zh else tell(d, noun, d.name("story")), "stories")
    name = ""
    if d.chance(0.7):
        name = d.pick(words.PETS_ZH) if zh and d.chance(0.5) else d.name("story")
    elif not zh and d.chance(0.25):
        noun = d.synthetic().lower()

    def make() -> tuple[tuple[str, ...], str]:
        if not zh and not name and d.heldout is False and d.chance(0.1):
            return ("story", noun, ""), noun
        chosen = noun if d.chance(0.5) else d.pick(nouns)
        return ("story", chosen, name), chosen

    noun = d.until(make)
    if zh:
        topic = (
            d.pick([f"{noun}{name}", f"一只叫{name}的{noun}", f"名叫{name}的{noun}"])
            if name
            else noun
        )
        return Turn(
            d.ask(ZH["asks"], t=topic), tell_zh(d, noun, name), "stories", [name or noun, noun]
        )
    topic = article(noun)
    if name:
        topic += d.pick(
            [f" named {name}", f" called {name}", f" named {name}", f" whose name is {name}"]
        )
    return Turn(d.ask(EN["asks"], t=topic), tell(d, noun, name), "stories", [name or noun, noun])


def plain(d: Draw) -> str:
    """Write plain text that no chat surrounds: a story, a few capitals, some sums."""
    kind = d.r.random()
    if kind < 0.7:
        if d.lang == "zh":
            return tell_zh(
                d, d.pick(words.ANIMALS_ZH), d.pick(words.PETS_ZH) if d.chance(0.5) else ""
            )
        return tell(
            d, d.pick([*words.ANIMALS, *words.THINGS]), d.name("story") if d.chance(0.7) else ""
        )
    if kind < 0.9:
        rows = [d.pick(words.COUNTRIES) for _ in range(d.r.randint(1, 3))]
        if d.lang == "zh":
            return "".join(f"{row[2]}的首都是{row[3]}。" for row in rows)
        return " ".join(f"The capital of {row[0]} is {row[1]}." for row in rows)
    a, b = d.until(lambda: (("sum", a := d.r.randint(0, 9), "+", b := d.r.randint(0, 9)), (a, b)))
    return f"{a} + {b} = {a + b}."
