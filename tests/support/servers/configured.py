"""The configuration that a command has, for tests."""

from typing import Any

from unilect.cli._given import Given, read
from unilect.config.server import Config


def merged(*given: Any) -> Config:
    """
    The configuration of the file, the environment and the command line together.

    Raises:
        ConfigError: Something is wrong with one of them.
    """
    config, mistakes = read(Given(*given))
    mistakes.raise_all()
    return config
