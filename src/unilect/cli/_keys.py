"""The work of the commands for API keys."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from getpass import getpass
from pathlib import Path
from typing import Any, TypeVar

import click

from unilect.auth.keys import digest
from unilect.auth.secret import id_of, is_mistyped, new_secret
from unilect.cli._options import flush
from unilect.cli._screen import fail, tell, tell_table
from unilect.cli._servers import of_store
from unilect.config import load as config_load
from unilect.config.digests import hash_keys
from unilect.config.durations import seconds
from unilect.config.limits import check_limit_names, parse_limits
from unilect.config.model import wrong_name
from unilect.config.server import Config, process_environment
from unilect.config.store import location
from unilect.core.errors import ConfigError, StoreUnavailable, join_names
from unilect.models import sources
from unilect.runtime.logs import escape
from unilect.store.keys import KeyStore, describe, state
from unilect.store.records import Key
from unilect.store.store import Store

_Result = TypeVar("_Result")
#: Of errors of the store, what the command line calls the fields.
_WORDS = {"name": "NAME", "owner": "--owner"}


class _Place:
    """
    The store that a command is about.

    Raises:
        ConfigError: The configuration is wrong, or lets no keys of a store in.

    Attributes:
        settings: The configuration.
        store: Where the store is, for people.
    """

    def __init__(self, config: Path | None) -> None:
        self.settings = config_load.load(config)
        if not self.settings.store.keys:
            raise ConfigError(
                "store.keys: the keys of the store are turned off in this configuration. Take `keys = false` out of [store]."
            )
        self.store = location(self.settings.store, process_environment())
        self._is_named = config_load.origin_of(config).file is not None

    @property
    def hint(self) -> str:
        """A sentence about naming another store; empty where one was named."""
        return "" if self._is_named else " --config FILE names the store of a server with a configuration file."  # fmt: skip

    def ask(self, ask: Callable[[KeyStore], Coroutine[Any, Any, _Result]]) -> _Result:
        """
        Return what the keys of the store say.

        Raises:
            ConfigError: The store cannot be used, or what the keys raise.
        """

        async def run() -> _Result:
            settings = self.settings.store
            async with aclosing(Store(settings, process_environment(), is_permanent=True)) as store:
                assert store.keys is not None
                try:
                    return await ask(store.keys)
                except ConfigError as error:
                    told = f"{escape(str(error))} The store is {self.store}.{self.hint}"
                    if error.path:
                        told = f"{_WORDS[str(error.path[0])]}: {error}"
                    raise ConfigError(told) from error

        try:
            return asyncio.run(run())
        except StoreUnavailable as error:
            raise ConfigError(f"{error.for_operator}{self.hint}") from error


def create(
    config: Path | None,
    as_json: bool,
    name: str,
    owner: str = "",
    expires: str | None = None,
    models: str | None = None,
    limits: Sequence[str] = (),
    require: bool = False,
) -> None:
    """
    Create a key; its text alone is printed on stdout, or it and what is known of it as JSON, and what follows on stderr.

    Args:
        expires: After which time; None for never.
        models: Names with commas between them; None for all.
        limits: Each NAME=NUMBER.
        require: Running servers that ask for no keys do so from now on.
    """
    _check_stdout()
    place = _Place(config)
    lasts_s = None if expires is None else seconds(expires, "--expires")
    if lasts_s == 0:
        raise ConfigError("--expires: the key would have ended before it is used; give a time above 0, such as 30d.")  # fmt: skip
    allowed = None if models is None else _models(models, place.settings)
    limited, secret = parse_limits(limits), new_secret()
    _warn_of_unknown(allowed or (), place.settings)
    key = place.ask(
        lambda keys: keys.create(
            name,
            id_of(secret) or "",
            digest(secret),
            owner=owner,
            models=allowed,
            limits=limited,
            lasts_s=lasts_s,
            require=require,
        )
    )
    _tell_secret(key, secret, as_json)
    _note(f"{_name_of(key)} is in the store {place.store}.{place.hint}")
    _tell_servers(place)


def rotate(config: Path | None, name: str, overlap: str, as_json: bool) -> None:
    """Give a key another secret, and print that."""
    _check_stdout()
    overlap_s = seconds(overlap, "--overlap")
    place, secret = _Place(config), new_secret()
    key = place.ask(lambda keys: keys.rotate(name, id_of(secret) or "", digest(secret), overlap_s))
    _tell_secret(key, secret, as_json)
    _note(f"{_name_of(key)} of the store {place.store} has a new secret; the old one works for {overlap} more.")  # fmt: skip


def limit(
    config: Path | None, name: str, limits: Sequence[str], none: Sequence[str], as_json: bool
) -> None:
    """Change the limits of a key, and say which it has."""
    changes = {**parse_limits(limits), **dict.fromkeys(check_limit_names(none))}
    both = [one.partition("=")[0].strip() for one in limits]
    if twice := [one for one in none if one in both]:
        raise ConfigError(f"--none: {twice[0]} is given with --limit, too; leave one of them out.")
    if not changes:
        raise ConfigError("--limit: nothing to change; give --limit NAME=NUMBER, or --none NAME.")
    key = _Place(config).ask(lambda keys: keys.limit(name, changes))
    _tell_key(key, f"has {_format_limits(key.limits) or 'no limits of its own'}", as_json)


def revoke(config: Path | None, name: str, as_json: bool) -> None:
    """End a key, and say so."""
    key = _Place(config).ask(lambda keys: keys.revoke(name))
    _tell_key(key, "is revoked", as_json)


def delete(config: Path | None, name: str, yes: bool, as_json: bool) -> None:
    """Delete a key, once a person at the terminal or `--yes` has confirmed it, and say what follows."""
    place = _Place(config)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("--yes: is needed where stdin is no terminal, since nobody can be asked. Nothing was deleted.")  # fmt: skip
    if not yes and (meant := place.ask(lambda keys: keys.get_by_name(name))) is not None:
        about = (
            f"Delete {_name_of(meant)}, {state(meant, time.time())}, from the store {place.store}?"
        )
        click.confirm(about, abort=True, err=True)
    key, left = place.ask(lambda keys: keys.delete(name))
    more = {"state": "deleted", "keys_left": left}
    _tell_key(key, f"is deleted from the store {place.store}", as_json, more)
    _note(f"What it used stays in the ledger under {key.id}; what it stored is deleted when it is old enough.")  # fmt: skip
    if not left:
        _note("It was the last key: servers that start with this store from now on ask for none. Those that ask for keys now do so until they are restarted.")  # fmt: skip
        _tell_servers(place)


def print_digest() -> None:
    """Print the digest of a key that is typed, or comes on stdin: an argument would stand in the shell's history."""
    secret = getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not secret.strip() or not secret.isascii() or " " in secret:
        raise ConfigError(
            "the key is empty, or has spaces or non-ASCII characters. Give one of visible ASCII characters, such as of `openssl rand -hex 32`."
        )
    if is_mistyped(secret):
        raise ConfigError(
            "the key begins with `ul_` and has a typing error: its checksum is wrong. Copy it again."
        )
    tell(" ".join(hash_keys([secret])))


def list_keys(config: Path | None, as_json: bool) -> None:
    """Print all keys, as a table or as a JSON list."""
    place = _Place(config)
    keys = place.ask(lambda stored: stored.all())
    if not keys:
        _note(f"There are no keys in the store {place.store}.{place.hint}")
    if as_json:
        tell(json.dumps([describe(key, time.time()) for key in keys]))
        return
    rows = [
        (
            key.name,
            key.id,
            key.owner or "-",
            "all" if key.models is None else ",".join(key.models),
            _format_limits(key.limits) or "-",
            _day(key.created_at),
            "never" if key.expires_at is None else _day(key.expires_at),
            state(key, time.time()),
        )
        for key in keys
    ]
    tell_table(("NAME", "ID", "OWNER", "MODELS", "LIMITS", "CREATED", "EXPIRES", "STATE"), rows)


def _models(text: str, settings: Config) -> list[str]:
    """
    Return the names in a list of models.

    Raises:
        ConfigError: One cannot be the name of a model, or is an alias of one.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--models: expected the names of models, with commas between them.")
    for name in names:
        if (wrong := wrong_name(name)) is not None:
            raise ConfigError(f"--models: {wrong}")
        aliased = next((n for n, one in settings.models.items() if name in one.aliases), None)
        if aliased is not None:
            raise ConfigError(f"--models: {name} is an alias of `{aliased}`; name the model.")
    return names


def _warn_of_unknown(names: Iterable[str], settings: Config) -> None:
    """Say that no model of a configuration has a name, unless models may come that it does not name."""
    models = settings.models
    if settings.fastchat_controller or any(one.model == sources.ALL for one in models.values()):
        return
    unknown = ", ".join(f"`{name}`" for name in names if name not in models)
    if unknown and models:
        _note(
            f"warning: --models: no model of this configuration is called {unknown}; it has {join_names(models)}. The key is created all "
            "the same, since the model may come."
        )


def _tell_servers(place: _Place) -> None:
    """Say of each running server of the store whether it asks for keys, and what to do where it does not."""
    servers, silent = of_store(place.settings, process_environment())
    for server in servers:
        does = "asks for keys"
        if not server.keys:
            reload = "" if server.config is None else " (or `unilect reload`)"
            does = f"was started without keys and goes on without; restart it{reload}, or pass --require"
        _note(f"{server.urls[0]} (pid {server.pid}) {does}.")
    for why in silent:
        _note(why)
    if not servers:
        _note("No running server of this user was found with this store.")


def _note(text: str) -> None:
    """Say something beside what a command was asked for."""
    tell(text, on_stderr=True)


def _check_stdout() -> None:
    """
    Raises:
        ConfigError: stdout is closed: nobody would see the secret.
    """
    # as `__main__` leaves it; where a shell sends it there, that is not its name
    if getattr(sys.stdout, "name", "") == os.devnull:
        raise ConfigError("stdout is closed, and a key is told there, once; nothing was done. Leave stdout open, or give it a file.")  # fmt: skip


def _tell_secret(key: Key, secret: str, as_json: bool) -> None:
    """Print the secret, which nobody can show again; where that fails the command ends with what is to be done."""
    try:
        tell(json.dumps(describe(key, time.time()) | {"key": secret}) if as_json else secret)
        flush()
    except OSError as error:
        fail(f"{_name_of(key)} has a new secret, which could not be printed ({error.strerror}). Run `unilect keys rotate {key.id}`, or revoke it.")  # fmt: skip


def _tell_key(key: Key, what: str, as_json: bool, more: Mapping[str, Any] = {}) -> None:
    """Say what a key is now: in a sentence, or all that is known of it, and more, as JSON."""
    tell(json.dumps({**describe(key, time.time()), **more}) if as_json else f"{_name_of(key)} {what}.")  # fmt: skip


def _name_of(key: Key) -> str:
    """Write a key as its name and its id."""
    return f"{escape(key.name)} ({key.id})"


def _format_limits(limits: Mapping[str, float]) -> str:
    return ",".join(f"{name}={most:.12g}" for name, most in limits.items())


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
