"""Mistakes in what an operator has written, collected so that all are told at once."""

import json
import re
from collections.abc import Iterable
from typing import Self, TypeAlias

from unilect.core.errors import ConfigError, ConfigErrors

OptionPath: TypeAlias = tuple[str | int, ...]
MOST = 100  # that are looked for: finding out what was meant takes time for each

_LONGEST = 60  # characters of a name


def join_path(path: OptionPath) -> str:
    """Return a path as TOML writes it: `models.a.context`, and `listeners[1].port` for the second of a list."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step + 1}]"
        else:
            is_bare = re.fullmatch(r"[\w-]+", step, re.ASCII)
            name = step if is_bare else json.dumps(step[:_LONGEST], ensure_ascii=False)
            text += f".{name}" if text else name
    return text


class OptionError(ConfigError):
    """
    A mistake in an option.

    Args:
        path: The option's.
        why: What is wrong, and what to do.
    """

    def __init__(self, path: OptionPath, why: str) -> None:
        super().__init__(f"{join_path(path)}: {why}", path)


class ErrorCollector:
    """
    Collects the mistakes of several steps, so that all are told at once: each step runs in a `with` block of its own.

    Attributes:
        errors: What was found.
    """

    def __init__(self, errors: Iterable[ConfigError] = ()) -> None:
        self.errors = list(errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self.errors += error.each
        return True

    @property
    def full(self) -> bool:
        """There are as many as are looked for."""
        return len(self.errors) >= MOST

    def add(self, message: str, path: OptionPath = ()) -> None:
        """Take note of one."""
        self.errors.append(ConfigError(message, path))

    def at(self, path: OptionPath, why: str) -> None:
        """Take note of what is wrong with an option, and what to do."""
        self.errors.append(OptionError(path, why))

    def raise_all(self) -> None:
        """
        Tell what was found.

        Raises:
            ConfigError: There was something.
        """
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else ConfigErrors(self.errors)
