"""A running server, of ours or of others: its address, its models, and why it does not answer."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

import msgspec
from msgspec import Struct

from unilect.core.errors import BackendError, ConfigError, UnilectError
from unilect.http.base_url import split
from unilect.http.client import HttpServer, raise_for_answer
from unilect.models.source_hints import base_url
from unilect.runtime.redact import redact


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class Abilities(Struct, frozen=True):
    """The facts that a server of ours tells of a model beside OpenAI's fields; None where it does not say."""

    context: int | None = None
    chat: bool = True
    vision: bool | None = None
    state: str = ""
    parameters: dict[str, str] = {}


class Card(Struct):
    """A model, as a server describes it."""

    max_model_len: int | None = None  # vLLM's
    unilect: Abilities = Abilities()


def model_names(url: str, api_key: str | None) -> list[str]:
    """
    Return the names of the models that the server at a URL has.

    Raises:
        ConfigError: It does not say.
    """
    with connect(url, api_key) as (runner, server):
        return runner.run(list_models(server))


@contextmanager
def connect(url: str, api_key: str | None) -> Iterator[tuple[asyncio.Runner, HttpServer]]:
    """
    Connect to the server at a URL, with or without `/v1`.

    Yields:
        What runs the questions to it, and the server, which says what to do where it does not take the key.

    Raises:
        ConfigError: It is no URL, or the server does not answer; with a remedy.
    """
    with asyncio.Runner() as runner:
        server = _server_at(with_path(url), api_key)
        try:
            yield runner, server
        except UnilectError as error:
            why = error.for_operator
            if error.connection_failed:
                closed = url.startswith("http://") and "closed the connection" in why
                why += f" {'Is it https://? ' if closed else ''}Start it, or check the address."
            raise ConfigError(f"{redact(url)}: {why}") from error
        finally:
            runner.run(server.aclose())


async def list_models(server: HttpServer) -> list[str]:
    """
    Return the names of a server's models.

    Raises:
        UnilectError: It does not answer, or not in OpenAI's format.
    """
    answer = await server.get("/models")
    try:
        return [model.id for model in msgspec.json.decode(answer, type=_Models).data]
    except msgspec.DecodeError as error:
        raise BackendError(
            "The server's model list is not in OpenAI's format. Check the address."
        ) from error


def _model_path(name: str) -> str:
    """Return the path of a model below a base URL."""
    return f"/models/{quote(name, safe='/')}"


async def has_model(server: HttpServer, name: str, names: Collection[str]) -> bool:
    """Return True if a server knows a model, by one of the names that it lists or by another one."""
    if name in names:
        return True
    try:
        await server.get(_model_path(name))
    except UnilectError:
        return False
    return True


async def describe_model(server: HttpServer, name: str) -> Card:
    """Fetch what a server tells of a model; an empty card where nothing can be read."""
    try:
        return msgspec.json.decode(await server.get(_model_path(name)), type=Card)
    except (UnilectError, msgspec.DecodeError):
        return Card()


def _server_at(url: str, api_key: str | None) -> HttpServer:
    def raise_for(status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status in (401, 403):
            told = "rejects this key. Give another one" if api_key else "requires a key. Give it"
            text = f"The server {told} with --api-key, or in UNILECT_API_KEY."
            raise BackendError(text, reason=text)
        raise_for_answer(status, headers, body)

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return HttpServer(url, headers=headers, raise_for=raise_for)


def with_path(url: str, flag: str = "--url ") -> str:
    """
    Return a server's base URL; a bare host gets the usual `/v1`.

    Raises:
        ConfigError: It is no URL.
    """
    try:
        parts, _ = split(url)
    except ConfigError as error:
        raise ConfigError(
            f"{flag}{redact(url)}: expected a URL such as http://127.0.0.1:8000/v1."
        ) from error
    return parts._replace(path="/v1").geturl() if parts.path in ("", "/") else base_url(url)
