"""GET /page/clients: the clients, and the lines of `unilect connect` for one, at the address by which a browser reaches this server."""

from typing import Any

from aiohttp import web

from unilect.core.errors import ConfigError, InvalidRequest
from unilect.http.base_url import split
from unilect.runtime.redact import redact
from unilect.web.connect.clients import CLIENTS
from unilect.web.connect.lines import GONE, MAX_MODELS, Model, Server
from unilect.web.route import Route, json_answer
from unilect.web.site import Site

_MAX_URL = 2000  # characters


def clients_route(site: Site) -> Route:
    """Return the route, which is for who has a key: the names of models are in the lines."""

    async def get_page_clients(request: web.Request) -> web.StreamResponse:
        """
        List the models that chat and the clients, with the lines of the one that `client` names.

        `url` is the base URL of this server, `model` the one that the client begins with.
        """
        url = _check_url(request.query.get("url", ""))
        chats = {
            one.name: Model(one.name, one.capabilities.context, bool(one.capabilities.vision))
            for one in site.service.models
            if one.capabilities.chat and one.state not in GONE
        }
        chosen = request.query.get("model") or next(iter(chats), "")
        if chats and chosen not in chats:
            raise InvalidRequest(
                f"`model` is `{chosen[:100]}`, and no model of this name chats now.", param="model"
            )
        first = {chosen: chats[chosen], **chats} if chats else {}
        models = tuple(first.values())[:MAX_MODELS]
        server = Server(url, models, site.keys.required)
        clients = [{"name": name, "title": one.title} for name, one in CLIENTS.items()]
        name = request.query.get("client", "")
        if name and name not in CLIENTS:
            raise InvalidRequest(f"`client` is `{name[:100]}`, which is none.", param="client")
        lines = _tell(name, server) if name and models else None
        body = {"models": list(chats), "clients": clients if models else [], "lines": lines}
        return json_answer(request, body)

    return Route("GET", "/page/clients", get_page_clients, summary="The lines of clients")


def _tell(name: str, server: Server) -> dict[str, Any]:
    """Return the lines of a client, where its files are by default."""
    client = CLIENTS[name]
    lines = client.lines(server, {})
    return {
        "name": name,
        "writes": bool(lines.files),
        "blocks": [one._asdict() for one in lines.blocks],
        "notes": lines.notes,
    }


def _check_url(url: str) -> str:
    """
    Return a base URL as clients take it.

    Raises:
        InvalidRequest: It is none, or holds credentials, which would be in the lines.
    """
    if len(url) > _MAX_URL:
        raise InvalidRequest(f"`url` is longer than {_MAX_URL} characters.", param="url")
    try:
        split(url)
    except ConfigError as error:
        raise InvalidRequest(f"`url`: {error}", param="url") from error
    if redact(url) != url:
        raise InvalidRequest("`url` holds credentials. Leave them out.", param="url")
    return url.rstrip("/")
