"""Files of environment variables, `NAME=value` in each line."""

import re

from unilect.web.connect.formats import dump_dotenv
from unilect.web.connect.settings import Setting

_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=([^\n]*)$", re.M)


def parse(text: str) -> dict[str, str]:
    """Return the values by name, without their quotes."""
    return {name: _unquote(value.strip(" \t")) for name, value in _LINE.findall(text)}


def edit(text: str, setting: Setting) -> str:
    """Change or add one variable of a file."""
    name = str(setting.path[0])
    line = dump_dotenv({name: setting.value})
    for old in _LINE.finditer(text):
        if old.group(1) == name:
            return text[: old.start()] + line.rstrip("\n") + text[old.end() :]
    return text + ("" if not text or text.endswith("\n") else "\n") + line


def _unquote(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value
