"""
The prompts of a run: words of some length that no cache has seen, or conversations from a file.

Prompts of words all begin differently, so that a prompt cache helps none of them.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from unilect.core.errors import ConfigError

_WORDS = (
    "river", "stone", "window", "garden", "music", "paper", "winter", "summer", "market", "bridge", "number", "letter", "simple",
    "yellow", "silver", "morning", "evening", "travel", "mountain", "forest", "island", "engine", "doctor", "farmer", "sailor",
    "teacher", "kitchen", "table", "picture", "animal", "orange", "apple", "bread", "water", "fire", "cloud", "thunder", "valley",
    "harbour", "castle", "village", "city", "street", "people", "question", "answer", "language", "story", "history", "science",
    "future", "memory", "machine", "light", "shadow", "colour", "sound", "silence", "circle", "square", "corner", "middle", "begin",
    "finish", "carry", "listen", "wonder", "follow", "gather", "build", "learn", "write",
)  # fmt: skip
_UNIQUE_WORDS = 8  # that a prompt begins with: one in 10^15
_SPREAD_WORDS = 4096
_TASK = "\n\nWrite a long story with these words."


class Sizes(NamedTuple):
    """
    The tokens of a prompt: those of each word, and those of a template. Guesses, where the server has not counted (`known`).
    """

    per_word: float = 1.3
    beside: float = 12.0
    known: bool = False

    def words(self, tokens: int) -> int:
        """Return the number of words that make a prompt of so many tokens, at least one."""
        return max(1, round((tokens - self.beside) / self.per_word))


def fit_sizes(words: Sequence[int], tokens: Sequence[int]) -> Sizes:
    """Return the sizes that two prompts show, given the words and the tokens of both; the usual ones where a server counts none."""
    per_word = (tokens[1] - tokens[0]) / (words[1] - words[0])
    if tokens[0] <= 0 or per_word < 0.1:
        return Sizes()
    return Sizes(per_word, tokens[0] - per_word * words[0], known=True)


class Words:
    """Prompts of words, which are drawn anew in each run: what an earlier run has left in a cache helps none of them."""

    def __init__(self) -> None:
        self._draw = random.Random()
        self._common = list[str]()

    def messages(self, words: int) -> list[dict[str, Any]]:
        """Return a conversation of some words."""
        if len(self._common) < words + _SPREAD_WORDS:
            self._common = self._draw.choices(_WORDS, k=words + _SPREAD_WORDS)
        at = self._draw.randrange(_SPREAD_WORDS)
        rest = self._common[at : at + max(0, words - _UNIQUE_WORDS)]
        text = " ".join(self._draw.choices(_WORDS, k=min(words, _UNIQUE_WORDS)) + rest)
        return [{"role": "user", "content": text + _TASK}]


def read_prompts(file: Path) -> list[list[dict[str, Any]]]:
    """
    Read conversations: a line each, as `{"messages": [...]}`, a list of messages, `{"prompt": "..."}` or a text in quotes.

    Raises:
        ConfigError: The file cannot be read, has none, or a line is something else.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--prompts {file}: cannot be read ({error.strerror}).") from error
    found = [_messages(line, f"--prompts {file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]  # fmt: skip
    if not found:
        raise ConfigError(f"--prompts {file}: has no line. Write one conversation a line: {{\"messages\": [...]}}.")  # fmt: skip
    return found


def _messages(line: bytes, where: str) -> list[dict[str, Any]]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: is not valid JSON ({error}).") from error
    if isinstance(value, dict):
        value = value.get("messages", value.get("prompt"))
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) and "role" in one for one in value):  # fmt: skip
        raise ConfigError(f'{where}: expected {{"messages": [{{"role": "user", "content": "..."}}]}}, a list of messages, {{"prompt": "..."}} or a text.')  # fmt: skip
    return value


def arrivals(rate: float, seconds: float, seed: str) -> Sequence[float]:
    """
    Return the times of requests that come at random, in seconds from 0, in ascending order.

    They are those of a Poisson process, given its number of requests, which is the rate by the time: so the asked rate is kept exactly.
    """
    draw = random.Random(seed)
    return sorted(draw.uniform(0, seconds) for _ in range(max(1, round(rate * seconds))))
