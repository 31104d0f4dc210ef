"""`unilect config import`: another program's configuration as one of unilect."""

import os
import re
from collections.abc import Callable
from datetime import date, time
from pathlib import Path
from typing import Any

from unilect.cli import _yaml as yaml
from unilect.cli._screen import tell
from unilect.cli.imports import _litellm as litellm
from unilect.cli.imports import _llama_cpp as llama_cpp
from unilect.cli.imports import _llama_swap as llama_swap
from unilect.cli.imports import _modelfile as modelfile
from unilect.cli.imports._draft import Draft
from unilect.config.model import name_from
from unilect.config.plain_file import read_plain
from unilect.core.errors import ConfigError
from unilect.core.file_errors import unreadable

MAX_BYTES = 1024 * 1024
_SERVICES = re.compile(r"^services:", re.MULTILINE)
_MAX_PATH = 200  # characters of a value's path
#: kind -> what its files are
KINDS = {
    "llama-swap": "llama-swap's YAML",
    "llama-server": "command lines of llama-server, or its presets",
    "litellm": "LiteLLM's YAML",
    "ollama": "an Ollama Modelfile",
}


def import_config(file: Path, kind: str | None, output: Path | None) -> None:
    """
    Print a configuration made of another program's, or write it to a new file.

    Args:
        kind: A key of `KINDS`; None to tell it from the file.

    Raises:
        ConfigError: The file cannot be read, or is of no such kind; or the output is there already.
    """
    try:
        text = read_plain(file, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(unreadable(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is no UTF-8 text.") from error
    try:
        kind = kind or _tell_kind(text)
        draft = convert(text, kind, file)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    written = draft.to_toml(f"Made by `unilect config import` from {file.name}: {KINDS[kind]}.")
    if output is None:
        tell(written.rstrip("\n"))
        return
    _write(output, written)
    tell(f"{output} is written. `unilect config check {output}` says if it can be served.")


def convert(text: str, kind: str, file: Path) -> Draft:
    """
    Return the draft of a configuration.

    Raises:
        ConfigError: The text is of no such kind.
    """
    draft = Draft(file.parent)
    readers: dict[str, Callable[[], None]] = {
        "llama-swap": lambda: llama_swap.read(_mapping(text, draft), draft),
        "litellm": lambda: litellm.read(_mapping(text, draft), draft),
        "llama-server": lambda: _read_llama_server(text, draft),
        "ollama": lambda: modelfile.read(text, draft, _name_of(file)),
    }
    readers[kind]()
    draft.finish()
    return draft


def _tell_kind(text: str) -> str:
    """
    Return the kind of a file.

    Raises:
        ConfigError: It is none.
    """
    if modelfile.is_modelfile(text):
        return "ollama"
    try:
        data = yaml.parse(text)
    except ValueError:
        data = None
    if isinstance(data, dict):
        if "model_list" in data:
            return "litellm"
        if isinstance(data.get("models"), dict) or "peers" in data:
            return "llama-swap"
    if "llama-server" in text or "llama.cpp:" in text or llama_cpp.is_presets(text):
        return "llama-server"
    raise ConfigError(f"is of no known kind. Say which with --from: {', '.join(KINDS)}.")


def _read_llama_server(text: str, draft: Draft) -> None:
    if llama_cpp.is_unit(text):
        llama_cpp.read_unit(text, draft)
    elif llama_cpp.is_presets(text):
        llama_cpp.read_presets(text, draft)
    elif _SERVICES.search(text):
        data = _mapping(text, draft)
        llama_cpp.read_services(draft.mapping(data.get("services"), "services"), draft)
    else:
        llama_cpp.read_commands(text, draft)


def _mapping(text: str, draft: Draft) -> dict[str, Any]:
    """
    Return the data of a YAML file as TOML can have it.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    try:
        data = _as_toml(yaml.parse(text), "", draft)
    except ValueError as error:
        raise ConfigError(f"is no YAML that can be read: {str(error)[:300]}.") from error
    except RecursionError as error:
        raise ConfigError("is no YAML that can be read: one of its anchors contains itself.") from error  # fmt: skip
    if not isinstance(data, dict):
        raise ConfigError("is no mapping of keys to values.")
    return data


def _as_toml(value: Any, where: str, draft: Draft) -> Any:
    """
    Return a value of YAML with texts for keys and dates, and without what TOML has not, which is told.

    Args:
        where: Its path.

    Raises:
        RecursionError: It contains itself.
    """
    match value:
        case dict():
            named = {_as_text(key): one for key, one in value.items()}
            whole = {key: _as_toml(one, f"{where}.{key}"[-_MAX_PATH:].lstrip("."), draft) for key, one in named.items()}  # fmt: skip
            return {key: one for key, one in whole.items() if one is not None}
        case list():
            items = [_as_toml(one, f"{where}[{at}]", draft) for at, one in enumerate(value)]
            return [one for one in items if one is not None]
        case bool() | int() | float():
            return value
        case str() | date() | time():
            return _as_text(value)
    what = "has no value" if value is None else "is of a type that no configuration has"
    draft.remark(f"{where}: {what}; left out.")
    return None


def _as_text(key: Any) -> str:
    """Return a key of YAML, which may be of any type, or a date."""
    text = key.isoformat() if isinstance(key, date | time) else str(key)
    return text.encode("utf-8", "replace").decode()  # for halves of characters


def _name_of(file: Path) -> str:
    """Return the name of a Modelfile's model: what it ends in, or its folder's."""
    stem = file.name.lower().removeprefix("modelfile").strip("._-") or file.absolute().parent.name
    return name_from(stem)


def _write(path: Path, text: str) -> None:
    """
    Write a new file, its owner's: keys may be in it, also in commands and addresses.

    Raises:
        ConfigError: It cannot be written, or is there already.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"--output: {path} is there already. Name a new file.") from error
    except OSError as error:
        raise ConfigError(f"--output: {path} cannot be written ({error.strerror}).") from error
