"""The commands for API keys of the store: `unilect keys create|limit|digest|list|revoke|delete|rotate`."""

import click

from unilect.cli._options import Decorator, Group, as_json, config_file, runs

_config = config_file("its [store] is used")
_name = click.argument("name", help="The key's name, or its id.")


def _limits(what: str) -> Decorator:
    """Make the option `--limit`, with its help."""
    text = f"{what}; may be given several times (docs/limits.md)."
    return click.option("--limit", "limits", multiple=True, metavar="NAME=NUMBER", help=text)


@click.group(
    cls=Group,
    examples=("unilect keys create alice --limit tokens_per_day=100000", "unilect keys list"),
)
def app() -> None:
    """Create, list, limit and revoke API keys."""


@app.command(
    examples=(
        "unilect keys create alice",
        "unilect keys create bob --expires 30d --models small,big",
        "unilect keys create eve --limit requests_per_minute=20",
    )
)
@click.argument("name", help="What to call the key.")
@_config
@click.option("--owner", default="", help="Whose key it is.")
@click.option("--expires", help="When it ends: 30d, 12h, 90m or 3600s [never].")
@click.option("--models", metavar="A,B", help="The models that it may use [all].")
@_limits("A limit of the key, such as tokens_per_day=1000")
@click.option(
    "--require",
    is_flag=True,
    help="Have running servers of the store that ask for no keys ask for them from now on.",
)
@as_json
@runs("_keys", "create")
def create() -> None:
    """Create a key, and print it once."""


@app.command(
    examples=(
        "unilect keys limit alice --limit tokens_per_day=100000",
        "unilect keys limit alice --none tokens_per_day",
    )
)
@_name
@_config
@_limits("A limit that the key has from now on")
@click.option(
    "--none",
    multiple=True,
    metavar="NAME",
    help="A limit that the key has no more; may be given several times.",
)
@as_json
@runs("_keys", "limit")
def limit() -> None:
    """
    Change the limits of a key.

    They hold on every running server within a second. Limits that are not named stay.
    """


@app.command("digest", examples=("unilect keys digest", "unilect keys digest < key.txt"))
@runs("_keys", "print_digest")
def print_digest() -> None:
    """
    Print the digest of a key, for `api_keys` in a file.

    The key is read from the terminal or from stdin.
    """


@app.command("list", examples=("unilect keys list", "unilect keys list --json"))
@_config
@as_json
@runs("_keys", "list_keys")
def list_keys() -> None:
    """List the keys; the secrets are not stored."""


@app.command(examples=("unilect keys revoke alice",))
@_name
@_config
@as_json
@runs("_keys", "revoke")
def revoke() -> None:
    """End a key, on every running server within a second."""


@app.command(examples=("unilect keys delete alice",))
@_name
@_config
@click.option("--yes", is_flag=True, help="Do not ask first.")
@as_json
@runs("_keys", "delete")
def delete() -> None:
    """Delete a key from the store, also a revoked one."""


@app.command(examples=("unilect keys rotate alice --overlap 1h",))
@_name
@_config
@click.option(
    "--overlap",
    default="24h",
    show_default=True,
    help="How long the old secret can still be used: 24h, 30m, 0s ...",
)
@as_json
@runs("_keys", "rotate")
def rotate() -> None:
    """
    Print a new secret for a key.

    The old one can be used for a while.
    """
