"""listener.py: one server on several addresses, each with a compatibility profile of its own, and HTTPS."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.common.certificates import certificate, needs_openssl, openssl
from unilect.config.server import Config, ListenerConfig
from unilect.core.errors import ConfigError
from unilect.models import sources
from unilect.server.listener import Listener

HI = [{"role": "user", "content": "Hello!"}]


@asynccontextmanager
async def listening(config: Config) -> AsyncIterator[tuple[list[str], aiohttp.ClientSession]]:
    """The bundled model on the addresses of a configuration, and a client."""
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        urls = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield urls, client
    finally:
        await listener.aclose()
        await registry.aclose()


async def chat(client: aiohttp.ClientSession, url: str, **body: Any) -> tuple[int, Any]:
    """The status and the body of a short answer."""
    body = {"messages": HI, "max_tokens": 2} | body
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        return response.status, await response.json()


async def test_each_address_has_its_profile() -> None:
    """One process answers at several addresses, each in the dialect that its table names, with the same models."""
    config = Config(
        port=0, listeners=[ListenerConfig(port=0, dialect="alpaca"), ListenerConfig(port=0)]
    )
    async with listening(config) as (urls, client):
        first, alpaca, last = [
            await chat(client, url, model="nobody", messages="Hi") for url in urls
        ]
        metrics = await (await client.get(f"{urls[2]}/metrics")).text()

    assert 3 == len(set(urls))
    assert (404, 200, 404) == (first[0], alpaca[0], last[0])
    assert ["user", "assistant"] == [c["message"]["role"] for c in alpaca[1]["choices"]]
    assert 'unilect_requests_total{endpoint="chat.completions",model="demo",status="200"} 1.0' in metrics  # fmt: skip


async def test_an_end_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a part of a server fails to end the others end all the same, its store the last but one, and the error is told."""
    config = Config(port=0)
    registry = sources.registry(config)
    listener = Listener(config, registry)
    (url,) = await listener.listen()

    async def fail() -> None:
        raise OSError("it does not end")

    monkeypatch.setattr(listener._limits, "aclose", fail)
    with pytest.raises(OSError, match="does not end"):
        await listener.aclose()
    assert listener._store.database._closed
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get(f"{url}/healthz")
    await registry.aclose()


async def test_an_address_that_is_taken() -> None:
    """An address that something else listens on is told, and nothing is left open."""
    async with listening(Config(port=0)) as (urls, _):
        taken = int(urls[0].rpartition(":")[2])
        config = Config(port=0, listeners=[ListenerConfig(port=taken)])
        with pytest.raises(ConfigError, match=str(taken)):
            async with listening(config):
                pass


@needs_openssl
async def test_https(tmp_path: Path) -> None:
    """With a certificate every address speaks HTTPS, and answers nobody who does not."""
    cert, key = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=cert)
    config = Config(port=0, listeners=[ListenerConfig(port=0)], tls_cert=cert, tls_key=key)
    async with listening(config) as (urls, client):
        for url in urls:
            assert url.startswith("https://127.0.0.1:")
            async with client.get(f"{url}/healthz", ssl=trust) as response:
                assert "ok\n" == await response.text()
            with pytest.raises(aiohttp.ClientError):
                await client.get(f"{url.replace('https', 'http')}/healthz")


@needs_openssl
async def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    """A missing certificate, one without its key and a key with a password are told at start."""
    cert, key = certificate(tmp_path)
    locked = tmp_path / "locked.pem"
    openssl(f"ec -in {key} -aes128 -passout pass:secret -out {locked}")
    for tls in (
        {"tls_cert": str(tmp_path / "none.pem")},
        {"tls_cert": cert},
        {"tls_cert": cert, "tls_key": str(locked)},
    ):
        with pytest.raises(ConfigError, match="tls_cert"):
            async with listening(Config(port=0, **tls)):  # type: ignore[arg-type]
                pass
