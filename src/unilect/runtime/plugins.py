"""
Backends and dialects, unilect's own and those of packages installed beside it: entry points, all found in the same way.

An entry point that is broken is told in one line, with its package and the error, and left out. So is a name that two packages bring:
which of them answered would depend on the order in which they were installed.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from unilect.core.errors import ConfigError

log = logging.getLogger("unilect")
BACKENDS, DIALECTS = "unilect.backends", "unilect.dialects"
_MAX_ERROR = 300


@cache
def ours(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group that unilect itself brings, by name."""
    return {entry.name: entry for entry in _all().select(group=group) if _is_ours(entry)}


@cache
def find_others(group: str) -> tuple[dict[str, EntryPoint], dict[str, str]]:
    """
    Return the entry points of a group that other packages bring, found once. A name that unilect has stays its own.

    Returns:
        By name those that can be used; and of the others why they cannot.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in _all().select(group=group):
        if not _is_ours(entry):
            by_name.setdefault(entry.name, []).append(entry)
    alone, refused = dict[str, EntryPoint](), dict[str, str]()
    for name, entries in by_name.items():
        packages = " and in ".join(sorted(map(package, entries)))
        if name in ours(group):
            refused[name] = (
                f"the {_kind(group)} `{name}` is in unilect and in {packages}, and unilect's is used."
            )
        elif len(entries) > 1:
            refused[name] = (
                f"the {_kind(group)} `{name}` is in {packages}, and neither is used: uninstall one of them."
            )
        else:
            alone[name] = entries[0]
    return alone, refused


def find(group: str, name: str) -> EntryPoint:
    """
    Return the entry point of a name that is known.

    Raises:
        ConfigError: It is not there: what is installed tells of an older unilect than this one.
    """
    entry = ours(group).get(name) or find_others(group)[0].get(name)
    if entry is None:
        raise ConfigError(
            f"the {_kind(group)} `{name}` is not among the entry points of the installed package `unilect`, which are older than its code. "
            "Install `unilect` again."
        )
    return entry


def use_all(group: str, step: Callable[[Any], object]) -> tuple[list[str], list[str]]:
    """
    Use everything of a group that can be used.

    Returns:
        What was used, and why the rest was not, in words.
    """
    entries, refused = find_others(group)
    used, left_out = list[str](), list(refused.values())
    for entry in entries.values():
        try:
            use(entry, step)
            used.append(describe(entry))
        except ConfigError as error:
            left_out.append(str(error))
    return used, left_out


def use(entry: EntryPoint, step: Callable[[Any], Any]) -> Any:
    """
    Load an entry point, and return the result of `step`.

    Raises:
        ConfigError: It is broken, or its input is wrong. An exception of unilect's own entry points is raised as it is.
    """
    try:
        return step(entry.load())
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if entry in ours(entry.group).values():
            raise
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"{describe(entry)} cannot be used: {type(error).__name__}: {lines[0][:_MAX_ERROR]}"
        ) from error


@cache
def warn(told: str) -> None:
    """Tell the log once why something is left out."""
    log.warning("%s", told)


def describe(entry: EntryPoint) -> str:
    """Return an entry point with its package: ``the backend `x` of unilect-x 1.0``."""
    return f"the {_kind(entry.group)} `{entry.name}` of {package(entry)}"


def package(entry: EntryPoint) -> str:
    """Return the name and version of the package that an entry point comes with."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package"


@cache
def _all() -> Any:
    """Those of all groups: reading what is installed takes 20 ms."""
    return entry_points()


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "unilect"


def _kind(group: str) -> str:
    return group.removeprefix("unilect.").removesuffix("s")
