"""
Paths among the options: those of a file are relative to its folder, and `~` is the home of whoever starts the server.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from unilect.config.kinds import PROGRAMS
from unilect.config.mistakes import OptionPath
from unilect.config.option import Move, Option, Table, map_texts
from unilect.config.values import describe_value
from unilect.core.errors import ConfigError
from unilect.core.requests import MAX_LORA_SCALE

_LOCAL = re.compile(rf"^(gguf|hf|chatglm|{'|'.join(PROGRAMS)}):(.+)$", re.DOTALL)
_SCHEME = re.compile(r"^[a-z0-9+.-]{2,}:", re.DOTALL)
#: A repository of the hub, or a file in one: what is not here under this name may be there. `folder/x.gguf` is no repository.
_ON_THE_HUB = re.compile(
    r"^(?![^/]*/[^/]*\.gguf$)\w[\w.-]*/\w[\w.-]*(/.+\.gguf)?(:[\w.-]+)?$", re.ASCII | re.I
)
_FILE_URL = re.compile(r"^file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_WEB = re.compile(r"^https?://", re.IGNORECASE)
_FILE_NAME = re.compile(r"\.[A-Za-z]\w*$")


def resolve_paths(
    values: Mapping[str, Any], table: type[Table], folder: Path | None
) -> dict[str, Any]:
    """
    Return the values of a table with its paths made absolute.

    Args:
        folder: What relative paths are relative to; None leaves them as they are, and `~` alone is replaced.
    """
    return _with_paths(values, table, lambda path: _at(path, folder))


def move_paths(values: Mapping[str, Any], table: type[Table], move: Move) -> dict[str, Any]:
    """
    Return the values of a table with the paths of all that is read changed; what is written to stays.

    Args:
        move: Given a path, or what may be a name of the hub, returns what to write instead.
    """
    return _with_paths(values, table, move, but=output)


def _with_paths(
    values: Mapping[str, Any], table: type[Table], move: Move, but: object = None
) -> dict[str, Any]:
    def change(option: Option, text: str, path: OptionPath) -> str:
        form = option.path
        return text if form is None or form is but or not text else form(text, move)

    return map_texts(values, table, change)


def plain(text: str, move: Move) -> str:
    """Change a path that is the whole text."""
    return move(text)


def output(text: str, move: Move) -> str:
    """Change the path of a folder that is written to."""
    return move(text)


def template(text: str, move: Move) -> str:
    """Change a path among templates; the names of formats have neither a slash nor a file's ending."""
    return move(text) if not is_jinja(text) and ("/" in text or _FILE_NAME.search(text)) else text


def is_jinja(text: str) -> bool:
    """Return True for a template in Jinja, which has marks of it; `${NAME}` in a path is none."""
    return "\n" in text or any(mark in text for mark in ("{{", "{%", "{#"))


def draft(text: str, move: Move) -> str:
    """Change the path of a draft model; `ngram` is none."""
    return text if text == "ngram" else move(text)


def adapter(text: str, move: Move) -> str:
    """Change the path of an adapter, and keep its scale."""
    path, _ = adapter_of(text)
    return move(path) + text.removeprefix(path)


def source(text: str, move: Move) -> str:
    """Change a source that is a path: with the scheme of an engine, or with none where it is a .gguf file or a folder."""
    text = without_file_scheme(text)
    local = _LOCAL.match(text)
    scheme, location = (f"{local[1]}:", local[2]) if local else ("", text)
    if not local and (_SCHEME.match(text) or text == "demo"):
        return text
    if _WEB.match(location):
        return text
    path = move(location)
    if scheme != "chatglm:" and _ON_THE_HUB.match(location) and not Path(path).exists():
        return text
    named = location.startswith((".", "/", "~")) or location.lower().endswith(".gguf")
    return scheme + path if local or named or Path(path).exists() else text


def without_file_scheme(source: str) -> str:
    """
    Return the path of a `file:` URL; any other source as it is.

    >>> without_file_scheme("file:///models/a%20b.gguf")
    '/models/a b.gguf'
    """
    scheme = _FILE_URL.match(source)
    return source if scheme is None else unquote(source[scheme.end() :])


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """
    Return our folder for what can be fetched again, which may not exist yet; None where its user has no such folder.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    cache, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    folder = Path(cache) if cache else Path(home) / ".cache"
    return folder / "unilect" if folder.is_absolute() else None


def expand(path: str) -> Path:
    """
    Return a path with the home of a user in place of `~` or `~user`.

    Raises:
        ConfigError: There is no user of that name.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no user of that name. Check the path.") from error


def _at(path: str, folder: Path | None) -> str:
    if path.startswith("~"):
        try:
            return str(Path(path).expanduser())
        except RuntimeError:  # nobody of that name: the path is told as it is
            return path
    return path if folder is None else str(folder / path)


def adapter_of(text: str) -> tuple[str, float]:
    """Parse the path and the scale of an adapter: `path` or `path=0.5`."""
    path, _, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


def check_adapters(texts: Iterable[str]) -> None:
    """
    Check that the scales of adapters are those that a request may ask for.

    Raises:
        ConfigError: One is not.
    """
    for text in texts:
        path, scale = adapter_of(text)
        if not abs(scale) <= MAX_LORA_SCALE:  # nan is not, either
            given = text.removeprefix(f"{path}=")
            raise ConfigError(
                f"lora: expected a scale from -{MAX_LORA_SCALE} to {MAX_LORA_SCALE} behind the path, such as `path=0.5`, found {describe_value(given)}."
            )
