"""
Normalization of the chunks of real servers to OpenAI's format, before they are decoded into Structs.

Only frames that the fast path could not decode are normalized, as plain JSON values. Nothing is dropped: unreadable values are left
where the decoder keeps unknown fields.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

import json
import re
from contextlib import suppress
from typing import Any

import msgspec

from unilect.core.events import clamp_tokens
from unilect.wire.errors import invalid

#: The unknown fields of a tool call and of the usage, and the stop word that ended a choice, for the decoder.
EXTRA, STOP = "unilect:extra", "unilect:stop"  # no server says these

VERBOSE = "__verbose"  # what llama-server tells beside OpenAI's fields
LEAST_LOGPROB = -9999.0  # OpenAI's own value for a token that is not among the likeliest
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNREAD = ("id", "object", "created", "model")  # we give our own, and theirs may be anything
_USAGE_NAMES = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
NO_REASON = ("", "null", "none")  # of answers that go on


def plain_json(data: bytes) -> Any:
    """
    Return a frame as plain values.

    Incomplete characters, from a cut between tokens, become U+FFFD; Python's NaN and -Infinity, for the
    log probability of zero, become `LEAST_LOGPROB`.

    Raises:
        BackendError: The frame is not JSON.
    """
    try:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(data)
        value = json.loads(data.decode(errors="replace"), parse_constant=lambda _: LEAST_LOGPROB)
        text = json.dumps(value, ensure_ascii=False)
        return msgspec.json.decode(_SURROGATE.sub("\ufffd", text))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise invalid("a frame that is not JSON") from error


def normalize_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return a normalized chunk, including its choices."""
    chunk = {name: value for name, value in chunk.items() if name not in _UNREAD}
    choices = chunk.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and isinstance(choice.get("usage"), dict):
                chunk.setdefault("usage", choice.pop("usage"))  # Moonshot's place for it
        chunk["choices"] = [_choice(item) if isinstance(item, dict) else item for item in choices]
        _move_stop_word(chunk)
    if isinstance(chunk.get("usage"), dict):
        chunk["usage"] = _usage(chunk["usage"])
    return chunk


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null: servers send a `null` for many fields that they do not use."""
    return {name: value for name, value in fields.items() if value is not None}


def _move_stop_word(chunk: dict[str, Any]) -> None:
    """Put the stop word, which llama-server tells beside the choice on request, into the choice."""
    verbose = chunk.get(VERBOSE)
    if not isinstance(verbose, dict) or "stopping_word" not in verbose:
        return
    word = verbose["stopping_word"]
    left = {name: value for name, value in verbose.items() if name != "stopping_word"}
    chunk[VERBOSE] = left or None
    for choice in chunk["choices"]:
        if isinstance(choice, dict) and isinstance(word, str) and word:
            choice[STOP] = word


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    choice = dict(choice)
    if choice.get("index", 0) is None:
        del choice["index"]
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):  # SGLang's own form
        reason = reason.get("type")
    choice["finish_reason"] = None if reason in NO_REASON else reason
    for name in ("stop_reason", "matched_stop"):  # vLLM's and SGLang's; a number is a token's id
        if isinstance(choice.get(name), str):
            choice[STOP] = choice[name]
    delta = choice.get("delta")
    if not delta and isinstance(choice.get("message"), dict):
        delta = choice.pop("message")  # a whole answer in one frame
    if isinstance(delta, dict):
        choice["delta"] = _delta(delta)
    elif delta in ("", []):
        choice["delta"] = {}
    if isinstance(choice.get("logprobs"), dict):
        choice["logprobs"] = _logprobs(choice["logprobs"])
    return choice


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    delta = dict(delta)
    if isinstance(delta.get("content"), list):
        text, thought = _texts(delta["content"])
        delta["content"] = text
        if thought:
            delta["reasoning_content"] = thought
    calls = delta.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    if isinstance(calls, list):
        delta["tool_calls"] = [_call(call) if isinstance(call, dict) else call for call in calls]
    if isinstance(delta.get("function_call"), dict):
        delta["function_call"], _ = _function(delta["function_call"])
    return delta


def _texts(parts: list[Any]) -> tuple[str, str]:
    """Return the text and the reasoning of content parts, in Mistral's format."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and "thinking" in part:
            thinking = part["thinking"]
            thoughts.append(thinking if isinstance(thinking, str) else _texts(thinking or [])[0])
        else:
            raise invalid("a content part that is not text")
    return "".join(texts), "".join(thoughts)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of `tool_calls`: arguments as text, indexes and ids of the right type, unknown fields separated."""
    call = without_nulls(call)
    if "function" not in call and "name" in call:  # flat, without a `function`
        names = [name for name in ("name", "arguments") if name in call]
        call["function"] = {name: call.pop(name) for name in names}
    extra = {name: call.pop(name) for name in list(call) if name not in _CALL_FIELDS}
    if isinstance(call.get("function"), dict):
        call["function"], more = _function(call["function"])
        if more:
            extra["function"] = more
    if isinstance(call.get("id"), int):
        call["id"] = str(call["id"])
    return call | {EXTRA: extra} if extra else call


_CALL_FIELDS = ("index", "id", "type", "function")


def _function(function: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a call's function, and its unknown fields."""
    known: dict[str, Any] = {k: v for k, v in function.items() if k in ("name", "arguments")}
    if isinstance(known.get("arguments"), dict | list):
        known["arguments"] = msgspec.json.encode(known["arguments"]).decode()
    return known, without_nulls({k: v for k, v in function.items() if k not in known})


def _logprobs(logprobs: dict[str, Any]) -> dict[str, Any]:
    """Log probabilities without nulls in place of numbers and lists."""
    content = logprobs.get("content")
    if not isinstance(content, list):
        return logprobs
    return logprobs | {"content": [_token(token) for token in content]}


def _token(token: Any) -> Any:
    if not isinstance(token, dict):
        return token
    tops = token.get("top_logprobs")
    logprob = token.get("logprob")
    return token | {
        "logprob": LEAST_LOGPROB if logprob is None else logprob,
        "top_logprobs": [_token(top) for top in tops] if isinstance(tops, list) else [],
    }


_COUNTERS = {"prompt_tokens", "completion_tokens", "total_tokens"}
_DETAILS = {
    "prompt_tokens_details": "cached_tokens",
    "completion_tokens_details": "reasoning_tokens",
}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's names, no nulls, and unknown counters separated."""
    usage = {_USAGE_NAMES.get(name, name): _count(n) for name, n in usage.items() if n is not None}
    extra = {name: usage.pop(name) for name in list(usage) if name not in _COUNTERS | {*_DETAILS}}
    for name, known in _DETAILS.items():
        if isinstance(details := usage.get(name), dict):
            usage[name] = {known: _count(details.get(known))}
            if more := {key: n for key, n in details.items() if key != known and n is not None}:
                extra[name] = more
    return usage | {EXTRA: extra} if extra else usage


def _count(value: Any) -> Any:
    return clamp_tokens(value) if type(value) is int else value
