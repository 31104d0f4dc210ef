"""YAML files of clients: keys at the top and lists of objects, in a text of which the rest stays as it is."""

from typing import Any

import yaml

from unilect.cli._yaml import parse
from unilect.web.connect.formats import dump_yaml
from unilect.web.connect.settings import Setting, key_of

_BOM = "\ufeff"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def edit(text: str, setting: Setting) -> str:
    """Change or add one value of a file; one of an unusual form may come out wrong, which `parse` shows."""
    if text.startswith(_BOM):  # PyYAML does not count it
        return _BOM + edit(text.removeprefix(_BOM), setting)
    key, *rest = setting.path
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:  # spoilt by the change of another key
        return text
    pairs = () if root is None else root.value
    start, old = next(
        ((name.start_mark.index, value) for name, value in pairs if name.value == key), (0, None)
    )
    if not rest:
        line = dump_yaml({key: setting.value})
        if old is None:
            return _end_line(text) + line
        return text[:start] + line.rstrip("\n") + text[old.end_mark.index :]
    if old is None or not old.value:
        if old is not None:
            text = text[:start] + text[old.end_mark.index :].lstrip(" \t").removeprefix("\n")
        return _end_line(text) + f"{key}:\n" + _entry(setting.value, "")
    if text[old.start_mark.index] != "-":  # on one line, or with an anchor
        return text
    dashes = (text.rfind("-", 0, one.start_mark.index) for one in old.value)
    starts = [_line(text, dash) for dash in dashes]
    starts.append(_line(text, old.end_mark.index))
    index = key_of(parse(text)[key], rest[0])
    stop = _without_comments(text, starts[-1] if index is None else starts[index + 1])
    new = _entry(setting.value, " " * old.start_mark.column)
    return _end_line(text[: stop if index is None else starts[index]]) + new + text[stop:]


def _line(text: str, at: int) -> int:
    """Return the place where a place's line begins; the end of the text begins one."""
    return at if at >= len(text) else text.rfind("\n", 0, at) + 1


def _without_comments(text: str, stop: int) -> int:
    """Return the end of a text without the lines before it that are blank or comments."""
    while stop > 0:
        start = text.rfind("\n", 0, stop - 1) + 1
        line = text[start:stop].strip()
        if line and not line.startswith("#"):
            break
        stop = start
    return stop


def _entry(value: Any, indent: str) -> str:
    lines = dump_yaml([value]).splitlines()
    return "".join(f"{indent}{line}\n" for line in lines)


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
