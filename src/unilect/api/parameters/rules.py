"""
Resolves the parameters of a request: whether the backend honours each, and what happens if it does not.

No parameter is dropped silently. A parameter at its neutral value counts as unset. A parameter of another endpoint is refused, and
so is a field of another server's that would change the answer. An unknown field is passed on to a backend with `passes_unknown`,
and reported in `ignored` for any other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from unilect.api.backend import Capabilities, Support
from unilect.api.parameters import foreign
from unilect.api.parameters.prefixes import without_billing
from unilect.constraints.schema import names
from unilect.core.bounds import MAX_NAME
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import (
    SYSTEM_ROLES,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    LoraScale,
    Request,
)

Unsupported: TypeAlias = Literal["refuse", "report"]
RequestT = TypeVar("RequestT", bound=Request)
GenerationT = TypeVar("GenerationT", bound=GenerationRequest)
_Names: TypeAlias = Collection[str]

#: About the caller or the bookkeeping: they change no answer, and every backend may ignore them.
ACCEPTED = names(
    "user metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options store"
)

#: What the service makes up for in a chat where the backend lacks it: it stands in the prompt, and the answer is read for it.
EMULATED = names("tools tool_choice parallel_tool_calls functions function_call response_format")
#: What agents send to every model, also to one that can neither think nor be brief; an API that agents speak leaves it out for such.
AGENTS_SEND = ("reasoning_effort", "enable_thinking", "verbosity")
_MAX_BIAS_TEXT = 64  # characters
_NOT_KEPT = "store"  # accepted, and yet a promise that no backend keeps: answers are not stored
_HONOURED = frozenset({"native", "emulated", "accepted"})

#: The values at which a parameter asks for nothing; None, False, 0, "", [] and {} are neutral for every parameter but these.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(names("max_tokens max_completion_tokens enable_thinking"), ()),
    **dict.fromkeys(
        names(
            "n best_of num_beams temperature top_p typical_p repeat_penalty repetition_penalty dynatemp_exponent"
        ),
        (1,),
    ),
    **dict.fromkeys(names("seed adaptive_target id_slot thinking_budget_tokens"), (-1,)),
    **dict.fromkeys(names("top_k top_n_sigma t_max_predict_ms"), (-1, 0)),
    **dict.fromkeys(names("tool_choice function_call"), ("none", "auto")),
    **dict.fromkeys(names("parallel_tool_calls add_generation_prompt"), (True,)),
    "modalities": (["text"], []),
    "verbosity": ("medium",),
    "logprobs": (False,),
    "samplers": ("", [], *(order.split(";") for order in foreign.SAMPLER_ORDERS)),
    "encoding_format": ("float",),
    "reasoning_format": ("", "auto", "deepseek"),
}
#: What has no effect while another parameter is neutral.
_SWITCHED_BY = {
    **dict.fromkeys(
        names("dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers"),
        "dry_multiplier",
    ),
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    "adaptive_decay": "adaptive_target",
}
#: Any value below zero switches it off; SillyTavern sends -0.01.
_OFF_BELOW_ZERO = frozenset({"adaptive_target", "top_n_sigma", "t_max_predict_ms"})
#: The endpoints, and what is asked there.
ENDPOINTS: dict[str, type[Request]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
}
#: Without a word about them an answer of another endpoint than theirs is the same, and the text of one that does not honour them.
_WITHOUT_EFFECT = names("stream_options cache_prompt timings_per_token return_progress")
#: An answer that was to be bound to a form is never free, whatever the model's settings say.
CONSTRAINTS = foreign.CONSTRAINTS | {"response_format", "grammar"}
#: What a prompt is made of, beside the settings of its template, and where it comes from.
_OF_PROMPTS = {
    "messages": "send `messages` beside it",
    "tools": "send `tools` beside it",
    "add_generation_prompt": "send `add_generation_prompt` beside it",
    "continue_final_message": "send `continue_final_message` beside it",
    "bos_token": "the model has it",
    "eos_token": "the model has it",
}
_NEUTRAL_BYTES = 1024  # no neutral value is as long
_HEADER_NAMES = 32  # a client gives up on headers of some kilobytes
_HEADER_NAME = 64
_NO_FIELD = object()
_NOT_HONOURED = "this model's backend does not support it"


def resolve_parameters(
    request: RequestT, can: Capabilities, unsupported: Unsupported = "refuse", optional: _Names = ()
) -> tuple[RequestT, tuple[str, ...]]:
    """
    Resolve the parameters of a request for a backend.

    Args:
        unsupported: *refuse* a request with a parameter that the backend refuses, or *report* it as ignored, as one of `optional` always is.

    Returns:
        The request without the ignored parameters, and their names.

    Raises:
        UnsupportedParameter: A parameter has an effect and is not honoured.
    """
    ignored: list[str] = []
    fields, kept = parameters_of(type(request)), _ignorable_fields(type(request))
    unlisted: Support | None = "native" if can.passes_unknown else None
    emulated = EMULATED if isinstance(request, ChatRequest) else ()
    for name in request.raw_fields or collect_fields(request):
        if name in kept:
            continue
        if name in fields and name != _NOT_KEPT:
            support = can.parameters.get(name, unlisted)
        else:
            support = _support(request, name, can, unlisted)
        if support in _HONOURED or name in emulated or is_neutral(request, name):
            continue
        if _is_refused(name, support, unsupported, optional):
            raise _refusal_of(name, fields)
        ignored.append(name)
    if not ignored and getattr(request, "chat_template_kwargs", None) is None:
        return request, ()
    return _left(request, ignored, can)


def _is_refused(
    name: str, support: Support | None, unsupported: Unsupported, optional: _Names = ()
) -> bool:
    """Return True if a parameter that is not honoured makes a request invalid, and is not ignored."""
    strict = unsupported == "refuse" and not (name in _WITHOUT_EFFECT or name in optional)
    return (support == "refused" and strict) or name in CONSTRAINTS


def list_unhonoured(
    kind: type[Request], can: Capabilities, unsupported: Unsupported
) -> dict[str, str]:
    """Return the parameters of an endpoint that a backend does not honour, by name, each with what becomes of it and why."""
    found = dict[str, str]()
    unlisted: Support | None = "native" if can.passes_unknown else None
    emulated = EMULATED if kind is ChatRequest else ()
    for name in sorted(parameters_of(kind) - _ignorable_fields(kind)):
        support = None if name == _NOT_KEPT else can.parameters.get(name, unlisted)
        if support in _HONOURED or name in emulated:
            continue
        why = foreign.INSTEAD.get(name, _NOT_HONOURED)
        refused = _is_refused(name, support, unsupported)
        found[name] = f"refused: {why}" if refused else "ignored, and named in X-Unilect-Ignored"
    return found


def _left(
    request: RequestT, ignored: list[str], can: Capabilities
) -> tuple[RequestT, tuple[str, ...]]:
    """
    A request without what is ignored, also of what its model's chat template does not ask for; and the names of all that.

    Raises:
        InvalidRequest: What the template is told would replace what the request says elsewhere.
    """
    request = _without(request, ignored) if ignored else request
    given = getattr(request, "chat_template_kwargs", None)
    if not given or can.template_names is None:
        return request, tuple(ignored)
    for name in given:
        if name in _OF_PROMPTS:
            raise InvalidRequest(
                f"`chat_template_kwargs` has `{name}`, which is not a setting of the template: {_OF_PROMPTS[name]}.",
                param="chat_template_kwargs",
            )
    unused = [name for name in given if name not in can.template_names]
    if not unused:
        return request, tuple(ignored)
    left = {name: value for name, value in given.items() if name in can.template_names}
    told = [f"chat_template_kwargs.{name[:MAX_NAME]}" for name in unused]
    return request.changed(chat_template_kwargs=left or None), (*ignored, *told)


def honours(capabilities: Capabilities, name: str) -> bool:
    """Return True if a backend itself honours a parameter that any backend may have."""
    support = capabilities.parameters.get(name)
    return capabilities.passes_unknown if support is None else support in _HONOURED


def _without(request: RequestT, names: Collection[str]) -> RequestT:
    """A request that asks for none of these."""
    known = dict.fromkeys(parameters_of(type(request)).intersection(names))
    raw_fields = {name: raw for name, raw in request.raw_fields.items() if name not in names}
    return msgspec.structs.replace(request, raw_fields=raw_fields, **known)


def _support(
    request: Request, name: str, can: Capabilities, unlisted: Support | None
) -> Support | None:
    """
    Return the support of a field; None where it is ignored.

    Args:
        unlisted: That of a parameter that the backend does not list.

    Raises:
        InvalidRequest: Its name is too long.
    """
    if name == _NOT_KEPT:
        return None
    if len(name) > MAX_NAME:
        raise InvalidRequest(
            f"The request's body has a field whose name has {len(name)} characters ({name[:32]!r}...); at most {MAX_NAME} are read."
        )
    if name in _every_parameter():
        return None if name in _WITHOUT_EFFECT else "refused"
    support = can.parameters.get(name, unlisted)
    return "refused" if support is None and name in foreign.CHANGES_ANSWER else support


def _refusal_of(name: str, fields: frozenset[str]) -> UnsupportedParameter:
    """The error for a parameter that the backend lacks, or that another endpoint has."""
    if name in fields or name not in _every_parameter():
        return refusal(name, foreign.INSTEAD.get(name, _NOT_HONOURED))
    places = [path for path, kind in ENDPOINTS.items() if name in parameters_of(kind)]
    return UnsupportedParameter(
        f"The parameter `{name}` is not supported here: it belongs to {' and '.join(places)}. Remove it, or use that endpoint.",
        param=name,
    )


def fill_defaults(
    request: RequestT, defaults: Mapping[str, Any], can: Capabilities | None = None
) -> RequestT:
    """
    The request with these values for what it leaves out; a null that the client wrote is its own choice.

    Args:
        can: What the backend can do, which gets no value that it refuses: the client has not sent it.
    """
    missing = {
        name: value
        for name, value in defaults.items()
        if getattr(request, name, _NO_FIELD) is None
        and name not in request.raw_fields
        and not (can is not None and refuses(can, name))
    }
    return request.changed(**missing) if missing else request


def refuses(can: Capabilities, name: str) -> bool:
    """Return True if a backend refuses a parameter by its name, whatever its value."""
    return can.parameters.get(name) == "refused"


def limit_tokens(request: GenerationT, most: int) -> tuple[GenerationT, str]:
    """A request for at most so many tokens, and the name of the parameter that asks for more."""
    given = {name: getattr(request, name) for name in ("max_completion_tokens", "max_tokens")}
    names = [name for name, limit in given.items() if limit is not None and limit > most]
    return request.changed(**dict.fromkeys(names, most)), names[0]


def format_ignored(ignored: Sequence[str]) -> str:
    """The names for a header: clients choose them, so each is quoted like a part of a URL, and they are bounded."""
    names = [quote(name[:_HEADER_NAME], safe="") for name in ignored[:_HEADER_NAMES]]
    return ", ".join(names if len(ignored) <= _HEADER_NAMES else [*names, "..."])


def refusal(name: str, why: str = _NOT_HONOURED) -> UnsupportedParameter:
    """The error for a parameter that is not honoured."""
    return UnsupportedParameter(
        f"The parameter `{name}` is not supported here: {why}. Remove it, or use another model; "
        "GET /v1/models/{model} lists the support of each parameter.",
        param=name,
    )


def token_biases(
    given: Mapping[str, float | bool], tokens: int | None = None
) -> dict[int, float | bool]:
    """
    `logit_bias` by token id: what is added to a token, or false, which forbids it.

    Args:
        tokens: How many the model has, where that is known.

    Raises:
        InvalidRequest: A key is no token id, or not one of the model, or a value is true.
    """
    for token in given:
        if not _is_id(token):
            raise InvalidRequest(
                f"`logit_bias` has the key {token[:30]!r}; keys are token ids, as texts.",
                param="logit_bias",
            )
    return {int(token): value for token, value in text_biases(given, tokens)}


def text_biases(
    given: Mapping[str, float | bool], tokens: int | None = None
) -> list[tuple[int | str, float | bool]]:
    """
    `logit_bias` as pairs for llama.cpp: a key that is no number is a text, and stands for each of its tokens.

    Args:
        tokens: How many the model has, where that is known.

    Raises:
        InvalidRequest: A key is a long text, or no token of the model, or a value is true.
    """
    for token, value in given.items():
        if not _is_id(token):
            if token.lstrip("+-").isdecimal():
                raise InvalidRequest(
                    f"`logit_bias` has the key {token[:30]!r}, which is no token id.",
                    param="logit_bias",
                )
            if not 0 < len(token) <= _MAX_BIAS_TEXT:
                raise InvalidRequest(
                    f"`logit_bias` has a text of {len(token)} characters as a key; expected 1 to {_MAX_BIAS_TEXT}.",
                    param="logit_bias",
                )
        elif tokens is not None and int(token) >= tokens:
            raise InvalidRequest(
                f"`logit_bias` has the token id {token}, which the model does not have: it has {tokens}, from 0 on.",
                param="logit_bias",
            )
        if value is True:
            raise InvalidRequest(
                f"`logit_bias` has true for the token {token}; values are numbers, or false to forbid it.",
                param="logit_bias",
            )
    return [(int(token) if _is_id(token) else token, value) for token, value in given.items()]


def _is_id(token: str) -> bool:
    """Return True for a token id, as a text."""
    return token.isdecimal() and token.isascii() and len(token) <= 10


def lora_scales(given: Sequence[LoraScale], count: int, where: str) -> list[float]:
    """
    The scales of a model's LoRA adapters, of which those that are left out are 0.

    Args:
        count: The adapters of the model.
        where: The field that lists the scales; empty where the body is the list.

    Raises:
        InvalidRequest: There is no such adapter.
    """
    scales = [0.0] * count
    for place, wanted in enumerate(given):
        if wanted.id >= count:
            raise InvalidRequest(
                f"`{where}[{place}].id` is {wanted.id}; the model has {count} adapters, from 0 on. GET /lora-adapters lists them.",
                param=f"{where}[{place}].id",
            )
        scales[wanted.id] = wanted.scale
    return scales


def is_neutral(request: Request, name: str) -> bool:
    """True when a parameter of a request asks for nothing."""
    if name not in parameters_of(type(request)):
        return _is_neutral_raw(request, name)
    value = getattr(request, name)
    if value is None:
        return True
    if name in _SWITCHED_BY and is_neutral(request, _SWITCHED_BY[name]):
        return True
    if name in _OFF_BELOW_ZERO and value < 0:
        return True
    if isinstance(value, msgspec.Struct):
        return type(value).__name__ == "TextFormat"
    return value in _NEUTRAL.get(name, foreign.EMPTY)


def _is_neutral_raw(request: Request, name: str) -> bool:
    """The same of a field that this kind of request has no place for."""
    raw = request.raw_fields.get(name)
    if raw is None:
        return True
    if len(memoryview(raw)) > _NEUTRAL_BYTES:
        return False
    if bytes(raw) == b"null":
        return True
    elsewhere = name in _every_parameter()
    if not elsewhere and name not in foreign.CHANGES_ANSWER:
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    if elsewhere:
        return value is None or value in _NEUTRAL.get(name, foreign.EMPTY)
    if foreign.is_neutral(name, value, isinstance(request, ChatRequest)):
        return True
    return foreign.is_said(name, value, msgspec.structs.asdict(request))


def collect_fields(request: Request) -> dict[str, Any]:
    """
    The fields that are set in a request that another dialect built.

    Most of a hundred are not, and no step in Python is taken for these; with a false value, such as 0, one is for each.
    """
    names, values = request.__struct_fields__, msgspec.structs.astuple(request)
    given = list(filter(None, values))
    if len(given) + (not request.raw_fields) == len(values) - values.count(None):
        found = dict(zip(compress(names, values), given, strict=True))
    else:
        found = {name: value for name, value in zip(names, values, strict=True) if value is not None}  # fmt: skip
    found.pop("raw_fields", None)
    return found


@cache
def parameters_of(kind: type[Request]) -> frozenset[str]:
    """The parameters that a kind of request has a place for; an attribute alone is none."""
    return frozenset(kind.__struct_fields__) - {"raw_fields"}


@cache
def _ignorable_fields(kind: type[Request]) -> frozenset[str]:
    """Return the fields that every backend may leave to the server, or ignore."""
    return kind.gateway_fields | (ACCEPTED - {_NOT_KEPT})


@cache
def _every_parameter() -> frozenset[str]:
    """The parameters of all endpoints."""
    return frozenset().union(*map(parameters_of, ENDPOINTS.values()))


class Settings(NamedTuple):
    """
    The changes of a model to a request.

    Attributes:
        drops_billing: Claude Code's billing header is left out of its system messages.
        prepare: What is done to it then; None for nothing.
        defaults: Values for what it leaves out.
        unsupported: What happens to parameters that its backend refuses.
    """

    drops_billing: bool
    prepare: Callable[[Any], Any] | None
    defaults: Mapping[str, Any]
    unsupported: Unsupported

    def apply(self, request: Any, can: Capabilities | None = None) -> Any:
        """The request with all that it leaves out, but for defaults that a backend which can do so much refuses."""
        messages = request.messages if isinstance(request, ChatRequest) else ()
        if self.drops_billing and messages and messages[0].role in SYSTEM_ROLES:
            request = without_billing(request)
        if self.prepare is not None:
            request = self.prepare(request)
        return fill_defaults(request, self.defaults, can) if self.defaults else request
