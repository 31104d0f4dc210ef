"""The commands for API keys of the store: `unilect keys create|limit|list|revoke|rotate`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

app = typer.Typer(no_args_is_help=True, help="Commands for API keys in the store.")

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help="TOML configuration file; its [store] is used."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name: TypeAlias = Annotated[str, typer.Argument(help="The key's name, or its id.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the key.")],
    config: ConfigFile = None,
    owner: Annotated[str, typer.Option(help="Whose key it is.")] = "",
    expires: Annotated[
        str | None, typer.Option(help="When it ends: 30d, 12h, 90m or 3600s [never].")
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="The models that it may use [all].")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="A limit of the key, such as tokens_per_day=1000; may be given several times (docs/limits.md).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print it. It is not shown again."""
    from unilect.cli import _keys

    _keys.create(config, name, owner, expires, models, limit or [], as_json)


@app.command()
def limit(
    name: Name,
    config: ConfigFile = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="A limit that the key has from now on; may be given several times (docs/limits.md).",
        ),
    ] = None,
    none: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A limit that the key has no more; may be given several times."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the limits of a key, on every running server within a second. Limits that are not named stay."""
    from unilect.cli import _keys

    _keys.limit(config, name, limit or [], none or [], as_json)


@app.command("digest")
def print_digest() -> None:
    """Read a key from the terminal or from stdin, and print what stands for it in `api_keys`."""
    from unilect.cli import _keys

    _keys.print_digest()


@app.command("list")
def list_keys(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the keys; the secrets are not stored."""
    from unilect.cli import _keys

    _keys.list_keys(config, as_json)


@app.command()
def revoke(name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """End a key, on every running server within a second."""
    from unilect.cli import _keys

    _keys.revoke(config, name, as_json)


@app.command()
def rotate(
    name: Name,
    config: ConfigFile = None,
    overlap: Annotated[
        str, typer.Option(help="How long the old secret can still be used: 24h, 30m, 0s ...")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Print a new secret for a key; the old one can be used for a while."""
    from unilect.cli import _keys

    _keys.rotate(config, name, overlap, as_json)
