"""
Durations as texts, in the form of Go's: `5m`, `1h30m`, `-1`; a number alone is seconds.

Source: https://pkg.go.dev/time#ParseDuration
"""

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # fmt: skip
_PIECE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MOST_TEXT = 64  # characters of a duration


def parse_duration(text: str) -> float:
    """
    Return the seconds of a text.

    >>> parse_duration("1h30m")
    5400.0

    Raises:
        ValueError: It is no duration.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if len(rest) <= _MOST_TEXT:
        if rest.isascii() and rest.isdigit():
            return sign * float(rest)
        pieces = _PIECE.findall(rest)
        if pieces and sum(len(number) + len(unit) for number, unit in pieces) == len(rest):
            return sign * sum(float(number) * _SECONDS[unit] for number, unit in pieces)
    raise ValueError(f"{text[:50]!r} is no duration")
