"""
The messages between the gateway, the process that holds its connection to Ray, and the replicas, inside of `frames`.

A call for a replica passes the process in the middle unread, as do its replies.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from unilect.api.backend import Capabilities, Description, NativeFacts
from unilect.core.errors import BackendError
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    Request,
)
from unilect.fleet.files import Item
from unilect.wire import frames

Ask: TypeAlias = Literal["deploy", "call"]
FACTS = "facts"
#: the operations whose replies are batches of events, and what they get
GENERATES: dict[str, Any] = {"chat": ChatRequest, "completion": CompletionRequest}


class Counted(Struct):
    """The text to count the tokens of: one of the three."""

    chat: ChatRequest | None = None
    completion: CompletionRequest | None = None
    prompt: Prompt | None = None


#: the methods of a backend that are called from elsewhere: the types of what they get, and what they return
METHODS: dict[str, tuple[Any, Any]] = {
    "embed": (tuple[EmbeddingRequest], Embeddings),
    "rerank": (tuple[RerankRequest], Ranking),
    "tokenize": (tuple[str, bool], list[int]),
    "tokenize_plain": (tuple[str, bool], list[int]),
    "detokenize": (tuple[list[int]], str),
    "pieces": (tuple[list[int]], list[bytes]),
    "render": (tuple[ChatRequest], str),
    "count_tokens": (tuple[Counted], int),
}


class Asked(Struct):
    """
    A request to the process in the middle.

    Attributes:
        what: Bring a model to the cluster; hand a call to one of its replicas.
        model: Its name.
        session: Calls with the same one go to the same replica where they can; empty for any.
        body: The Deployment, or the Call.
    """

    what: Ask
    model: str = ""
    session: str = ""
    body: Raw = Raw(b"\xc0")


class Deployment(Struct):
    """
    A model, as it is to run on the cluster.

    Attributes:
        name: Its name.
        version: Of unilect, which the nodes must have, too.
        source: Where it is; a path is one on the nodes.
        config: Its settings, as JSON.
        threads: Processor threads of each replica's engine.
        least, most: How many replicas; the number follows the requests in flight where they differ.
        up_after_s, down_after_s: How long there are to be more or fewer requests before the number follows.
        parallel: The requests that a replica answers at a time.
        in_flight: Those that it takes, with those that wait in it.
        resources: What Ray keeps for each replica, as `ray.remote` names it.
        start_timeout_s: How long a replica may take until it is ready.
        files: What its settings name and the gateway has: nodes that lack it fetch it from there.
        cache_bytes: How much a node keeps of such files.
        several_callers: See `BackendSpec`. Replicas that start go by it; it is no reason to replace others.
    """

    name: str
    version: str
    source: str
    config: bytes
    threads: int
    least: int
    most: int
    up_after_s: float
    down_after_s: float
    parallel: int
    in_flight: int
    resources: dict[str, Any]
    start_timeout_s: float
    files: list[Item] = []
    cache_bytes: int = 0
    several_callers: bool = False


class Facts(Struct):
    """A replica's facts of its engine: the capabilities, and the model."""

    capabilities: Capabilities
    description: Description
    native: NativeFacts


def read(kind: Any, body: Raw) -> Any:
    """
    A value of a type.

    Raises:
        msgspec.DecodeError: It is none.
    """
    return msgspec.msgpack.decode(body, type=kind)


def taken_on(node: str) -> bytes:
    """The first frame of each answer: a replica of this node has taken the call, and it goes to no other one."""
    return value(node)


def node_of(frame: bytes) -> str:
    """
    The node that `taken_on` names.

    Raises:
        BackendError: The frame says something else.
    """
    try:
        return msgspec.msgpack.decode(frames.reply_in(frame).value, type=str)
    except msgspec.DecodeError as error:
        raise BackendError(
            "A replica began its answer with an invalid frame. Have all nodes run the same version of unilect."
        ) from error


def given(what: Any) -> Raw:
    """
    Encode the arguments of a call for a frame. The raw fields of a request are JSON, which msgpack has as bytes.

    Raises:
        InvalidRequest: They hold a number that no frame can hold.
    """
    return frames.raw(_with_fields(what, lambda json: Raw(msgspec.msgpack.encode(bytes(json)))))


def taken(kind: Any, body: Raw) -> Any:
    """
    Decode the arguments that `given` has encoded.

    Raises:
        msgspec.DecodeError: The body is not of this kind.
    """
    return _with_fields(
        read(kind, body), lambda told: Raw(msgspec.msgpack.decode(told, type=bytes))
    )


def _with_fields(what: Any, change: Callable[[Raw], Raw]) -> Any:
    """A request with other raw fields, or what holds requests."""
    if isinstance(what, tuple):
        return tuple(_with_fields(one, change) for one in what)
    if isinstance(what, Counted):
        return Counted(_with_fields(what.chat, change), _with_fields(what.completion, change), what.prompt)  # fmt: skip
    if not isinstance(what, Request) or not what.raw_fields:
        return what
    fields = {name: change(of) for name, of in what.raw_fields.items()}
    return replace(what, raw_fields=fields)


def value(of: Any) -> bytes:
    """The frame of a value, which is the last."""
    return frames.packed(frames.Reply(value=frames.raw(of), last=True))
