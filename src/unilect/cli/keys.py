"""The commands for API keys of the store: `unilect keys create|limit|digest|list|revoke|delete|rotate`."""

from pathlib import Path

import click

from unilect.cli._options import Group, as_json, config_file

_config = config_file("its [store] is used")
_name = click.argument("name", help="The key's name, or its id.")


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
    ),
)
@click.argument("name", help="What to call the key.")
@_config
@click.option("--owner", default="", help="Whose key it is.")
@click.option("--expires", help="When it ends: 30d, 12h, 90m or 3600s [never].")
@click.option("--models", metavar="A,B", help="The models that it may use [all].")
@click.option(
    "--limit",
    multiple=True,
    metavar="NAME=NUMBER",
    help="A limit of the key, such as tokens_per_day=1000; may be given several times (docs/limits.md).",
)
@click.option(
    "--require",
    is_flag=True,
    help="Have running servers of the store that ask for no keys ask for them from now on.",
)
@as_json
def create(
    name: str,
    config: Path | None,
    owner: str,
    expires: str | None,
    models: str | None,
    limit: tuple[str, ...],
    require: bool,
    as_json: bool,
) -> None:
    """Create a key, and print it once."""
    from unilect.cli import _keys

    new = _keys.NewKey(name, owner, expires, models, limit, require)
    _keys.create(config, new, as_json)


@app.command(
    examples=(
        "unilect keys limit alice --limit tokens_per_day=100000",
        "unilect keys limit alice --none tokens_per_day",
    ),
)
@_name
@_config
@click.option(
    "--limit",
    multiple=True,
    metavar="NAME=NUMBER",
    help="A limit that the key has from now on; may be given several times (docs/limits.md).",
)
@click.option(
    "--none",
    multiple=True,
    metavar="NAME",
    help="A limit that the key has no more; may be given several times.",
)
@as_json
def limit(
    name: str,
    config: Path | None,
    limit: tuple[str, ...],
    none: tuple[str, ...],
    as_json: bool,
) -> None:
    """
    Change the limits of a key.

    They hold on every running server within a second. Limits that are not named stay.
    """
    from unilect.cli import _keys

    _keys.limit(config, name, limit, none, as_json)


@app.command("digest", examples=("unilect keys digest", "unilect keys digest < key.txt"))
def print_digest() -> None:
    """
    Print the digest of a key, for `api_keys` in a file.

    The key is read from the terminal or from stdin.
    """
    from unilect.cli import _keys

    _keys.print_digest()


@app.command("list", examples=("unilect keys list", "unilect keys list --json"))
@_config
@as_json
def list_keys(config: Path | None, as_json: bool) -> None:
    """List the keys; the secrets are not stored."""
    from unilect.cli import _keys

    _keys.list_keys(config, as_json)


@app.command(examples=("unilect keys revoke alice",))
@_name
@_config
@as_json
def revoke(name: str, config: Path | None, as_json: bool) -> None:
    """End a key, on every running server within a second."""
    from unilect.cli import _keys

    _keys.revoke(config, name, as_json)


@app.command(examples=("unilect keys delete alice",))
@_name
@_config
@click.option("--yes", is_flag=True, help="Do not ask first.")
@as_json
def delete(name: str, config: Path | None, yes: bool, as_json: bool) -> None:
    """Delete a key from the store, also a revoked one."""
    from unilect.cli import _keys

    _keys.delete(config, name, yes, as_json)


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
def rotate(name: str, config: Path | None, overlap: str, as_json: bool) -> None:
    """
    Print a new secret for a key.

    The old one can be used for a while.
    """
    from unilect.cli import _keys

    _keys.rotate(config, name, overlap, as_json)
