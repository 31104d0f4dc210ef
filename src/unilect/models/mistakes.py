"""Mistakes in the table of a model, told with its name."""

from collections.abc import Iterator
from contextlib import contextmanager

from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError, ConfigErrors
from unilect.core.file_errors import unreadable


@contextmanager
def error_scope(name: str) -> Iterator[None]:
    """Put the name of a model before its mistakes, and the option that each begins with; without one it is the source."""
    try:
        yield
    except (ConfigError, PermissionError) as failure:
        error = (
            ConfigError(unreadable(failure)) if isinstance(failure, PermissionError) else failure
        )
        told = ErrorCollector()
        for one in error.each:
            text = str(one)
            option = text.partition(":")[0]
            option = option if option in ModelConfig.__struct_fields__ else "source"
            prefix = "" if text.startswith(f"models.{name}") else f"models.{name}: "
            told.add(prefix + text, one.path or ("models", name, option))
        raise ConfigErrors(told.errors) from failure
