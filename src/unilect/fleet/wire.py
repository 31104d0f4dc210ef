"""
The messages between the gateway, the process that holds its connection to Ray, and the replicas, inside of `frames`.

A call for a replica passes that process unread, as do its replies.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from unilect.api.backend import Backend, Capabilities, Description, NativeFacts
from unilect.config.model import ModelConfig, Replicas
from unilect.core.errors import BackendError
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Prompt,
    Request,
    TextRequest,
)
from unilect.fleet.files import Item
from unilect.wire import frames

Action: TypeAlias = Literal["deploy", "call"]
FACTS = "facts"
#: the operations whose replies are batches of events, and what they get
GENERATES: dict[str, Any] = {"chat": ChatRequest, "completion": CompletionRequest}
#: the methods of a backend that are called from elsewhere, and the types of what they get; one that takes texts of several types has a
#: row for each, with the type's name behind a colon
METHODS: dict[str, Any] = {
    "embed": tuple[EmbeddingRequest],
    "rerank": tuple[RerankRequest],
    "tokenize": tuple[str, bool],
    "tokenize_plain": tuple[str, bool],
    "detokenize": tuple[list[int]],
    "pieces": tuple[list[int]],
    "render": tuple[ChatRequest],
    "count_tokens:chat": tuple[ChatRequest],
    "count_tokens:completion": tuple[CompletionRequest],
    "count_tokens:prompt": tuple[Prompt],
}


class DriverRequest(Struct):
    """
    A request to the process that holds the connection.

    Attributes:
        action: Bring a model to the cluster; hand a call to one of its replicas.
        model: Its name.
        session: Calls with the same one go to the same replica where they can; empty for any.
        body: The Deployment, or the Call.
    """

    action: Action
    model: str
    body: Raw
    session: str = ""


class Deployment(Struct):
    """
    A model, as it is to run on the cluster.

    Attributes:
        name: Its name.
        version: Of unilect, which the nodes must have, too.
        config: The settings of one replica; paths are those of the gateway.
        replicas: How many there are to be.
        resources: What Ray keeps for each replica, as `ray.remote` names it.
        files: What its settings name and the gateway has: nodes that lack it fetch it from there.
        cache_bytes: How much a node keeps of such files.
        several_callers: See `BackendSpec`. Replicas that start go by it; it is no reason to replace others.
    """

    name: str
    version: str
    config: ModelConfig
    replicas: Replicas
    resources: dict[str, Any]
    files: list[Item] = []
    cache_bytes: int = 0
    several_callers: bool = False


class Facts(Struct):
    """A replica's facts of its engine: the capabilities, and the model."""

    capabilities: Capabilities
    description: Description = Description()
    native: NativeFacts = NativeFacts()


def facts_of(engine: Backend) -> Facts:
    """Return the facts of an engine in a form that frames hold."""
    can = engine.capabilities
    if can.template_names is not None:  # as yet a template that nobody has looked into
        can = msgspec.structs.replace(can, template_names=frozenset(can.template_names))
    return Facts(can, engine.describe(), engine.native_facts())


def kind_of(text: TextRequest | Prompt) -> str:
    """Return the name of a text's type, as operations have it."""
    if isinstance(text, ChatRequest):
        return "chat"
    return "completion" if isinstance(text, CompletionRequest) else "prompt"


def value(of: Any) -> bytes:
    """Encode the frame of a value, which is the last."""
    return frames.pack(frames.Reply(value=frames.raw(of), last=True))


def node_of(frame: bytes) -> str:
    """
    Decode the first frame of an answer: the value that is the id of the node whose replica has taken the call, which goes to no other one.

    Raises:
        BackendError: The frame says something else.
    """
    try:
        return msgspec.msgpack.decode(frames.reply_in(frame).value, type=str)
    except msgspec.DecodeError as error:
        raise BackendError(
            "A replica began its answer with an invalid frame. Have all nodes run the same version of unilect."
        ) from error


def encode_arguments(arguments: Any) -> Raw:
    """
    Encode the arguments of a call for a frame. The raw fields of a request are JSON, which msgpack has as bytes.

    Raises:
        InvalidRequest: They hold a number that no frame can hold.
    """
    return frames.raw(
        _change_raw_fields(arguments, lambda json: Raw(msgspec.msgpack.encode(bytes(json))))
    )


def decode_arguments(kind: Any, body: Raw) -> Any:
    """
    Decode the arguments that `encode_arguments` has encoded.

    Raises:
        msgspec.DecodeError: The body is not of this kind.
    """
    arguments = msgspec.msgpack.decode(body, type=kind)
    return _change_raw_fields(
        arguments, lambda field: Raw(msgspec.msgpack.decode(field, type=bytes))
    )


def _change_raw_fields(arguments: Any, change: Callable[[Raw], Raw]) -> Any:
    """Return a request, or each of a tuple, with other raw fields."""
    if isinstance(arguments, tuple):
        return tuple(_change_raw_fields(one, change) for one in arguments)
    if not isinstance(arguments, Request) or not arguments.raw_fields:
        return arguments
    fields = {name: change(field) for name, field in arguments.raw_fields.items()}
    return replace(arguments, raw_fields=fields)
