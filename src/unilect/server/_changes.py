"""
The differences of two configurations, and which of them a running server cannot take over.

A model whose backends are as before keeps them, whatever else changes about it. What is not declared as live needs a restart.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.config.option import Table
from unilect.config.server import Config


class Changes(Struct, frozen=True, kw_only=True):
    """
    The changes of a reload.

    Attributes:
        added, removed: Names of models.
        restarted: Models with new backends.
        adjusted: Models with other settings and the same backends.
        options: Options of the server.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    adjusted: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [
            f"{what} {', '.join(names)}"
            for what, names in structs.asdict(self).items()
            if names and what != "options"
        ]
        told += [f"changed {', '.join(self.options)}"] if self.options else []
        return "; ".join(told) or "nothing has changed"


def check_fixed(before: Config, after: Config) -> None:
    """
    Check that no option that needs a restart differs between two configurations.

    Raises:
        ConfigError: One differs.
    """
    found = ErrorCollector()
    for name in _find_fixed(before, after):
        if name in ("tls_cert", "tls_key") and None not in (before.tls_cert, after.tls_cert):
            continue
        found.at(
            (name,), "cannot be changed while the server runs. Restart it, or set the option back."
        )
    found.raise_all()


def _find_fixed(one: Table, other: Table) -> Iterator[str]:
    """Yield the options in which two tables differ, and which are not live; of a table in them, none of what differs may be so."""
    for name in type(one).__struct_fields__:
        was, now = getattr(one, name), getattr(other, name)
        if was == now or (name in type(one).declared and type(one).declared[name].live):
            continue
        if not (isinstance(was, Table) and isinstance(now, Table)) or any(_find_fixed(was, now)):
            yield name


def compare(
    before: Config,
    after: Config,
    was: Mapping[str, ModelConfig],
    now: Mapping[str, ModelConfig],
    restarted: Iterable[str],
) -> Changes:
    """
    Compare two configurations.

    Args:
        was, now: The models' tables.
        restarted: Models that get new backends.
    """
    new, both = set(restarted), was.keys() & now.keys()
    return Changes(
        added=tuple(name for name in now if name not in was),
        removed=tuple(name for name in was if name not in now),
        restarted=tuple(name for name in now if name in both and name in new),
        adjusted=tuple(
            name for name in now if name in both and name not in new and was[name] != now[name]
        ),
        options=tuple(
            name
            for name in Config.__struct_fields__
            if name != "models" and getattr(before, name) != getattr(after, name)
        ),
    )


def same_backends(one: ModelConfig, other: ModelConfig) -> bool:
    """Return True if two tables differ only in what backends do not know."""
    return not any(_find_fixed(one, other))
