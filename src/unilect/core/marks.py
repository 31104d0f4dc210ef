"""Marks in text that comes in pieces: what of its end may still become one."""

import re
from collections.abc import Iterable
from functools import lru_cache


def count_overlap(text: str, word: str) -> int:
    """The length of the longest end of a text that begins a word."""
    if word[:1] not in text[1 - len(word) :]:  # as nearly always
        return 0
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )


def count_overlaps(text: str, words: tuple[str, ...]) -> int:
    """
    Return the length of the longest end of a text that begins one of some words, and is none of them as a whole.

    Args:
        words: Marks of a family's table, and no text of a client's: their pattern nests as deep as a word is long, at most some 300 characters.
    """
    beginning, longest = _beginning_of(words)
    found = beginning.search(text, max(0, len(text) - longest))
    return len(text) - found.start() if found is not None else 0


def split_at(text: str, words: tuple[str, ...]) -> tuple[str, str, str]:
    """The text before the first word, that word, and what follows; a word's beginning at the end is kept back."""
    found = _any_of(words).search(text)
    if found is not None:
        return text[: found.start()], found[0], text[found.end() :]
    kept = len(text) - count_overlaps(text, words)
    return text[:kept], "", text[kept:]


@lru_cache(64)
def _beginning_of(words: tuple[str, ...]) -> tuple[re.Pattern[str], int]:
    """Compile a pattern that finds the beginning of a word at the end of a text, and return it with the longest's length."""
    return re.compile(_beginning(words) + "(?!)"), max(map(len, words), default=1) - 1


def _beginning(words: Iterable[str]) -> str:
    """Write the tree of what words begin with that is not all of them, each branch followed by what else it may be."""
    rests: dict[str, list[str]] = {}
    for word in words:
        if len(word) > 1:
            rests.setdefault(word[0], []).append(word[1:])
    return "".join(rf"{re.escape(one)}(?:{_beginning(rest)}\Z)|" for one, rest in rests.items())


@lru_cache(64)
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """Compile a pattern that finds the first of some words: by their first character, which most have in common."""
    endings: dict[str, list[str]] = {}
    for word in sorted(words):
        endings.setdefault(word[:1], []).append(re.escape(word[1:]))
    return re.compile("|".join(f"{re.escape(one)}(?:{'|'.join(endings[one])})" for one in endings))
