"""Lengths of time as people write them, such as `30d`, and times in the past."""

import re
from datetime import UTC, datetime

from unilect.core.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_S = 36_500 * 86_400


def seconds(text: str, where: str) -> float:
    """
    Parse a length of time such as `30d`, in seconds.

    Raises:
        ConfigError: It is none.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", text.strip().lower(), re.ASCII)
    length = float(found[1]) * _SECONDS[found[2]] if found else _LONGEST_S + 1
    if length > _LONGEST_S:
        raise ConfigError(
            f"{where}: {text[:50]!r} is not a length of time up to 100 years; expected a number with s, m, h, d or w, such as 30d."
        )
    return length


def since(text: str, where: str, now: float) -> float:
    """
    Parse a time in the past, as a length of time before now, or as a day (UTC) such as `2026-11-01`, in seconds since 1970.

    Raises:
        ConfigError: It is none, or a day to come.
    """
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip(), re.ASCII):
        try:
            day = datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
        else:
            if day > now:
                raise ConfigError(f"{where}: {text.strip()} has not begun yet (UTC); give a day before.")  # fmt: skip
            return day
    try:
        return now - seconds(text, where)
    except ConfigError:
        raise ConfigError(
            f"{where}: {text[:50]!r} is neither a length of time up to 100 years, such as 7d or 12h, nor a day such as 2026-11-01."
        ) from None
