"""Reads YAML, within bounds: a small text can stand for more values than any memory holds."""

from typing import Any

import msgspec
import yaml

#: Aliases of aliases stand for more than any memory holds.
_MOST_VALUES = 1_000_000
_MOST_MERGES, _MOST_ALIASES = 8, 64
MAX_DEPTH = 100
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> Any:
    """
    Return the data of a file; None for an empty one.

    Raises:
        ValueError: It is no YAML.
    """
    _check(text)
    try:
        data = msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if _size(data, {}) > _MOST_VALUES:
        raise ValueError("its aliases stand for more values than are read")
    return data


def _check(text: str) -> None:
    """
    Look at a text before PyYAML makes values of it: a deep one ends the process, and merge keys of merge keys grow without end.

    Raises:
        ValueError: It is no YAML, or one of these.
    """
    depth = merges = aliases = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            match event:
                case yaml.CollectionStartEvent():
                    depth += 1
                case yaml.CollectionEndEvent():
                    depth -= 1
                case yaml.AliasEvent():
                    aliases += 1
                case yaml.ScalarEvent(value="<<"):
                    merges += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"expected at most {MAX_DEPTH} levels")
            if merges > _MOST_MERGES or (merges and aliases > _MOST_ALIASES):
                raise ValueError("more merge keys (`<<`) and aliases than are followed")
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _size(data: Any, known: dict[int, int]) -> int:
    """Count the values, those behind an alias each time."""
    if not isinstance(data, dict | list):
        return 1
    if id(data) not in known:
        known[id(data)] = 0  # within itself
        inside = data.values() if isinstance(data, dict) else data
        known[id(data)] = 1 + sum(_size(one, known) for one in inside)
    return known[id(data)]
