"""Sizes as people write them, such as `24GiB`."""

import re

_MOST_BYTES = 2**63
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([KMGT]i?B)?", re.ASCII)
_UNITS = {unit: 1000**at for at, unit in enumerate(("KB", "MB", "GB", "TB"), 1)}
_UNITS |= {unit: 1024**at for at, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}


def parse_size(given: object) -> int | None:
    """Parse a size in bytes; None where it is none."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        size = given
    elif matched := _SIZE.fullmatch(str(given)):
        size = float(matched[1]) * _UNITS.get(matched[2] or "", 1)
    else:
        return None
    return int(size) if 0 <= size < _MOST_BYTES else None


def wrong_size(text: str) -> str:
    """Return the mistake in a size, as `Option.check` does; empty for none."""
    if size := parse_size(text):
        bare = text.strip().isdecimal() and size < 1024**2
        return (
            f"{text[:50]!r} is {size} bytes. Write the unit, such as {text.strip()[:50]}GiB."
            if bare
            else ""
        )
    return (
        f"{text[:50]!r} is no size. Write a number with KiB, MiB, GiB, KB, MB or GB, such as 2GiB."
    )
