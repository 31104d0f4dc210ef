"""Checks of settings that several kinds of engines share."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError

MAX_DEFAULT_CONTEXT = 8192
_Read = TypeVar("_Read")


def read_checked(read: Callable[[Path], _Read], path: Path) -> _Read:
    """
    Read the file of a model with `read`.

    Raises:
        ConfigError: There is no such file, or it is not a valid model file.
    """
    try:
        return read(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def context_of(longest: int, config: ModelConfig) -> int:
    """
    Tokens of each request.

    Raises:
        ConfigError: More than the model was made for, or than its file allows.
    """
    if config.context is None:
        return min(longest, MAX_DEFAULT_CONTEXT)
    if config.context > longest:
        raise ConfigError(
            f"context: {config.context} exceeds the model's maximum context length of {longest} tokens. "
            f"Set at most {longest}, or leave it out."
        )
    return config.context
