"""
The file of a configuration: TOML, and keys that it names and the environment holds.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from unilect.errors import ConfigError


def read_file(path: Path) -> dict[str, Any]:
    """
    The values of a TOML file.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    try:
        values = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from error
    return dict(values)


def with_secrets(values: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """`$NAME` in a key's place is taken from the environment, so that files need hold no secret."""

    def secret(text: Any, where: str) -> Any:
        if not isinstance(text, str) or not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", text):
            return text
        if text[1:] not in env:
            raise ConfigError(f"{where}: the environment has no variable {text[1:]}.")
        return env[text[1:]]

    values = dict(values)
    if isinstance(values.get("api_keys"), list):
        values["api_keys"] = [secret(key, "api_keys") for key in values["api_keys"]]
    if "fastchat_token" in values:
        values["fastchat_token"] = secret(values["fastchat_token"], "fastchat_token")
    if isinstance(values.get("models"), dict):
        values["models"] = {
            name: model | {"api_key": secret(model["api_key"], f"models.{name}.api_key")}
            if isinstance(model, dict) and "api_key" in model
            else model
            for name, model in values["models"].items()
        }
    return values
