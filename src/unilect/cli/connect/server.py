"""The questions to a running server before its lines are written: its models and their contexts."""

from unilect.cli import _running_server as running
from unilect.config.values import nearest
from unilect.core.errors import ConfigError, join_names
from unilect.http.client import HttpServer
from unilect.runtime.redact import redact
from unilect.web.connect.lines import GONE, MAX_MODELS, Model, Server

DEFAULT_URL = "http://127.0.0.1:8000/v1"


def ask(url: str, key: str | None, chosen: str | None) -> Server:
    """
    Ask a running server for its models.

    Args:
        url: Its URL, with or without `/v1`.
        key: Its key.
        chosen: The model to use; default: the first one that chats.

    Raises:
        ConfigError: It does not answer or rejects the key, or has no such model.
    """
    base = running.with_path(url)
    if redact(base) != base:
        raise ConfigError(
            f"{redact(url)}: the URL holds credentials, which would be in the lines of every client. Leave them out, and give the key with --api-key."
        )
    with running.connect(url, key) as (runner, server):
        models, further = runner.run(_models(server, chosen))
    return Server(base.rstrip("/"), models, key is not None, further=further)


async def _models(server: HttpServer, chosen: str | None) -> tuple[tuple[Model, ...], int]:
    """Return the chat models, and how many more models there are."""
    names = await running.list_models(server)
    if chosen is not None and not await running.has_model(server, chosen, names):
        near = nearest(chosen, names)
        meant = f" Is `{near}` meant?" if near else ""
        raise ConfigError(
            f"--model {chosen}: the server has no such model.{meant} Its models: {join_names(names) or 'none'}."
        )
    order = list(dict.fromkeys([*([chosen] if chosen else []), *names]))
    cards = [(name, await running.describe_model(server, name)) for name in order[:MAX_MODELS]]
    found = [(name, card) for name, card in cards if card.unilect.state not in GONE]
    if (cards and not found) or (chosen is not None and found[0][0] != chosen):
        which = (
            f"--model {chosen}: this model" if chosen is not None else "None of the server's models"
        )
        does = "does not answer" if chosen is not None else "answers"
        raise ConfigError(f"{which} {does} now; `unilect ps` on the server says why.")
    if chosen is not None and not found[0][1].unilect.chat:
        raise ConfigError(f"--model {chosen}: this model does not chat. Name another one.")
    models = tuple(
        Model(name, card.unilect.context or card.max_model_len, bool(card.unilect.vision))
        for name, card in found
        if card.unilect.chat
    )
    if not models:
        raise ConfigError("The server has no models that chat. Start it with one.")
    return models, len(order[MAX_MODELS:])
