"""
The settings beside the text of a request of Ollama's: `options`, `format`, `think` and `keep_alive`, in OpenAI's words.

A number without a fraction is an integer, however it was written: some clients send every number as a float. null asks for nothing.

Source: https://github.com/ollama/ollama/blob/main/docs/modelfile.md
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from unilect.api.backend import Capabilities
from unilect.api.parameters.rules import parameters_of
from unilect.core.bounds import check_free_form
from unilect.core.durations import parse_duration
from unilect.core.errors import InvalidRequest
from unilect.core.requests import Request
from unilect.dialects.openai.completions import stop_words


class OllamaRequest(Request, frozen=True, kw_only=True):
    """The fields of all requests that load a model."""

    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The fields that are in no request of Ollama's."""
        return tuple(sorted(self.raw_fields.keys() - parameters_of(type(self))))

    @property
    def keep_alive_s(self) -> float | None:
        """The seconds that the model stays loaded; None where the request does not set them; errors as `seconds_of`."""
        return None if self.keep_alive is None else seconds_of(self.keep_alive)


Kind: TypeAlias = Literal["integer", "number", "boolean", "text or list of texts"]


def _kinds(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


#: Options that are OpenAI's or ours by the same name.
_SAME: dict[str, Kind] = {
    **_kinds("integer", "top_k seed repeat_last_n mirostat"),
    **_kinds("number", "temperature top_p min_p typical_p presence_penalty frequency_penalty"),
    **_kinds("number", "repeat_penalty mirostat_tau mirostat_eta"),
    "stop": "text or list of texts",
}
#: About how a model is loaded, which the server's configuration says; they change no answer.
_ACCEPTED: dict[str, Kind] = {
    **_kinds("integer", "num_keep num_batch num_gpu main_gpu num_thread draft_num_predict"),
    **_kinds("boolean", "use_mmap use_mlock numa low_vram"),
}
_OWN: dict[str, Kind] = _kinds("integer", "num_predict num_ctx")
_MOST_SECONDS = 10 * 365 * 86400.0  # a longer time is for ever
_ALL = _SAME | _ACCEPTED | _OWN
#: Our name of a parameter -> Ollama's, for errors.
NAMES = {
    **{name: f"options.{name}" for name in _SAME},
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "enable_thinking": "think",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
}
_UNLIMITED = (-1, -2)
_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", float: "a number", int: "an integer"}  # fmt: skip
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "xhigh"}


def option_fields(
    options: Mapping[str, Any], context: int | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Return the options of a request.

    Args:
        context: The model's, in tokens, where it is known.

    Returns:
        Fields of an OpenAI request, and the names of the options that are left out.

    Raises:
        InvalidRequest: An option has another type than it must have.
    """
    fields: dict[str, Any] = {}
    left_out = []
    for name, value in options.items():
        if value is None:
            continue
        if name not in _ALL:
            left_out.append(f"options.{name}")
            continue
        value = _check_type(name, value, _ALL[name])
        if name in _SAME:
            fields[name] = value
        elif name == "num_ctx" and (context is None or value > context):
            left_out.append("options.num_ctx")
        elif name == "num_predict" and value not in _UNLIMITED:
            if value < 0:
                raise InvalidRequest(
                    f'option "num_predict" must be at least -2; it is {value}. Send -1 for no limit.',
                    param="options.num_predict",
                )
            fields["max_tokens"] = value
    if "stop" in fields:
        fields["stop"] = stop_words(fields["stop"]) or None
    return {name: value for name, value in fields.items() if value is not None}, tuple(left_out)


def _check_type(name: str, value: Any, kind: Kind) -> Any:
    """
    Return the value of an option.

    Raises:
        InvalidRequest: It has another type.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "integer": number and value == math.floor(value),
        "number": number,
        "boolean": isinstance(value, bool),
        "text or list of texts": isinstance(value, str)
        or (isinstance(value, list) and all(isinstance(item, str) for item in value)),
    }
    if not fits[kind]:
        raise InvalidRequest(
            f'option "{name}" must be of type {kind}; it is {_TYPES[type(value)]}. Send one, or leave the option out.',
            param=f"options.{name}",
        )
    return int(value) if kind == "integer" else value


def format_field(form: Any) -> dict[str, Any]:
    """
    `format` as `response_format`.

    Raises:
        InvalidRequest: It is neither `json` nor a schema, or one that is too large.
    """
    if form is None or form == "":
        return {}
    if form == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(form, dict):
        check_free_form("format", form)
        schema = {"name": "answer", "schema": form}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise InvalidRequest(
        'invalid format: expected "json" or a JSON Schema, which is an object. Send one of them, or leave `format` out.',
        param="format",
    )


def think_fields(think: bool | str | None, can: Capabilities, model: str) -> dict[str, Any]:
    """
    `think` for a model of this name.

    Raises:
        InvalidRequest: It is no word that is known, or the model does not think.
    """
    if isinstance(think, str) and think not in _EFFORTS:
        raise InvalidRequest.at(
            "think", f"is {think[:50]!r}; expected true, false, or one of {', '.join(_EFFORTS)}."
        )
    if think is None:
        return {}
    if not think:
        switched = can.thinking or (can.thinking is None and can.passes_unknown)
        return {"chat_template_kwargs": {"enable_thinking": False}} if switched else {}
    if can.thinking is False or (can.thinking is None and not can.passes_unknown):
        raise InvalidRequest(
            f'"{model}" does not support thinking: its template has no place for it. Leave `think` out, or ask another model.',
            param="think",
        )
    if isinstance(think, str):
        return {"reasoning_effort": _EFFORTS[think]}
    return {"chat_template_kwargs": {"enable_thinking": True}}


def seconds_of(keep_alive: float | str) -> float:
    """
    `keep_alive` in seconds; infinite where it is negative.

    >>> seconds_of("1h30m"), seconds_of(-1)
    (5400.0, inf)

    Raises:
        InvalidRequest: It is no duration.
    """
    try:
        seconds = parse_duration(keep_alive) if isinstance(keep_alive, str) else float(keep_alive)
    except ValueError as error:
        raise InvalidRequest.at(
            "keep_alive",
            f'is {keep_alive[:50]!r}, and no duration. Send seconds as a number, or a text such as "5m" or "1h30m".',  # type: ignore[index]
        ) from error
    return math.inf if seconds < 0 or seconds > _MOST_SECONDS else seconds
