"""Tool calls: the forms in which the families of models write them, and what reads and writes these forms. It knows no backend."""

from functools import lru_cache


def begun(text: str, word: str) -> int:
    """The length of the longest end of a text that begins a word."""
    if word[:1] not in text[1 - len(word) :]:  # as nearly always
        return 0
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )


def held(text: str, words: tuple[str, ...]) -> int:
    """The length of the longest end of a text that begins one of some words, and is none of them as a whole."""
    firsts, longest = _reach(words)
    for place in range(max(0, len(text) - longest + 1), len(text)):
        if text[place] in firsts:
            end = text[place:]
            if any(word.startswith(end) and word != end for word in words):
                return len(text) - place
    return 0


@lru_cache(64)
def _reach(words: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """What words begin with, and the length of the longest."""
    return frozenset(word[0] for word in words), max(map(len, words))
