"""Tests of what a server says of its keys when it starts."""

from pathlib import Path

import pytest

from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.server.lifecycle import _tell_keys
from unilect.server.listener import Listener
from unilect.store.database import Database
from unilect.store.keys import KeyStore

NONE = (
    "every request needs an API key, and none works: those of the store are revoked or have expired. `unilect keys create NAME{}` makes "
    "one; to serve without keys, delete the old ones and restart"
)


@pytest.mark.parametrize(
    ("stored", "revoked", "configured", "file", "told"),
    [
        (0, 0, [], None, None),
        (0, 0, ["sk-a"], None, "1 API key works (1 configured)"),
        (2, 1, ["sk-a"], None, "3 API keys work (2 in the store, 1 configured)"),
        (1, 0, [], None, "1 API key works (1 in the store)"),
        (0, 2, [], None, NONE.format("")),
        (0, 1, [], Path("/etc/a b.toml"), NONE.format(" --config '/etc/a b.toml'")),
    ],
)
async def test_what_is_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stored: int,
    revoked: int,
    configured: list[str],
    file: Path | None,
    told: str | None,
) -> None:
    """A server that needs keys says how many work, and where none does how one is made; one that needs none says nothing."""
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    database = Database(url)
    keys = KeyStore(database)
    for number in range(stored + revoked):
        secret = new_secret()
        await keys.create(f"n{number}", id_of(secret) or "", digest(secret))
        if number >= stored:
            await keys.revoke(f"n{number}")
    await database.aclose()
    config = Config(
        port=0,
        api_keys=configured,
        store=StoreConfig(url=url),
        models={"m": ModelConfig(source="echo:")},
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        await listener.listen()
        with caplog.at_level("INFO", "unilect"):
            caplog.clear()
            await _tell_keys(listener, file)
    finally:
        await listener.aclose()
        await registry.aclose()

    assert ([] if told is None else [told]) == caplog.messages
    assert (told is not None) == listener.asks_for_keys
