"""TOML files of clients: keys at the top and tables, in a text of which the rest stays as it is."""

import re
import tomllib
from typing import Any

from unilect.web.connect.formats import toml_table, toml_value
from unilect.web.connect.settings import Setting

_MOST_DOTS = 1000  # `tomllib` takes their square for those of a key
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)


def parse(text: str) -> Any:
    """
    Return the data of a file.

    Raises:
        ValueError: It is no TOML.
    """
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_MOST_DOTS} dots")
    return tomllib.loads(text)


def edit(text: str, setting: Setting) -> str:
    """Change or add one value of a file; one of an unusual form may come out wrong, which `parse` shows."""
    names = [str(step) for step in setting.path]
    if isinstance(setting.value, dict):
        return _with_table(text, tuple(names), setting.value)
    line = f"{names[-1]} = {toml_value(setting.value)}"
    first = _next_table(text, 0)
    head, tail = text[:first], text[first:]
    old = re.compile(rf'^{re.escape(names[-1])}[ \t]*=[ \t]*("[^"\n]*"|[\w.+-]+)', re.MULTILINE)
    if old.search(head):
        return old.sub(lambda match: line, head, count=1) + tail
    if head.strip():
        return head.rstrip("\n") + f"\n{line}\n" + ("\n" if tail else "") + tail
    return f"{line}\n" + ("\n" if tail else "") + tail


def _with_table(text: str, names: tuple[str, ...], value: dict[str, Any]) -> str:
    new = toml_table(names, value)
    header = re.compile(rf"^[ \t]*\[{re.escape('.'.join(names))}\][^\n]*\n?", re.MULTILINE)
    old = header.search(text)
    if old is None:
        return (text.rstrip("\n") + f"\n\n{new}\n").lstrip("\n")
    rest = text[_next_table(text, old.end()) :]
    within = re.compile(rf"^[ \t]*\[{re.escape('.'.join(names))}\.([\w-]+)[.\]]", re.MULTILINE)
    apart = set(within.findall(text))
    new = toml_table(names, {key: one for key, one in value.items() if key not in apart})
    return text[: old.start()] + new + "\n" + (f"\n{rest}" if rest else "")


def _next_table(text: str, at: int) -> int:
    """Return the place where the next table begins, with the comments right before it; the text's end where there is none."""
    header = _HEADER.search(text, at)
    if header is None:
        return len(text)
    start = header.start()
    while start > at:
        line = text.rfind("\n", 0, start - 1) + 1
        if line < at or not text[line:start].lstrip().startswith("#"):
            break
        start = line
    return start
