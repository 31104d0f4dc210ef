"""Records of the store: what its tables hold, as types without a database."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from unilect.core.errors import LedgerUnavailable

#: The statuses of a response that a server works on.
RUNNING = ("queued", "in_progress")
#: The status of a ledger row of which its client was told later that it could not be kept.
CORRECTED = LedgerUnavailable.status
#: Columns that usage can be summed by.
PARTS = ("key", "model", "day")


class Item(Struct, array_like=True):
    """
    One item of an input or an output.

    Attributes:
        id: Made by the caller of the store.
        body: Its JSON, with its id.
    """

    id: str
    body: bytes


class StoredResponse(Struct):
    """
    One response.

    Attributes:
        owner: Who may see it.
        status: OpenAI's, such as `completed`.
        body: The response object as JSON.
        input, output: Its own items, without those of its ancestors.
        parent: The id of the response before it.
        conversation: The id of the conversation that it belongs to.
        created_at: Seconds since 1970.
        events: The events of its stream, of one that runs in the background.
        instance: The server that works on it, see `ResponseStore.touch`.
    """

    id: str
    owner: str
    status: str
    body: bytes
    input: list[Item]
    output: list[Item]
    parent: str | None
    conversation: str | None
    created_at: float
    events: bytes | None = None
    instance: str = ""

    def payload_bytes(self) -> int:
        """Add up the bytes of its texts."""
        size = len(self.body) + sum([len(item.body) for item in self.input + self.output])
        return size if self.events is None else size + len(self.events)


class Key(Struct, frozen=True, kw_only=True):
    """
    One API key.

    Attributes:
        id: Of the key itself; it outlives its secrets.
        name: What people call it; no two keys that can be used have the same.
        owner: Whose it is; empty for nobody's.
        models: The names of the models that it may use; None for all.
        limits: Its limits, by name.
        created_at, expires_at, revoked_at: Seconds since 1970; None for never.
    """

    id: str
    name: str
    owner: str = ""
    models: tuple[str, ...] | None = None
    limits: Mapping[str, float] = {}
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_usable(self, now: float) -> bool:
        """Return True if it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Secret(Struct, frozen=True, kw_only=True):
    """
    One secret of a key.

    Attributes:
        key: Whose it is.
        digest: Of its text.
        expires_at: Seconds since 1970, of a secret that was replaced; None for as long as the key.
    """

    key: Key
    digest: bytes
    expires_at: float | None = None


class KeyChanges(NamedTuple):
    """
    Changes of keys since a server looked.

    Attributes:
        number: What to ask with the next time.
        ids: The ids of the keys that have changed and are still there.
        deleted: Keys have been deleted.
        required: The number of the change with which running servers were told to ask for keys; 0 for none.
        has_keys: There are keys, also such as cannot be used any more.
    """

    number: int
    ids: list[str]
    deleted: bool
    required: int
    has_keys: bool


class LedgerRow(Struct, frozen=True, kw_only=True):
    """
    One request in the ledger.

    Attributes:
        id: Unique among all servers of the store.
        at: When the request came, seconds since 1970.
        key: The id of the caller's key.
        owner: Whose key it is.
        model: The model that was asked for.
        backend: Where the answer came from, without credentials.
        dialect, endpoint: What was called.
        prompt, cached, completion: Tokens; `cached` is a part of `prompt`.
        first_token_ms: Milliseconds from the request to its first token; None where there was none.
        duration_ms: Milliseconds from the request to its end.
        status: The HTTP status; 499 where the client has left, or the server has died.
        finish: The finish reason of the last choice; `lost` where the server has died.
        cost: Millionths of the currency.
    """

    id: str
    at: float
    key: str = ""
    owner: str = ""
    model: str = ""
    backend: str = ""
    dialect: str = ""
    endpoint: str = ""
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    first_token_ms: float | None = None
    duration_ms: float = 0.0
    status: int = 200
    finish: str = ""
    cost: int = 0


class ModelEvent(Struct, frozen=True):
    """
    Event of a model: of its place in memory, or of a process of its.

    Attributes:
        model: The model's name.
        at: Seconds since 1970.
        server: The process to whose model it happened, as `HOST/PID`.
        kind: The kind, one word.
        reason: A sentence with the numbers.
        numbers: The same by name.
    """

    model: str
    at: float
    server: str
    kind: str
    reason: str
    numbers: Mapping[str, float]


class KeyUsage(Struct, frozen=True):
    """Use of a model by a key: tokens of prompts and answers, and millionths of the currency."""

    key: str
    owner: str
    model: str
    tokens: int
    cost: int


class UsageSum(Struct, frozen=True, kw_only=True):
    """
    Sum over requests.

    Attributes:
        key, model, day: Whose, of which model, and on which day (days since 1970, UTC); None where the sum is over all.
        name: What people call the key; its id, where the store does not have it.
        requests: How many.
        prompt, completion: Tokens.
        cost: Millionths of the currency.
    """

    key: str | None
    name: str | None
    model: str | None
    day: int | None
    requests: int
    prompt: int
    completion: int
    cost: int
