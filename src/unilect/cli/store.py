"""The commands for the store: `unilect store check|migrate|backup`."""

from pathlib import Path

import click

from unilect.cli._options import FILE, Group, as_json, config_file

_config = config_file("its [store] is used")


@click.group(cls=Group)
def app() -> None:
    """Commands for the store."""


@app.command()
@_config
@as_json
def check(config: Path | None, as_json: bool) -> None:
    """Say what the store holds, and whether it is sound (exit code 1 if not). Nothing is changed."""
    from unilect.cli import _store

    _store.check(config, as_json)


@app.command()
@_config
def migrate(config: Path | None) -> None:
    """Bring the tables up to date, as a server does when it first uses the store."""
    from unilect.cli import _store

    _store.migrate(config)


@app.command()
@click.argument("file", type=FILE, help="The new file.")
@_config
def backup(file: Path, config: Path | None) -> None:
    """Copy the store into a file, while servers use it."""
    from unilect.cli import _store

    _store.backup(config, file)
