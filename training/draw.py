"""
Seeded choices, the split into training and held-out, and noise in how people write.

Rule: a combination that `held` says True for is never in a training conversation; every tested turn
of the held-out set is one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from training import words

T = TypeVar("T")
HELD_SHARE = 8  # one in eight combinations is held out


def held(*key: object) -> bool:
    """Tell whether a combination belongs to the held-out set (stable over runs)."""
    return zlib.crc32("|".join(str(k) for k in key).encode()) % HELD_SHARE == 0


@dataclass(frozen=True)
class Turn:
    """
    One question with its answer, and how to judge another answer.

    Attributes:
        user: what the user says
        answer: the whole text that the assistant should answer
        skill: name in the table of the evaluation
        must: substrings that a right answer holds; empty means it must equal `answer`
    """

    user: str
    answer: str
    skill: str
    must: list[str] = field(default_factory=list)


class Draw:
    """
    A seeded source of choices for one conversation.

    Args:
        r: the random generator
        heldout: draw tested combinations from the held-out side
        lang: "en" or "zh"
    """

    def __init__(self, r: Random, *, heldout: bool = False, lang: str = "en") -> None:
        self.r = r
        self.heldout = heldout
        self.lang = lang

    def kept(self, *key: object) -> bool:
        """Tell whether this combination may be used on our side of the split."""
        return held(*key) == self.heldout

    def pick(self, items: Any) -> Any:
        """Choose one of a sequence or of a dict's keys."""
        return self.r.choice(items if isinstance(items, (list, tuple, str)) else list(items))

    def chance(self, p: float) -> bool:
        """Return True with probability p."""
        return self.r.random() < p

    def until(self, make: Any) -> Any:
        """Call `make` until the key in front of what it returns lies on our side."""
        for _ in range(4000):
            key, value = make()
            if self.kept(*key):
                return value
        raise RuntimeError("no combination left on this side of the split")

    def synthetic(self, least: int = 2, most: int = 3) -> str:
        """Make a word that nobody knows, with a capital letter."""
        text = "".join(self.pick(words.SYLLABLES) for _ in range(self.r.randint(least, most)))
        if self.chance(0.35):
            text += self.pick("nrslmtkdx")
        return text.capitalize()

    def name(self, use: str, share: float = 0.5) -> str:
        """
        Draw a person's name in the language of the conversation.

        A well-known name is held out for some uses only, so that all are learned; one put together
        by us is held out wholly.
        """

        def make() -> tuple[tuple[str, ...], str]:
            if self.lang == "zh" and self.chance(0.6):
                given = "".join(self.pick(words.GIVEN_ZH) for _ in range(self.r.randint(1, 2)))
                text = (self.pick(words.SURNAMES_ZH) if self.chance(0.8) else "小") + given
            elif self.chance(share):
                text = self.synthetic()
            else:
                text = self.pick(words.NAMES_EN)
                return ("name", use, text), text
            return ("name", text), text

        return str(self.until(make))

    def city(self, use: str) -> str:
        """Draw a city, well known or invented, with the same rules."""

        def make() -> tuple[tuple[str, ...], str]:
            zh = self.lang == "zh" and self.chance(0.85)
            if self.chance(0.6):
                cities = words.CITIES_ZH if zh else words.CITIES_EN
                capital = self.pick(words.COUNTRIES)[3 if zh else 1]
                text = self.pick(cities) if self.chance(0.5) else capital
                return ("city", use, text), text
            if zh:
                text = (
                    self.pick(words.GIVEN_ZH)
                    + self.pick(words.GIVEN_ZH)
                    + self.pick("州城海山市京")
                )
            else:
                text = self.synthetic() + (" " + self.synthetic(1, 2) if self.chance(0.15) else "")
            return ("city", text), text

        return str(self.until(make))

    def ask(self, templates: list[str], *, prefix: bool = True, **slots: str) -> str:
        """
        Write a question from one of the templates, the way people write.

        The template (not what fills it) may be in lower case, lack its last mark, begin with a
        greeting or "please", or end with a blank.
        """
        text = self.pick(templates)
        if self.lang == "en" and self.chance(0.15):
            text = text.lower()
        if self.chance(0.15) and text[-1] in "?.!？。！":
            text = text[:-1]
        if prefix and self.chance(0.12):
            text = self.pick(PREFIXES[self.lang]) + text
        text = text.format(**slots)
        return text + " " if self.chance(0.02) else text


PREFIXES = {
    "en": [
        "Please, ",
        "Hi! ",
        "Hello, ",
        "Hey, ",
        "Hi, ",
        "Question: ",
        "Tell me: ",
        "OK. ",
        "So, ",
    ],
    "zh": ["请问，", "你好，", "请问", "您好，", "嗨，", "那么，", "好的，"],
}
