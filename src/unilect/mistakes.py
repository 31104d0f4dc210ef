"""Mistakes in what an operator has written, collected so that all are told at once."""

from collections.abc import Iterable
from typing import Self

from unilect.errors import ConfigError, ConfigErrors

MOST = 100  # that are looked for: finding out what was meant takes time for each


class Mistakes:
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

    def add(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        """Take note of one."""
        self.errors.append(ConfigError(message, path))

    def raise_all(self) -> None:
        """
        Tell what was found.

        Raises:
            ConfigError: There was something.
        """
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else ConfigErrors(self.errors)
