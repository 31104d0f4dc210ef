"""
Paths among the options: those of a file are relative to its folder, and `~` is the home of whoever starts the server.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import structs

from unilect.config.store import SQLITE, sqlite_path
from unilect.config.values import shown
from unilect.errors import ConfigError
from unilect.requests import MAX_LORA_SCALE

_SERVER = ("tls_cert", "tls_key")
_TEMPLATES = ("chat_template", "completion_template")
_LOCAL = re.compile(r"^(gguf|hf|chatglm):(.+)$", re.DOTALL)
_SCHEME = re.compile(r"^[a-z0-9+.-]{2,}:", re.DOTALL)
#: A repository of the hub, or a file in one: what is not here under this name may be there. `folder/x.gguf` is no repository.
_ON_THE_HUB = re.compile(
    r"^(?![^/]*/[^/]*\.gguf$)\w[\w.-]*/\w[\w.-]*(/.+\.gguf)?(:[\w.-]+)?$", re.ASCII | re.I
)
_FILE_URL = re.compile(r"^file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_FILE_NAME = re.compile(r"\.[A-Za-z]\w*$")


def placed_server(values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The options of the server with their paths made absolute, see `placed`."""
    paths = {name: _at(values[name], folder) for name in _SERVER if values.get(name)}
    placed = {**values, **paths}
    if (store := values.get("store")) is not None and (path := sqlite_path(store.url or "")):
        placed["store"] = structs.replace(store, url=f"{SQLITE}/{_at(path, folder)}")
    if (fleet := values.get("fleet")) is not None and fleet.token_file:
        placed["fleet"] = structs.replace(fleet, token_file=_at(fleet.token_file, folder))
    if (admin := values.get("admin")) is not None and "/" in (admin.listen or ""):
        path = _at(admin.listen, folder)
        path = path if "/" in path else f"./{path}"  # by which it is told from an address
        placed["admin"] = structs.replace(admin, listen=path)
    return placed


def placed(values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """
    The options of a model with their paths made absolute.

    Args:
        values: The options, of the right types.
        folder: What relative paths are relative to; None leaves them as they are, and `~` alone is replaced.
    """
    changed = dict(values)
    source = values.get("source")
    if isinstance(source, str):
        changed["source"] = _source(source, folder)
    elif source:
        changed["source"] = [_source(one, folder) for one in source]
    for name in ("mmproj", "tokenizer", "slot_save_path"):
        if values.get(name):
            changed[name] = _at(values[name], folder)
    for name in _TEMPLATES:
        if values.get(name):
            changed[name] = _template(values[name], folder)
    if values.get("lora"):
        changed["lora"] = [_adapter(one, folder) for one in values["lora"]]
    return changed


def without_file_scheme(source: str) -> str:
    """
    Return the path of a `file:` URL; any other source as it is.

    >>> without_file_scheme("file:///models/a%20b.gguf")
    '/models/a b.gguf'
    """
    scheme = _FILE_URL.match(source)
    return source if scheme is None else unquote(source[scheme.end() :])


def moved(values: Mapping[str, Any], move: Callable[[str], str]) -> dict[str, Any]:
    """
    The options of a model with the paths of all that its engine reads changed; `slot_save_path` is written to, and stays.

    Args:
        values: The options, of the right types.
        move: Given a path, or what may be a name of the hub, returns what to write instead.
    """
    changed = dict(values)
    source = values["source"]
    changed["source"] = (
        _moved_source(source, move)
        if isinstance(source, str)
        else [_moved_source(one, move) for one in source]
    )
    for name in ("mmproj", "tokenizer"):
        if values.get(name):
            changed[name] = move(values[name])
    for name in _TEMPLATES:
        if values.get(name) and _is_path(values[name]):
            changed[name] = move(values[name])
    if values.get("lora"):
        paths = [adapter_of(text)[0] for text in values["lora"]]
        changed["lora"] = [
            move(path) + text.removeprefix(path)
            for path, text in zip(paths, values["lora"], strict=True)
        ]
    return changed


def _moved_source(source: str, move: Callable[[str], str]) -> str:
    if (local := _LOCAL.match(source)) is not None:
        return f"{local[1]}:{move(local[2])}"
    return source if _SCHEME.match(source) or source in ("", "demo") else move(source)


def _at(path: str, folder: Path | None) -> str:
    if path.startswith("~"):
        try:
            return str(Path(path).expanduser())
        except RuntimeError:  # nobody of that name: the path is told as it is
            return path
    return path if folder is None else str(folder / path)


def _source(source: str, folder: Path | None) -> str:
    """A source is a path where its scheme is an engine's, or where it has none and is a .gguf file or a folder."""
    source = without_file_scheme(source)
    local = _LOCAL.match(source)
    scheme, location = (f"{local[1]}:", local[2]) if local else ("", source)
    if not local and (_SCHEME.match(source) or source in ("", "demo")):
        return source
    path = _at(location, folder)
    if scheme != "chatglm:" and _ON_THE_HUB.match(location) and not Path(path).exists():
        return source
    named = location.startswith((".", "/", "~")) or location.lower().endswith(".gguf")
    return scheme + path if local or named or Path(path).exists() else source


def adapter_of(text: str) -> tuple[str, float]:
    """The path and the scale of an adapter: `path` or `path=0.5`."""
    path, _, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


def check_adapters(texts: Iterable[str]) -> None:
    """
    The scales of adapters are those that a request may ask for.

    Raises:
        ConfigError: One is not.
    """
    for text in texts:
        path, scale = adapter_of(text)
        if not abs(scale) <= MAX_LORA_SCALE:  # nan is not, either
            given = text.removeprefix(f"{path}=")
            raise ConfigError(
                f"lora: expected a scale from -{MAX_LORA_SCALE} to {MAX_LORA_SCALE} behind the path, such as `path=0.5`, found {shown(given)}."
            )


def _adapter(text: str, folder: Path | None) -> str:
    path, _ = adapter_of(text)
    return _at(path, folder) + text.removeprefix(path)


def _template(text: str, folder: Path | None) -> str:
    return _at(text, folder) if _is_path(text) else text


def _is_path(template: str) -> bool:
    """A path among templates has a slash or a file's ending; Jinja has braces, and the names of formats have neither."""
    if "{" in template or "\n" in template:
        return False
    return "/" in template or _FILE_NAME.search(template) is not None
