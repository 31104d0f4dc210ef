"""
Completion for shells: sources of models with the files of this machine, clients, formats, and the names of `unilect compat`.

Source: https://click.palletsprojects.com/en/stable/shell-completion/
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from glob import escape, iglob
from typing import Any, ClassVar, TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
)

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_UNILECT_COMPLETE"
_LOOK_S = 1.0  # for a server to answer
_Items = list[CompletionItem[Any]]
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], _Items]


@add_completion_class
class _Bash(BashComplete):
    """Bash, which takes `=` and `:` for the ends of words, and adds a blank to each word that is complete."""

    source_template: ClassVar[str] = (
        BashComplete.source_template.replace(
            "local response", "local response completion type value"
        )
        .replace("read type", "read -r type")
        .replace(
            "COMPREPLY+=($value)",
            'COMPREPLY+=("$value")\n            [[ $value == *[:/=] ]] && compopt -o nospace',
        )
    )

    def source(self) -> str:
        """Return the script; click's own looks for a bash of this machine first."""
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is completed, and that."""
        words, incomplete = super().get_completion_args()
        return [word for word in words if word not in ("=", ":")], incomplete.lstrip("=:")


def script(app: click.Command, shell: str) -> str:
    """Return what a shell is to run, so that it completes."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(app, {}, "unilect", _VARIABLE).source()


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Have the shell offer its files."""
    return [CompletionItem(incomplete, type="file")]


def sources(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer files; where no file begins so, schemes."""
    from unilect.config.kinds import KIND_OF

    upstream = ("http", "https")
    schemes = [f"{one}://" if one.endswith(upstream) else f"{one}:" for one in KIND_OF]
    return _or_files(schemes, incomplete)


def templates(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer files; where no file begins so, the names of formats."""
    from unilect.templates.chat import names

    return _or_files(names(), incomplete)


def words(values: Iterable[str]) -> Completer:
    """Return what offers these words."""
    return lambda ctx, parameter, incomplete: _beginning(values, incomplete)


def models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer the names of the models of the running servers that the command may be about."""
    from unilect.cli import _servers
    from unilect.core.errors import ConfigError

    names = list[str]()
    with suppress(ConfigError, OSError):
        for client in _servers.choose(ctx.params.get("config"), ctx.params.get("server")):
            told = client.ask("GET", "/models", _LOOK_S)
            names += [model["name"] for model in told["models"]]
    return _beginning(dict.fromkeys(names), incomplete)


def clients(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer the clients of `unilect connect`."""
    from unilect.web.connect.clients import CLIENTS

    return _beginning(CLIENTS, incomplete)


def older_servers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer the names of `unilect compat`."""
    from unilect.cli._compat import FLAGS

    return _beginning(FLAGS, incomplete)


def older_flags(name: str, incomplete: str) -> _Items:
    """Offer the flags of a server that `unilect compat` replaces."""
    from unilect.cli._compat import flag_names

    return _beginning(flag_names(name), incomplete)


def local_models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> _Items:
    """Offer the models that were fetched."""
    from unilect.hub.stored import list_own

    return _beginning([one.name for one in list_own()], incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> _Items:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _or_files(words: Iterable[str], incomplete: str) -> _Items:
    has_files = not incomplete or any(iglob(f"{escape(incomplete)}*"))
    found = [] if has_files else _beginning(words, incomplete)
    return found or [CompletionItem(incomplete, type="file")]
