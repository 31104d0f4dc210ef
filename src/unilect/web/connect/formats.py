"""The formats of clients' files, as texts of new files."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Form: TypeAlias = Literal["json", "toml", "yaml", "dotenv"]
_PLAIN = re.compile(r"[\w.+/=:-]+")


def dump_json(data: Any) -> str:
    """Write data as a file of JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def dump_yaml(data: Any) -> str:
    """Write data as a file of YAML."""
    return msgspec.yaml.encode(data).decode()


def dump_dotenv(data: dict[str, str]) -> str:
    """Write variables as a file of `NAME=value`."""
    return "".join(f"{name}={_quote(value)}\n" for name, value in data.items())


def _quote(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


def dump_toml(data: dict[str, Any]) -> str:
    """Write data as a file of TOML: values, and tables in them up to two levels deep."""
    lines = [
        f"{key} = {toml_value(value)}" for key, value in data.items() if not isinstance(value, dict)
    ]
    for name, tables in data.items():
        if isinstance(tables, dict):
            for key, table in tables.items():
                lines += ["", toml_table((name, key), table)]
    return "\n".join(lines).strip("\n") + "\n"


def toml_table(names: tuple[str, ...], value: dict[str, Any]) -> str:
    """Write a table under its header, without a line's end."""
    lines = [f"{key} = {toml_value(one)}" for key, one in value.items()]
    return "\n".join([f"[{'.'.join(names)}]", *lines])


def toml_value(value: Any) -> str:
    """Write a text or a number, whose TOML is JSON's but for U+007F; or a table of such."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_value(key)} = {toml_value(one)}' for key, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


#: By format, what writes its files.
DUMPS: Mapping[Form, Callable[[Any], str]] = {
    "json": dump_json,
    "toml": dump_toml,
    "yaml": dump_yaml,
    "dotenv": dump_dotenv,
}
