"""
Detection of an OpenAI-compatible server: its kind, its model's name, and that model's capabilities.

At most three GET requests: the list of models; then, depending on the list, the model's own page (another unilect), the version (vLLM) or
the root (Ollama's contains its name); if there is no list, `/info` (text-embeddings-inference) and `/openapi.json`. Without an
answer the server is unknown, and gets all parameters.

Source: https://platform.openai.com/docs/api-reference/models; https://docs.ollama.com/api
"""

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from unilect.api.backend import Capabilities, Description
from unilect.core.errors import BackendError, BackendTimeout, BackendUnavailable, UnilectError
from unilect.families import name_of, of_name
from unilect.http.client import MAX_LIST_BYTES, HttpServer
from unilect.http.error_bodies import NoSuchPath, plain
from unilect.upstreams.openai import tei
from unilect.upstreams.openai._salt import takes_salt
from unilect.upstreams.openai._servers import (
    OLLAMA,
    TEI,
    UNKNOWN,
    ServerKind,
    by_description,
    by_models,
    capabilities,
    description,
)

PROBE_TIMEOUT_S = 1.5  # for each request


class Detected(Struct, frozen=True):
    """
    The result of detection.

    Attributes:
        model: The model's name on the server.
        lists: The server lists its models.
        reason: Why its base URL is likely wrong, for the operator; None if it seems right.
        info: What a server of text-embeddings-inference says of itself; None for any other.
        takes_salt: It keeps requests with different salts apart in its prompt cache.
    """

    model: str
    kind: ServerKind
    capabilities: Capabilities
    description: Description
    lists: bool = True
    reason: str | None = None
    info: tei.Info | None = None
    takes_salt: bool = False


async def learn(
    server: HttpServer, root: HttpServer, model: str | None, wanted: str
) -> Detected | None:
    """
    Detect the kind of a server.

    Args:
        server: The server, by its base URL.
        root: The same without the base's last `/v1`, for endpoints outside of it.
        model: The model's configured name, or None.
        wanted: The model, if no name is configured and the server has a model of this name.

    Returns:
        The result; None if a model is configured and the server is unreachable now.

    Raises:
        UnilectError: No model is configured, and the server does not list exactly one.
    """
    lost: UnilectError | None = None
    if model is None:
        try:
            listed = await model_cards(server)
        except NoSuchPath:
            if (found := await _text_embeddings(root, model)) is None:
                raise
            return found
        model = choose(listed, wanted)
    else:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                listed = await model_cards(server)
        except (BackendUnavailable, BackendTimeout, TimeoutError):
            return None
        except UnilectError as error:
            listed, lost = [], error
            if isinstance(error, NoSuchPath) and (found := await _text_embeddings(root, model)):
                return found
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            kind, card = await _recognise(server, root, listed, model)
    except TimeoutError:
        kind, card = UNKNOWN, {}
    salted = kind.salted and takes_salt((await _in_time(root, "/version")).get("version"))
    reason = lost.reason if isinstance(lost, NoSuchPath) and kind is UNKNOWN else None
    can, told = capabilities(kind, card), description(card)
    can = msgspec.structs.replace(can, tool_form=name_of(of_name(model)))
    return Detected(model, kind, can, told, lost is None, reason, takes_salt=salted)


async def _text_embeddings(root: HttpServer, model: str | None) -> Detected | None:
    """Return the result for a server that lists no models, where it is text-embeddings-inference."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            info = await tei.info_of(root)
    except TimeoutError:
        return None
    if info is None:
        return None
    can, told = tei.capabilities(info), tei.description(info)
    return Detected(model or info.model_id, TEI, can, told, info=info)


async def model_cards(server: HttpServer) -> list[dict[str, Any]]:
    """
    Return the models that a server lists, as it describes them; what has no text as its id is left out.

    Raises:
        UnilectError: The server cannot be asked, or its answer is not a list of models.
    """
    models = _object(await server.get("/models", MAX_LIST_BYTES)).get("data")
    if isinstance(models, list):
        cards = [
            card for card in models if isinstance(card, dict) and isinstance(card.get("id"), str)
        ]
        if cards or not models:
            return cards
    raise BackendError(
        "The server's model list is not in OpenAI's format; its operator must check the base URL of `source`."
    )


def choose(models: list[dict[str, Any]], wanted: str) -> str:
    """
    Return the name of the wanted model of a list, else of its only one.

    Raises:
        BackendError: The list does not have exactly one model.
    """
    names = [str(card["id"]) for card in models]
    if wanted in names:
        return wanted
    if len(names) != 1:
        raise BackendError(
            "The model's server does not have exactly one model, and none is configured; the operator must set `model`.",
            reason=f"The server has {len(names)} models ({', '.join(names[:20])}); name one with `model = ...`.",
        )
    return names[0]


async def _recognise(
    server: HttpServer, root: HttpServer, listed: list[dict[str, Any]], model: str
) -> tuple[ServerKind, dict[str, Any]]:
    """Return the kind of a server, and its description of a model."""
    if not listed:
        return by_description(await _fetch_object(root, "/openapi.json")), {}
    kind = by_models(listed, model)
    # a server of one model may answer by any name, as llama-server does
    card = next((card for card in listed if card["id"] == model or len(listed) == 1), {})
    if kind.name == "unilect":
        card = await _fetch_object(server, f"/models/{quote(model)}")
    elif kind is UNKNOWN and card.keys() <= _BARE and await _is_ollama(root):
        kind = OLLAMA  # a model of a name space other than its library's
    return kind, card


#: All that Ollama says of a model.
_BARE = frozenset({"id", "object", "created", "owned_by"})


async def _is_ollama(root: HttpServer) -> bool:
    try:
        return (await root.get("/")).strip() == b"Ollama is running"
    except UnilectError:
        return False


async def _fetch_object(server: HttpServer, path: str) -> dict[str, Any]:
    """Return the JSON object at a path; an empty one for any other answer."""
    try:
        return _object(await server.get(path))
    except UnilectError:
        return {}


async def _in_time(server: HttpServer, path: str) -> dict[str, Any]:
    """As `_fetch_object`; an empty object, too, where nothing comes in time."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await _fetch_object(server, path)
    except TimeoutError:
        return {}


def _object(body: bytes) -> dict[str, Any]:
    value = plain(body)
    return value if isinstance(value, dict) else {}
