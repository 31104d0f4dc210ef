"""Which kinds of requests a model answers."""

from unilect.backend import Capabilities
from unilect.errors import InvalidRequest
from unilect.requests import ChatRequest, CompletionRequest, ImagePart
from unilect.routing.registry import Model


def check_kind(
    request: ChatRequest | CompletionRequest, model: Model, capabilities: Capabilities
) -> None:
    """
    A model answers requests of a kind, with the parts that this one has.

    Raises:
        InvalidRequest: It does not.
    """
    if isinstance(request, ChatRequest):
        if not capabilities.chat:
            # what writes text, and cannot chat, does not know how turns are written
            if capabilities.completions and "chat completions" not in capabilities.why_not:
                raise _no_template(model)
            raise not_for(model, "chat completions", capabilities)
        if not capabilities.vision:
            _check_no_image(request, model)
    elif not capabilities.completions:
        raise not_for(model, "completions", capabilities)


def _check_no_image(request: ChatRequest, model: Model) -> None:
    for number, message in enumerate(request.messages):
        if isinstance(message.content, list) and any(
            isinstance(part, ImagePart) for part in message.content
        ):
            where = f"messages[{number}].content"
            raise InvalidRequest(
                # words at which Claude Code goes on without its images; at others it sends them again for ever
                f"Could not process image: `{where}` holds an image, and the model `{model.name}` reads text only.",
                param=where,
            )


def not_for(model: Model, what: str, capabilities: Capabilities) -> InvalidRequest:
    """An error for a request of a kind that a model does not answer."""
    why = f": {capabilities.why_not[what]}" if what in capabilities.why_not else ""
    return InvalidRequest(
        f"The model `{model.name}` does not answer {what}{why}. GET /v1/models lists the models.",
        param="model",
    )


def _no_template(model: Model) -> InvalidRequest:
    return InvalidRequest(
        f"The model `{model.name}` has no chat template, so it answers no chat completions. Use /v1/completions, or "
        "configure `chat_template` for it: the name of a format such as `chatml`, or a Jinja file.",
        param="model",
    )
