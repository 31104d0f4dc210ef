"""The commands for the store: `unilect store check|migrate|backup`."""

from pathlib import Path
from typing import Annotated

import typer

from unilect.cli.keys import AsJson, ConfigFile

app = typer.Typer(no_args_is_help=True, help="Commands for the store.")


@app.command()
def check(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Say what the store holds, and whether it is sound (exit code 1 if not). Nothing is changed."""
    from unilect.cli import _store

    _store.check(config, as_json)


@app.command()
def migrate(config: ConfigFile = None) -> None:
    """Bring the tables up to date, as a server does when it first uses the store."""
    from unilect.cli import _store

    _store.migrate(config)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The new file.")], config: ConfigFile = None
) -> None:
    """Copy the store into a file, while servers use it."""
    from unilect.cli import _store

    _store.backup(config, file)
