"""YAML files of clients: keys at the top and lists of objects, in a text of which the rest stays as it is."""

import re
from typing import Any

import msgspec
import yaml

from unilect.cli.connect._settings import Named, Setting, key_of

#: Aliases of aliases stand for more than any memory holds.
_MOST_VALUES = 1_000_000
_MOST_MERGES, _MOST_ALIASES = 8, 64
MAX_DEPTH = 100
#: The value on a line behind a key, without the comment at its end.
_VALUE = r"(?:[ \t]*(?:\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\n]|'')*+')(?=[ \t]*(?:#|$))|(?:(?![ \t]#)[^\n])*+)"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> Any:
    """
    The data of a file; None for an empty one.

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


def dump(data: Any) -> str:
    """Data as a file."""
    return msgspec.yaml.encode(data).decode()


def edit(text: str, setting: Setting) -> str:
    """The text of a file with one value changed or added; one of an unusual form may come out wrong, which `parse` shows."""
    key, *rest = setting.path
    if rest:
        assert isinstance(rest[0], Named)
        return _with_entry(text, str(key), rest[0], setting.value)
    line = dump({key: setting.value}).rstrip("\n")
    old = re.compile(rf"^{re.escape(str(key))}[ \t]*:{_VALUE}", re.MULTILINE)
    if old.search(text):
        return old.sub(lambda match: line, text, count=1)
    return _end_line(text) + line + "\n"


def _with_entry(text: str, key: str, named: Named, value: Any) -> str:
    """The text with an entry of a list at the top, in the place of the one that has its name."""
    head = re.compile(rf"^{re.escape(key)}[ \t]*:[ \t]*(#[^\n]*)?\n", re.MULTILINE).search(text)
    if head is None:
        empty = re.compile(rf"^{re.escape(key)}[ \t]*:[ \t]*\[[ \t]*\][ \t]*\n?", re.MULTILINE)
        return _end_line(empty.sub("", text)) + f"{key}:\n" + _entry(value, "")
    lines = text[head.end() :].splitlines(keepends=True)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    indent = first[: len(first) - len(first.lstrip())] if first.lstrip().startswith("-") else ""
    new = _entry(value, indent)
    start, end = _place(lines, indent, named)
    return text[: head.end()] + "".join([*lines[:start], new, *lines[end:]])


def _place(lines: list[str], indent: str, named: Named) -> tuple[int, int]:
    """The lines of the entry with a name; else the place behind the last entry."""
    starts = [number for number, line in enumerate(lines) if line.startswith(f"{indent}-")]
    end = len(lines)
    for number, line in enumerate(lines):
        inner = line.strip() and not line.lstrip().startswith("#")
        if inner and not line.startswith((f"{indent}-", f"{indent} ")):
            end = number
            break
    starts = [number for number in starts if number < end]
    for start, stop in zip(starts, [*starts[1:], end], strict=False):
        if _has_name("".join(lines[start:stop]), named):
            return start, stop - _blank_at_end(lines[start:stop])
    return end - _blank_at_end(lines[:end]), end - _blank_at_end(lines[:end])


def _has_name(entry: str, named: Named) -> bool:
    """Return True if the text of one entry has a name; False where it cannot be read alone."""
    try:
        data = parse(entry)
    except ValueError:
        return False
    return isinstance(data, list) and key_of(data, named) == 0


def _blank_at_end(lines: list[str]) -> int:
    """Count the last lines that are blank or comments."""
    count = 0
    for line in reversed(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        count += 1
    return count


def _entry(value: Any, indent: str) -> str:
    lines = dump([value]).splitlines()
    return "".join(f"{indent}{line}\n" for line in lines)


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


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
