"""The commands for the store: `unilect store check|migrate|backup`."""

import click

from unilect.cli._options import FILE, Group, as_json, config_file, runs

_config = config_file("its [store] is used")


@click.group(cls=Group, examples=("unilect store check", "unilect store backup copy.db"))
def app() -> None:
    """Check, update and copy the store of keys and answers."""


@app.command(examples=("unilect store check --config unilect.toml",))
@_config
@as_json
@runs("_store", "check")
def check() -> None:
    """
    Say what the store holds, and whether it is sound.

    The exit code is 1 if it is not. Nothing is changed.
    """


@app.command(examples=("unilect store migrate --config unilect.toml",))
@_config
@runs("_store", "migrate")
def migrate() -> None:
    """
    Bring the tables up to date.

    A server does the same when it first uses the store.
    """


@app.command(examples=("unilect store backup copy.db",))
@click.argument("file", type=FILE, help="The new file.")
@_config
@runs("_store", "backup")
def backup() -> None:
    """Copy the store into a file, while servers use it."""
