"""
GBNF of integers within bounds, which may have any number of digits up to forty.

Bounds of more digits are left out: one far from zero is kept by any integer that a grammar lets grow to sixteen digits.
"""

_USUAL = 16
_MOST = 40


def integers(least: int | None, most: int | None) -> str:
    """
    Return the right side of a rule for the integers from `least` to `most`, both included.

    Raises:
        ValueError: There are none.
    """
    if least is not None and most is not None and least > most:
        raise ValueError("there is no integer between them")
    choices = []
    if least is None or least < 0:
        below = -1 if most is None or most > -1 else most
        negative = _from_to(-below, None if least is None else -least)
        choices.append(f'"-" {_group(negative)}')
    if most is None or most >= 0:
        choices += _from_to(max(0, least or 0), most)
    return " | ".join(choices)


def _from_to(least: int, most: int | None) -> list[str]:
    """Return the positive integers between two, as choices."""
    low = str(least) if least < 10**_MOST else "0"
    high = str(most) if most is not None and most < 10**_MOST else None
    if high is None:
        size = len(low)
        more = f"[1-9] [0-9]{{{size},{max(size, _USUAL - 1)}}}"
        return [_same_size(low, "9" * size), more]
    if len(low) == len(high):
        return [_same_size(low, high)]
    choices = [_same_size(low, "9" * len(low)), _same_size("1" + "0" * (len(high) - 1), high)]
    if len(high) - len(low) > 1:  # any number of digits in between
        choices.append(f"[1-9] [0-9]{{{len(low)},{len(high) - 2}}}")
    return choices


def _same_size(low: str, high: str) -> str:
    """Return the integers between two of as many digits."""
    if low == high:
        return f'"{low}"'
    same = next(place for place in range(len(low)) if low[place] != high[place])
    head, rest = low[:same], len(low) - same - 1
    first, last, low, high = low[same], high[same], low[same + 1 :], high[same + 1 :]
    choices = []
    if low.strip("0"):
        choices.append(f'"{first}" {_side(low, "0", "9")}')
        first = chr(ord(first) + 1)
    whole = chr(ord(last) - 1) if high.strip("9") else last
    if first <= whole:
        choices.append(f"[{first}-{whole}]{_any(rest)}")
    if high.strip("9"):
        choices.append(f'"{last}" {_side(high, "9", "0")}')
    return (f'"{head}" ' if head else "") + _group(choices)


def _side(digits: str, nearest: str, farthest: str) -> str:
    """Return the numbers of as many digits from one on: up to the last (nearest 0, farthest 9), or down to the first."""
    if not digits.strip(nearest):
        return _any(len(digits)).strip() or '""'
    first, rest = digits[0], digits[1:]
    choices = [f'"{first}" {_side(rest, nearest, farthest)}' if rest else f'"{first}"']
    if first != farthest:
        beyond = chr(ord(first) + (1 if nearest < farthest else -1))
        low, high = sorted((beyond, farthest))
        choices.append(f"[{low}-{high}]{_any(len(rest))}")
    return _group(choices)


def _any(count: int) -> str:
    return f" [0-9]{{{count}}}" if count else ""


def _group(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"
