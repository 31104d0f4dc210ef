"""
The effects of a changed configuration on a running server, and the changes that need a restart.

A model whose backends are as before keeps them, whatever else changes about it. What is not listed here as changeable needs a restart, so
that a new option does so until somebody has thought about it.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.errors import ConfigError
from unilect.mistakes import Mistakes

#: Options of the server that are taken over while it runs.
LIVE = frozenset(
    {
        "allow_credentials",
        "allowed_headers",
        "allowed_hosts",
        "allowed_methods",
        "allowed_origins",
        "api_keys",
        "image_hosts",
        "insecure_no_auth",
        "limits",
        "log_level",
        "max_body_bytes",
        "max_connections",
        "max_connections_per_address",
        "max_total_body_bytes",
        "metrics_keys",
        "models",
        "owners",
        "shutdown_grace_s",
    }
)
#: Options of a model that its backends do not know.
_BESIDE = frozenset(
    {
        "aliases",
        "completion_defaults",
        "completion_template",
        "defaults",
        "drop_billing_header",
        "fallback",
        "idle_stop_s",
        "limits",
        "load",
        "price",
        "stop",
        "unsupported",
    }
)


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
    found = Mistakes()
    for name in _options(before, after):
        was, now = getattr(before, name), getattr(after, name)
        if name in LIVE and not (name == "limits" and was.url != now.url):
            continue
        if name == "admin" and was.listen == now.listen:
            continue  # its keys may change
        if name in ("tls_cert", "tls_key") and None not in (before.tls_cert, after.tls_cert):
            continue
        found.add(
            f"{name}: cannot be changed while the server runs. Restart it, or set the option back.",
            (name,),
        )
    found.raise_all()


def changes(
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
        options=tuple(name for name in _options(before, after) if name != "models"),
    )


def same_backends(one: ModelConfig, other: ModelConfig) -> bool:
    """Return True if two tables differ only in what backends do not know."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ModelConfig.__struct_fields__
        if name not in _BESIDE
    )


def _options(before: Config, after: Config) -> list[str]:
    """The options of the server that differ."""
    return [
        name for name in Config.__struct_fields__ if getattr(before, name) != getattr(after, name)
    ]


def in_one_line(error: ConfigError) -> str:
    """All mistakes of a configuration in a line of the log."""
    return "; ".join(map(str, error.each))
