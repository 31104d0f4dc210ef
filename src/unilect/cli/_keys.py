"""What the commands for API keys do."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from getpass import getpass
from pathlib import Path
from typing import Any, TypeVar

from unilect.cli._commands import fail, or_exit
from unilect.cli._options import flush
from unilect.cli._screen import tell, tell_table
from unilect.config import load as config_load
from unilect.config.digests import hashed
from unilect.config.durations import seconds
from unilect.config.limits import limit_names, parsed
from unilect.config.model import wrong_name
from unilect.config.server import Config, process_environment
from unilect.errors import ConfigError, StoreUnavailable
from unilect.gateway.secret import digest, id_of, is_mistyped, new_secret
from unilect.routing import sources
from unilect.store.keys import Key, StoredKeys, state, told
from unilect.store.store import Store

_Result = TypeVar("_Result")
_NAME = re.compile(r"[^\x00-\x20\x7f-\x9f\u2028\u2029]{1,100}")


def create(
    config: Path | None,
    name: str,
    owner: str,
    expires: str | None,
    models: str | None,
    limits: Sequence[str],
    as_json: bool,
) -> None:
    """Make a key; its text alone is printed on stdout, or it and what is known of it as JSON."""

    def checked(settings: Config) -> tuple[float | None, list[str] | None, dict[str, float]]:
        _check_name(name, "NAME")
        if owner:
            _check_name(owner, "--owner")
        lasts_s = None if expires is None else seconds(expires, "--expires")
        if lasts_s == 0:
            raise ConfigError("--expires: the key would have ended before it is used; give a time above 0, such as 30d.")  # fmt: skip
        allowed = None if models is None else _models(models, settings)
        return lasts_s, allowed, parsed(limits)

    def run() -> tuple[Key, str, str]:
        _check_stdout()
        settings = config_load.load(config)
        lasts_s, allowed, limited = checked(settings)
        secret = new_secret()

        async def add(keys: StoredKeys) -> Key:
            return await keys.create(
                name,
                id_of(secret) or "",
                digest(secret),
                owner=owner,
                models=allowed,
                limits=limited,
                lasts_s=lasts_s,
            )

        return _asked(settings, add), secret, _unknown(allowed or (), settings)

    key, secret, notice = or_exit(run)
    _tell_secret(key, secret, as_json)
    if notice:
        tell(f"unilect: {notice}", on_stderr=True)


def rotate(config: Path | None, name: str, overlap: str, as_json: bool) -> None:
    """Give a key another secret, and print that."""

    def run() -> tuple[Key, str]:
        _check_stdout()
        overlap_s = seconds(overlap, "--overlap")
        secret = new_secret()
        key = _asked(
            config_load.load(config),
            lambda keys: keys.rotate(name, id_of(secret) or "", digest(secret), overlap_s),
        )
        return key, secret

    key, made = or_exit(run)
    _tell_secret(key, made, as_json)


def limit(
    config: Path | None, name: str, limits: Sequence[str], none: Sequence[str], as_json: bool
) -> None:
    """Change the limits of a key, and say which it has."""

    def run() -> Key:
        changes = {**parsed(limits), **dict.fromkeys(limit_names(none))}
        both = [one.partition("=")[0].strip() for one in limits]
        if twice := [one for one in none if one in both]:
            raise ConfigError(f"--none: {twice[0]} is given with --limit, too; leave one of them out.")  # fmt: skip
        if not changes:
            raise ConfigError("--limit: nothing to change; give --limit NAME=NUMBER, or --none NAME.")  # fmt: skip
        return _asked(config_load.load(config), lambda keys: keys.limit(name, changes))

    key = or_exit(run)
    shown = _shown(key.limits) or "no limits of its own"
    tell(json.dumps(told(key, time.time())) if as_json else f"{key.name} ({key.id}) has {shown}.")


def revoke(config: Path | None, name: str, as_json: bool) -> None:
    """End a key, and say so."""
    key = or_exit(lambda: _asked(config_load.load(config), lambda keys: keys.revoke(name)))
    tell(json.dumps(told(key, time.time())) if as_json else f"{key.name} ({key.id}) is revoked.")


def print_digest() -> None:
    """Print the digest of a key that is typed, or comes on stdin: an argument would stand in the shell's history."""
    secret = getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not secret.strip() or not secret.isascii() or " " in secret:
        fail("the key is empty, or has spaces or non-ASCII characters.")
    if is_mistyped(secret):
        fail("the key begins with `ul_` and has a typing error: its checksum is wrong.")
    tell(" ".join(hashed([secret])))


def list_keys(config: Path | None, as_json: bool) -> None:
    """Print all keys, as a table or as a JSON list."""
    keys = or_exit(lambda: _asked(config_load.load(config), lambda stored: stored.all()))
    if as_json:
        tell(json.dumps([told(key, time.time()) for key in keys]))
        return
    rows = [
        (
            key.name,
            key.id,
            key.owner or "-",
            "all" if key.models is None else ",".join(key.models),
            _shown(key.limits) or "-",
            _day(key.created_at),
            "never" if key.expires_at is None else _day(key.expires_at),
            state(key, time.time()),
        )
        for key in keys
    ]
    tell_table(("NAME", "ID", "OWNER", "MODELS", "LIMITS", "CREATED", "EXPIRES", "STATE"), rows)


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {name[:50]!r} is not a name; expected 1 to 100 characters without spaces and control characters."
        )


def _models(text: str, settings: Config) -> list[str]:
    """
    The names in a list of models.

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


def _unknown(names: Iterable[str], settings: Config) -> str:
    """What to say of names that no model has; nothing where models may come that the configuration does not name."""
    models = sources.served(settings)
    if settings.fastchat_controller or any(one.model == sources.ALL for one in models.values()):
        return ""
    unknown = ", ".join(f"`{name}`" for name in names if name not in models)
    return (
        unknown
        and f"--models: no model of this configuration is called {unknown}; it has {', '.join([*models][:20])}."
    )


def _asked(settings: Config, ask: Callable[[StoredKeys], Coroutine[Any, Any, _Result]]) -> _Result:
    """
    What the keys of a configuration's store say.

    Raises:
        ConfigError: The store cannot be used, or what the keys raise.
    """
    if not settings.store.keys:
        raise ConfigError("store.keys: the keys of the store are turned off in this configuration.")

    async def run() -> _Result:
        store = Store(settings.store, process_environment())
        try:
            assert store.keys is not None
            return await ask(store.keys)
        except StoreUnavailable as error:
            raise ConfigError(error.for_operator) from error
        finally:
            await store.aclose()

    return asyncio.run(run())


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
        tell(json.dumps(told(key, time.time()) | {"key": secret}) if as_json else secret)
        flush()
    except OSError as error:
        fail(f"{key.name} ({key.id}) has a new secret, which could not be printed ({error.strerror}). Run `unilect keys rotate {key.id}`, or revoke it.")  # fmt: skip


def _shown(limits: Mapping[str, float]) -> str:
    return ",".join(f"{name}={most:.12g}" for name, most in limits.items())


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
