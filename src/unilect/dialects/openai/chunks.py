"""
The common parts of chat and plain completion answers in OpenAI's API: ids, usage, log probabilities.

Source: https://platform.openai.com/docs/api-reference
"""

import random
import time
from typing import Any

import msgspec

from unilect.core.errors import UnilectError
from unilect.core.events import Answer, Progress, TokenLogprob, Usage
from unilect.core.requests import GenerationRequest
from unilect.web.streaming import COMMENT

encode_json = msgspec.json.encode
encode_lines = msgspec.json.Encoder().encode_lines
DONE = b"data: [DONE]\n\n"
_random = random.Random()  # seeded by the system; ids must be unique, and guard nothing
_LASTING = ("system_fingerprint", "service_tier")


class ChunkEncoder:
    """
    The base of the encoders of chats and of plain completions. The parts of a chunk that are the same in a whole answer are
    encoded once.

    Attributes:
        head: Up to and including `"choices":[`.
        tail: From the end of the choices to the end of the frame; `"usage":null` where the client asked for usage.
        usage: The usage, once it is known.
        tells_progress: The client wants to know how far the prompt has been read.
    """

    def __init__(
        self, prefix: str, kind: str, model: str, request: GenerationRequest, done: bool
    ) -> None:
        self.usage: Usage | None = None
        self._done = DONE if done else b""
        options = request.stream_options
        self._usage_wanted = options is not None and bool(options.include_usage)
        self.tells_progress = bool(request.return_progress)
        self._meta: dict[str, Any] = {
            "id": f"{prefix}{_random.getrandbits(96):024x}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,  # of who says nothing else
        }
        self.tail = b'],"usage":null}\n\n' if self._usage_wanted else b"]}\n\n"
        self._late: dict[str, Any] = {}
        self._build()

    def keep_alive(self) -> bytes:
        """Return a comment: a frame of data would be a chunk to every client."""
        return COMMENT

    def end(self) -> bytes:
        """Return the usage chunk, where it was asked for and is known, and `[DONE]`, unless this listener leaves it out."""
        if self.usage is None or not self._usage_wanted:
            return self._done
        fields = self._late | {"usage": usage_object(self.usage)}
        return self.head + b"]," + encode_json(fields)[1:] + b"\n\n" + self._done

    def error(self, error: UnilectError) -> bytes:
        """Return the frame that ends a broken answer; clients of OpenAI and of FastChat both see the error."""
        body = {"error": error.detail(), "text": error.message, "error_code": error.number}
        return b"data: " + encode_json(body) + b"\n\n"

    def add(self, fields: dict[str, Any]) -> dict[str, Any]:
        """
        Take the upstream's fields that every later chunk carries too.

        Returns:
            The other fields, which belong to one chunk.
        """
        lasting = {name: value for name, value in fields.items() if name in _LASTING}
        if lasting:
            self._meta |= lasting
            self._build()
        return {name: value for name, value in fields.items() if name not in _LASTING}

    def frame(self, choices: bytes, extra: dict[str, Any] | None = None) -> bytes:
        """Return a chunk with these encoded choices, and further fields at its top."""
        if not extra:
            return self.head + choices + self.tail
        return self.head + choices + b"]," + encode_json(extra)[1:-1] + self.tail[1:]

    def body(
        self, choices: list[dict[str, Any]], answer: Answer, ignored: tuple[str, ...]
    ) -> bytes:
        """Return the body of a whole answer."""
        body = {"choices": choices, "usage": usage_object(answer.usage), "truncated": False}
        return encode_json(self._meta | body | answer.extra | unilect_field(ignored))

    def keep(self, extra: dict[str, Any]) -> None:
        """Keep fields that came without a choice for the usage chunk: `choices[0]` of any other must not fail."""
        self._late |= extra

    def _build(self) -> None:
        self.head = b"data: " + encode_json(self._meta)[:-1] + b',"choices":['


def progress_object(event: Progress) -> dict[str, Any]:
    """Make the progress of reading a prompt, in llama.cpp's words."""
    told = {
        "total": event.total,
        "cache": event.cached,
        "processed": event.processed,
        "time_ms": event.time_ms,
    }
    return {"prompt_progress": told}


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`, with details as far as they are known, and what else an upstream counts."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
    }
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    for name, count in usage.counters.items():
        body[name] = body[name] | count if isinstance(body.get(name), dict) else count
    return body


def chat_logprobs(tokens: list[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's chat form of log probabilities."""
    return {"content": [_token(token, alternatives=True) for token in tokens], "refusal": None}


def legacy_logprobs(tokens: list[TokenLogprob], offset: int) -> dict[str, Any]:
    """
    Return the completions' form of log probabilities.

    Args:
        offset: Characters of the answer before these tokens.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += _characters(token)
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {_name(top): top.logprob for top in token.top_logprobs} for token in tokens
        ],
        "text_offset": offsets,
    }


def _characters(token: TokenLogprob) -> int:
    """Count the characters that begin in a token."""
    if token.bytes is None:
        return len(token.token)
    return sum(byte & 0xC0 != 0x80 for byte in token.bytes)


def _name(token: TokenLogprob) -> str:
    """Return a token's text; of a part of a character its bytes, as OpenAI has it, though an engine may tell no text of one."""
    if token.bytes is None:
        return token.token
    try:
        text = bytes(token.bytes).decode()
    except ValueError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return text if "\ufffd" in token.token else token.token


def unilect_field(ignored: tuple[str, ...]) -> dict[str, Any]:
    """Make unilect's field of a whole answer: the parameters that were ignored. It is empty where there are none."""
    return {"unilect": {"ignored": list(ignored)}} if ignored else {}


def _token(token: TokenLogprob, alternatives: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "token": _name(token),
        "logprob": token.logprob,
        "bytes": token.bytes if token.bytes is not None else list(token.token.encode()),
    }
    if alternatives:
        body["top_logprobs"] = [_token(top, alternatives=False) for top in token.top_logprobs]
    return body
