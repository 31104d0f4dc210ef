"""
Requests made fit for a model: its settings and its context, the parameters and the kinds of requests that its backend honours.

Nothing here waits or remembers: what a request becomes depends on the request, the model and what a backend can do.
"""

from collections.abc import Collection
from typing import NamedTuple, TypeVar

from unilect.api.backend import Capabilities
from unilect.api.parameters.constraints import normalize_aliases, rename_param
from unilect.api.parameters.foreign import CONSTRAINTS
from unilect.api.parameters.rules import Settings, limit_tokens, resolve_parameters
from unilect.core.errors import InvalidRequest, UnilectError, UnsupportedOperation
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    ChatRequest,
    EmbeddingRequest,
    ImagePart,
    TextRequest,
)
from unilect.models.model import Model

_Read = TypeVar("_Read", EmbeddingRequest, RerankRequest)


class Fitted(NamedTuple):
    """
    A request as it is for a backend of a model.

    Attributes:
        request: The request.
        ignored: The parameters that were left out.
        lowered: The limit of tokens that was lowered; empty for none.
        names: What the client calls a parameter that has another name by now.
    """

    request: TextRequest
    ignored: tuple[str, ...] = ()
    lowered: str = ""
    names: dict[str, str] = {}


def adapt(
    request: TextRequest,
    model: Model,
    settings: Settings,
    can: Capabilities,
    optional: Collection[str] = (),
    allowed: int | None = None,
) -> Fitted:
    """
    Make a request fit for a backend of a model.

    Args:
        settings: The model's, as they were when the request came.
        optional: Parameters that are left out where the backend lacks them, instead of refused.
        allowed: The most tokens of an answer that its caller's limits leave.

    Raises:
        UnilectError: The backend cannot answer such a request; it names the parameters that the client has sent.
    """
    names: dict[str, str] = {}
    if request.response_format is not None or not CONSTRAINTS.isdisjoint(request.raw_fields):
        request, names = normalize_aliases(request, can)
    lowered = ""
    try:
        request = settings.apply(request, can)
        request, ignored = resolve_parameters(request, can, settings.unsupported, optional)
        limit = request.token_limit
        if limit is not None or allowed is not None:
            request, lowered = _limit_tokens(request, limit, can.context, allowed)
        check_kind(request, model, can)
    except UnilectError as error:
        raise rename_param(error, names) from error.__cause__
    return Fitted(request, ignored, lowered, names)


def adapt_inputs(request: _Read, model: Model, can: Capabilities) -> tuple[_Read, tuple[str, ...]]:
    """
    Make a request for vectors or scores fit for a backend of a model; returns the parameters that are ignored, too.

    Raises:
        UnilectError: The model does not answer such a request.
    """
    if isinstance(request, RerankRequest) and not can.rerank:
        raise UnsupportedOperation(
            f"The model `{model.name}` is no reranker: it does not rank documents. Use a model that does; "
            "GET /v1/models/{model} says `rerank` of each."
        )
    fitted = resolve_parameters(request, can, model.settings.unsupported)
    if isinstance(request, EmbeddingRequest) and not can.embeddings:
        raise not_for(model, "embeddings", can)
    return fitted


def _limit_tokens(
    request: TextRequest, limit: int | None, context: int | None, allowed: int | None
) -> tuple[TextRequest, str]:
    """Return the request for no more tokens than a context, and the caller's limits, leave; the parameter that was lowered, if any."""
    if limit is None and allowed is not None and (context is None or allowed < context):
        name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        return request.changed(**{name: allowed}), name
    if limit is None or context is None or limit <= context:
        return request, ""
    return limit_tokens(request, context)


def is_plain(request: TextRequest) -> bool:
    """Return True for a chat of texts, without tools, that asks for one free text: nothing is made up for, whatever its backend lacks."""
    if not isinstance(request, ChatRequest) or request.tools or request.token_limit == 0:
        return False
    for unset in (request.n, request.best_of, request.response_format, request.grammar):
        if unset is not None:
            return False
    for message in request.messages:
        if message.is_of_tools or isinstance(message.content, list):
            return False
    return True


def check_kind(request: TextRequest, model: Model, capabilities: Capabilities) -> None:
    """
    Check that a model answers requests of this kind, with the parts that this one has.

    Raises:
        InvalidRequest: It does not.
    """
    if isinstance(request, ChatRequest):
        if not capabilities.chat:
            # what writes text, and cannot chat, does not know how turns are written
            if capabilities.completions and "chat completions" not in capabilities.why_not:
                raise _no_template(model)
            raise not_for(model, "chat completions", capabilities)
        for number, message in enumerate(() if capabilities.vision else request.messages):
            if isinstance(message.content, list) and any(
                isinstance(part, ImagePart) for part in message.content
            ):
                raise _no_image(model, f"messages[{number}].content")
    elif not capabilities.completions:
        raise not_for(model, "completions", capabilities)


def not_for(model: Model, what: str, capabilities: Capabilities) -> InvalidRequest:
    """Return an error for a request of a kind that a model does not answer."""
    why = f": {capabilities.why_not[what]}" if what in capabilities.why_not else ""
    return InvalidRequest(
        f"The model `{model.name}` does not answer {what}{why}. GET /v1/models lists the models.",
        param="model",
    )


def _no_image(model: Model, where: str) -> InvalidRequest:
    return InvalidRequest(
        # words at which Claude Code goes on without its images; at others it sends them again for ever
        f"Could not process image: `{where}` holds an image, and the model `{model.name}` reads text only.",
        param=where,
    )


def _no_template(model: Model) -> InvalidRequest:
    return InvalidRequest(
        f"The model `{model.name}` has no chat template, so it answers no chat completions. Use /v1/completions, or "
        "configure `chat_template` for it: the name of a format such as `chatml`, or a Jinja file.",
        param="model",
    )
