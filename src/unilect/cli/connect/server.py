"""The questions to a running server before its lines are written: its models and their contexts."""

from typing import NamedTuple
from urllib.parse import urlsplit

from unilect.cli import _running_server as running
from unilect.config.values import nearest
from unilect.core.errors import ConfigError, join_names
from unilect.http.base_url import root_of
from unilect.http.client import HttpServer
from unilect.runtime.redact import redact

DEFAULT_URL = "http://127.0.0.1:8000/v1"
VARIABLE = "UNILECT_API_KEY"
#: What stands for the key where one is shown.
PLACEHOLDER = "YOUR_KEY"
MAX_MODELS = 20  # more fill no list that a person chooses from


class Model(NamedTuple):
    """
    A model, as clients need to know it.

    Attributes:
        name: Its name.
        context: Its context in tokens, if the server tells it.
        vision: It takes images.
    """

    name: str
    context: int | None = None
    vision: bool = False

    @property
    def output(self) -> int | None:
        """The part of the context that an answer may take; the rest is for the conversation."""
        return None if self.context is None else self.context // 4


class Server(NamedTuple):
    """
    A running server.

    Attributes:
        url: Its base URL for clients of OpenAI's API, with `/v1`.
        models: Its chat models; the chosen one is the first.
        needs_key: A key was given for it.
        key: What is put where only the key itself can be put; a placeholder where that is shown.
        exported: The environment has the key already.
        further: How many models it has that were not asked for.
    """

    url: str
    models: tuple[Model, ...]
    needs_key: bool
    key: str = PLACEHOLDER
    exported: bool = False
    further: int = 0

    @property
    def root(self) -> str:
        """Its URL without `/v1`, for clients of other APIs."""
        return root_of(self.url)

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self.models[0]

    @property
    def is_near(self) -> bool:
        """Return True if its address works on this machine only."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


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
    found = [(name, card) for name, card in cards if card.unilect.state not in ("out", "failed")]
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
