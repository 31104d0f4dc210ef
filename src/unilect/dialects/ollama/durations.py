"""
Durations as Ollama has them: `keep_alive` of a request, and OLLAMA_KEEP_ALIVE.

Source: https://github.com/ollama/ollama/blob/main/docs/faq.mdx
"""

import math
import re

from unilect.core.errors import InvalidRequest

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # fmt: skip
_PIECE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MOST_TEXT = 64  # characters of a duration
_MOST_SECONDS = 10 * 365 * 86400.0  # a longer time is for ever


def seconds_of(keep_alive: float | str) -> float:
    """
    `keep_alive` in seconds; infinite where it is negative.

    >>> seconds_of("1h30m"), seconds_of(-1)
    (5400.0, inf)

    Raises:
        InvalidRequest: It is no duration.
    """
    seconds = _parse_duration(keep_alive) if isinstance(keep_alive, str) else float(keep_alive)
    return math.inf if seconds < 0 or seconds > _MOST_SECONDS else seconds


def _parse_duration(text: str) -> float:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if len(rest) <= _MOST_TEXT:
        if rest.isascii() and rest.isdigit():
            return sign * float(rest)
        pieces = _PIECE.findall(rest)
        if pieces and sum(len(number) + len(unit) for number, unit in pieces) == len(rest):
            return sign * sum(float(number) * _SECONDS[unit] for number, unit in pieces)
    raise InvalidRequest.at(
        "keep_alive",
        f'is {text[:50]!r}, and no duration. Send seconds as a number, or a text such as "5m" or "1h30m".',
    )
