"""Marks in text that comes in pieces: what of its end may still become one."""

import re
from functools import lru_cache


def count_overlap(text: str, word: str) -> int:
    """The length of the longest end of a text that begins a word."""
    if word[:1] not in text[1 - len(word) :]:  # as nearly always
        return 0
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )


def count_overlaps(text: str, words: tuple[str, ...]) -> int:
    """The length of the longest end of a text that begins one of some words, and is none of them as a whole."""
    beginnings, longest = _beginnings(words)
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if text[-size:] in beginnings), 0)


def split_at(text: str, words: tuple[str, ...]) -> tuple[str, str, str]:
    """The text before the first word, that word, and what follows; a word's beginning at the end is kept back."""
    found = _any_of(words).search(text)
    if found is not None:
        return text[: found.start()], found[0], text[found.end() :]
    kept = len(text) - count_overlaps(text, words)
    return text[:kept], "", text[kept:]


@lru_cache(64)
def _beginnings(words: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """Everything that words begin with and that is not all of them, and the length of the longest."""
    found = frozenset(word[:size] for word in words for size in range(1, len(word)))
    return found, max(map(len, found), default=0)


@lru_cache(64)
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """Compile a pattern that finds the first of some words: by their first character, which most have in common."""
    endings: dict[str, list[str]] = {}
    for word in sorted(words):
        endings.setdefault(word[:1], []).append(re.escape(word[1:]))
    return re.compile("|".join(f"{re.escape(one)}(?:{'|'.join(endings[one])})" for one in endings))
