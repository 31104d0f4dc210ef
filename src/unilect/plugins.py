"""
What packages installed beside unilect bring: backends and dialects, as entry points.

An entry point that is broken is told in one line, with its package and the error, and left out. So is a name that two packages bring:
which of them answered would depend on the order in which they were installed.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from unilect.errors import ConfigError

log = logging.getLogger("unilect")
BACKENDS, DIALECTS = "unilect.backends", "unilect.dialects"
_MAX_ERROR = 300


@cache
def found(group: str) -> tuple[dict[str, EntryPoint], dict[str, str]]:
    """
    The entry points of a group, found once.

    Returns:
        By name those that can be used; and of the others why they cannot.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        by_name.setdefault(entry.name, []).append(entry)
    alone = {name: entries[0] for name, entries in by_name.items() if len(entries) == 1}
    several = {
        name: f"the {_kind(group)} `{name}` is in {' and in '.join(sorted(map(package, entries)))}, and neither is used: "
        "uninstall one of them."
        for name, entries in by_name.items()
        if len(entries) > 1
    }
    return alone, several


def use_all(group: str, step: Callable[[Any], object]) -> tuple[list[str], list[str]]:
    """
    Use everything of a group that can be used.

    Returns:
        What was used, and why the rest was not, in words.
    """
    entries, refused = found(group)
    used, left_out = list[str](), list(refused.values())
    for entry in entries.values():
        try:
            use(entry, step)
            used.append(told(entry))
        except ConfigError as error:
            left_out.append(str(error))
    return used, left_out


def use(entry: EntryPoint, step: Callable[[Any], Any]) -> Any:
    """
    What becomes of that which an entry point names.

    Raises:
        ConfigError: It is broken, or what it was given is wrong. A flaw of unilect's own is raised as it is.
    """
    try:
        return step(entry.load())
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if entry.dist is None:
            raise
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"{told(entry)} cannot be used: {type(error).__name__}: {lines[0][:_MAX_ERROR]}"
        ) from error


@cache
def warn(told: str) -> None:
    """Tell the log once why something is left out."""
    log.warning("%s", told)


def told(entry: EntryPoint) -> str:
    """An entry point with its package: ``the backend `x` of unilect-x 1.0``."""
    return f"the {_kind(entry.group)} `{entry.name}` of {package(entry)}"


def package(entry: EntryPoint) -> str:
    """The name and version of the package that an entry point comes with."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unilect"


def _kind(group: str) -> str:
    return group.removeprefix("unilect.").removesuffix("s")
