"""
Request bodies of llama.cpp's native protocol: the support and the name of each parameter, in either generation.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
         https://github.com/SJTU-IPADS/PowerInfer/blob/main/examples/server/server.cpp
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from unilect.api.backend import Support
from unilect.api.parameters.foreign import CONSTRAINTS
from unilect.api.parameters.rules import text_biases, token_biases
from unilect.api.parameters.support import declare_support, names
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    LLAMACPP_PARAMETERS,
    SAMPLER_LETTERS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    ImagePart,
    Message,
    Part,
    RefusalPart,
    TextPart,
    TextRequest,
)

MAX_IMAGES = 8
#: The names by which templates know the other roles.
ROLES: dict[str, str] = {"developer": "system", "function": "tool"}
_FIRST_IMAGE = 10  # llama.cpp's own client counts from here
_DATA_URL = re.compile(r"data:image/[\w.+-]{1,64};base64,")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n\v\f"
_APART = names("n_probs n_keep n_discard id_slot return_progress")
#: Parameters that a body holds as they are; other parameters are put right below.
SAMPLING = (
    *names(
        "temperature top_p min_p typical_p presence_penalty frequency_penalty repeat_last_n mirostat mirostat_tau mirostat_eta "
        "grammar ignore_eos"
    ),
    *(name for name in LLAMACPP_PARAMETERS if name not in _APART),
)
_FIELDS = (*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__)
# fields of ours, of which a client's is unknown; secrets; and what is put right below
_NOT_PASSED_ON = frozenset(_FIELDS) - {"raw_fields"} | {"api_key", "n_keep", "slot_id", "id_slot"}
_TOP_2023 = 20  # it tells no probability of a token that is not among the likeliest

_NATIVE = names(
    "n_probs n_keep id_slot return_progress top_k seed repeat_penalty repetition_penalty logit_bias max_tokens max_completion_tokens stop "
    "cache_prompt tokenize logprobs top_logprobs response_format suffix input_extra"
)
#: Beside those of no backend: what other servers know and becomes `response_format` or `grammar`, and what changes the server for
#: others or hides what is needed of an answer.
_REFUSED = {*CONSTRAINTS, "system_prompt", "n_cmpl"} - {"json_schema"}
_PARAMETERS: dict[str, Support] = declare_support(
    (*SAMPLING, *_NATIVE), names("n best_of echo encoding_format dimensions")
) | dict.fromkeys(_REFUSED, "refused")


class Generation(Struct, frozen=True):
    """
    The differences between the generations of the protocol.

    Attributes:
        parameters: The support of each parameter.
        slot: The name of the field that selects a slot.
        shifts: A full context is shifted without end, and the prompt truncated silently: counting prevents both.
        top_logprobs: The minimum of top log probabilities to request.
        max_in_flight: As in `Capabilities`: one slot is the default of 2023, and PowerInfer's answers are wrong with more.
    """

    parameters: Mapping[str, Support]
    slot: str
    shifts: bool = False
    top_logprobs: int = 1
    max_in_flight: int | None = None


#: It takes a seed and never uses it, and knows no schemas.
OF_2023 = Generation(
    _PARAMETERS
    | dict.fromkeys(
        ("seed", "response_format", "json_schema", "return_progress", "input_extra", "lora"),
        "refused",
    ),
    "slot_id",
    shifts=True,
    top_logprobs=_TOP_2023,
    max_in_flight=1,
)
OF_2025 = Generation(_PARAMETERS, "id_slot")


def body(
    request: TextRequest, generation: Generation, stop: Sequence[str], room: int | None
) -> dict[str, Any]:
    """
    Return the body for /completion, without the prompt.

    Args:
        stop: The template's stop sequences, before the request's own.
        room: The limit of tokens for the answer.

    Raises:
        InvalidRequest: The request has a value that llama.cpp does not support.
    """
    fields: dict[str, Any] = {
        name: raw for name, raw in request.raw_fields.items() if name not in _NOT_PASSED_ON
    }
    fields |= sampling_fields(request) | _rename_parameters(request, generation, room)
    words = [*stop, *(word for word in request.stop_words if word not in stop)]
    if words:
        fields["stop"] = words
    for name in ("id_slot", "slot_id"):
        if name in request.raw_fields:
            fields[generation.slot] = request.raw_fields[name]
    top = top_logprobs(request)
    if top is not None:
        fields["n_probs"] = max(top, generation.top_logprobs)
    check_one_constraint(request)
    if request.answer_schema is not None:
        fields["json_schema"] = request.answer_schema
    fields["stream"] = True
    fields["return_progress"] = True  # only then does 2025 notice a client that leaves early
    return fields


def sampling_fields(request: GenerationRequest, vocabulary: int | None = None) -> dict[str, Any]:
    """
    Make the fields that say how tokens are chosen.

    Args:
        vocabulary: How many tokens the model has, where that is known.

    Raises:
        InvalidRequest: `samplers` has an unknown letter, which llama.cpp drops silently; or a bias is none.
    """
    named = request.samplers
    if isinstance(named, str) and not set(named) <= set(SAMPLER_LETTERS):
        raise InvalidRequest(
            f"`samplers` has an unknown letter; llama.cpp's are {SAMPLER_LETTERS!r}. Use those, or a list of names.",
            param="samplers",
        )
    fields: dict[str, Any] = {
        name: value for name in SAMPLING if (value := getattr(request, name)) is not None
    }
    if request.top_k is not None:
        fields["top_k"] = max(request.top_k, 0)
    penalty = request.repeat_penalty or request.repetition_penalty
    if penalty is not None:
        fields["repeat_penalty"] = penalty
    if request.logit_bias is not None:
        fields["logit_bias"] = text_biases(request.logit_bias, vocabulary)
    return fields


def top_logprobs(request: GenerationRequest) -> int | None:
    """Return the number of requested top log probabilities; None for no log probabilities."""
    if isinstance(request, ChatRequest):
        top = (request.top_logprobs or 0) if request.logprobs else None
    else:
        top = request.logprobs if isinstance(request, CompletionRequest) else None
    return max(top or 0, request.n_probs) if request.n_probs else top


def _rename_parameters(
    request: GenerationRequest, generation: Generation, room: int | None
) -> dict[str, Any]:
    """Return the parameters that have another name or format there."""
    fields: dict[str, Any] = {"cache_prompt": request.cache_prompt is not False}
    limit = request.token_limit
    if limit is not None or room is not None:
        fields["n_predict"] = min(n for n in (limit, room) if n is not None)
    if request.seed is not None:
        fields["seed"] = request.seed % 2**32
    if request.logit_bias is not None and generation is OF_2023:
        token_biases(request.logit_bias)  # it would drop texts silently
    if (n_keep := request.raw_fields.get("n_keep")) is not None:
        # -1 keeps the beginning of a prompt that is cut and loses its newest text
        fields["n_keep"] = 0 if bytes(n_keep).startswith(b"-") else n_keep
    return fields


def check_one_constraint(request: GenerationRequest) -> None:
    """
    Check that a request has at most one constraint.

    Raises:
        InvalidRequest: It has both a grammar and a schema.
    """
    if request.grammar and request.answer_schema is not None:
        raise InvalidRequest(
            "`grammar` and `response_format` cannot be combined; send one of them.", param="grammar"
        )


def check_images(count: int) -> None:
    """
    Check the number of images in a conversation.

    Raises:
        InvalidRequest: There are too many.
    """
    if count > MAX_IMAGES:
        raise InvalidRequest(
            f"`messages` has {count} images; the maximum is {MAX_IMAGES}.", param="messages"
        )


def wrong_part(part: Part, where: str) -> InvalidRequest:
    """Make the error for a content part that llama.cpp does not support."""
    what = "this model supports text and images only"
    if isinstance(part, ImagePart):
        what = "an image must be a `data:image/...;base64,` URL"
    return InvalidRequest(f"`{where}`: {what}.", param=where)


def turns(
    conversation: Sequence[Message], marker: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """
    Return a conversation for a text-only template; the role `developer` becomes `system`, and `function` becomes `tool`.

    Args:
        marker: The marker for an image; None if images are numbered, as in 2023.

    Returns:
        The messages as templates know them, with a marker in place of each image; and the images, as base64, in order.

    Raises:
        InvalidRequest: A part is neither text nor an image as a `data:` URL.
    """
    images: list[str] = []
    out: list[dict[str, Any]] = []
    for number, message in enumerate(conversation):
        content = message.content
        if isinstance(content, list):
            where = f"messages[{number}].content"
            content = "\n".join(_part(part, where, images, marker) for part in content)
        role = ROLES.get(message.role, message.role)
        changed = msgspec.structs.replace(message, role=role, content=content or "")
        out.append(msgspec.to_builtins(changed))
    check_images(len(images))
    return out, images


def _part(part: Any, where: str, images: list[str], marker: str | None) -> str:
    match part:
        case TextPart(text) | RefusalPart(text):
            return text
        case ImagePart(image):
            found = _DATA_URL.match(image.url)
            data = image.url[found.end() :] if found is not None else ""
            # an image may be long, and a regular expression is slow
            if data and not data.encode().translate(None, _BASE64):
                images.append(data)
                return marker or f"[img-{_FIRST_IMAGE + len(images) - 1}]"
    raise wrong_part(part, where)


def prompt_fields(prompt: str | list[int], images: list[str], marker: str | None) -> dict[str, Any]:
    """Return the prompt fields, with its images in the format of the generation."""
    if not images:
        return {"prompt": prompt}
    if marker is not None:
        return {"prompt": {"prompt_string": prompt, "multimodal_data": images}}
    numbered = [{"data": data, "id": _FIRST_IMAGE + n} for n, data in enumerate(images)]
    return {"prompt": prompt, "image_data": numbered}


def infill_fields(request: CompletionRequest, prompt: str | list[int]) -> dict[str, Any]:
    """
    Return the texts before and after the gap, and those of other files, for /infill.

    Raises:
        InvalidRequest: The prompt is not text.
    """
    if not isinstance(prompt, str):
        raise InvalidRequest("`prompt` must be a string with `suffix`.", param="prompt")
    fields = {"input_prefix": prompt, "input_suffix": request.suffix or ""}
    return fields | ({"input_extra": request.input_extra} if request.input_extra else {})
