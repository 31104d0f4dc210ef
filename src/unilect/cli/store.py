"""The commands for the store: `unilect store check|migrate|backup`."""

from pathlib import Path

import click

from unilect.cli._options import FILE, Group, as_json, config_file

_config = config_file("its [store] is used")


@click.group(cls=Group, examples=("unilect store check", "unilect store backup copy.db"))
def app() -> None:
    """Check, update and copy the store of keys and answers."""


@app.command(examples=("unilect store check --config unilect.toml",))
@_config
@as_json
def check(config: Path | None, as_json: bool) -> None:
    """
    Say what the store holds, and whether it is sound.

    The exit code is 1 if it is not. Nothing is changed.
    """
    from unilect.cli import _store

    _store.check(config, as_json)


@app.command(examples=("unilect store migrate --config unilect.toml",))
@_config
def migrate(config: Path | None) -> None:
    """
    Bring the tables up to date.

    A server does the same when it first uses the store.
    """
    from unilect.cli import _store

    _store.migrate(config)


@app.command(examples=("unilect store backup copy.db",))
@click.argument("file", type=FILE, help="The new file.")
@_config
def backup(file: Path, config: Path | None) -> None:
    """Copy the store into a file, while servers use it."""
    from unilect.cli import _store

    _store.backup(config, file)
