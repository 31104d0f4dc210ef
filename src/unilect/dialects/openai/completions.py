"""
OpenAI's plain completions: POST /v1/completions, and /completions for older clients.

Source: https://platform.openai.com/docs/api-reference/completions
"""

from typing import Any

from aiohttp import web

from unilect.core.errors import InvalidRequest
from unilect.core.events import (
    Answer,
    Event,
    Extra,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.core.requests import CompletionRequest
from unilect.dialects.openai._older import normalize_aliases
from unilect.dialects.openai.chat import check_format
from unilect.dialects.openai.chunks import (
    ChunkEncoder,
    encode_json,
    legacy_logprobs,
    progress_object,
)
from unilect.dialects.prompts import MAX_CHOICES
from unilect.web.decode import BodyDecoder, RawFields, check_one_kind, decode_request
from unilect.web.profile import OPENAI, CompatProfile
from unilect.web.route import Route, both
from unilect.web.site import Site
from unilect.web.streaming import respond

_decoder = BodyDecoder(CompletionRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service, profile = site.service, site.profile

    async def create_completion(request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        completion = await decode_request(request, decode)
        run = service.run(completion)
        encoder = CompletionEncoder(completion, run.model.name, profile)
        return await respond(request, run, encoder)

    path, summary = "/completions", "Continue a text"
    return both(path, create_completion, summary, CompletionRequest, "completions")


def decode(body: bytes, raw: RawFields | None = None) -> CompletionRequest:
    """
    Return a body as a typed request.

    Args:
        raw: Its raw fields, where they are known.

    Raises:
        InvalidRequest: A field is missing or wrong; the message names it.
    """
    request = normalize_aliases(_decoder.decode(body, raw))
    check_format(request)
    check_one_kind("prompt", request.prompt)
    prompts = request.prompts
    if not prompts or any(prompt == [] for prompt in prompts):
        raise InvalidRequest.at("prompt", "has an empty list of token ids. Send at least one.")
    choices = len(prompts) * max(request.n or 1, request.best_of or 1)
    if choices > MAX_CHOICES:
        raise InvalidRequest.at(
            "prompt", f"and `n` request {choices} answers; the maximum is {MAX_CHOICES}."
        )
    return request


def stop_words(stop: str | list[str] | None) -> list[str]:
    """Return the stop words of an older protocol, where empty ones are none."""
    words = [stop] if isinstance(stop, str) else stop or []
    return [word for word in words if word]


class CompletionEncoder(ChunkEncoder):
    """
    The words of one plain completion.

    Args:
        request: What was asked for.
        model: The model's name, as the answer gives it.
        profile: The listener's.
    """

    def __init__(
        self, request: CompletionRequest, model: str, profile: CompatProfile = OPENAI
    ) -> None:
        kind = profile.completion_chunk if request.stream else "text_completion"
        super().__init__("cmpl-", kind, model, request, profile.done)
        self._offsets: dict[int, int] = {}

    def encode(self, batch: list[Event]) -> bytes:
        """Return the frames for a batch of events."""
        return b"".join([self._frame(event) for event in batch])

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the body of a whole answer."""
        choices = []
        for choice in answer.choices:
            text = (choice.reasoning or "") + (choice.text or "")
            told = self._text(text, choice.index, choice.logprobs)
            choices.append(told | {"finish_reason": choice.finish_reason} | choice.extra)
        return self.body(choices, answer, ignored)

    def _frame(self, event: Event) -> bytes:
        """Return the frame for one event; empty where it has nothing to say."""
        extra = getattr(event, "extra", None) or Extra()
        more = self.add(extra.chunk) if extra.chunk else None
        match event:
            case TextDelta(text, index, logprobs):
                choice = self._text(text, index, logprobs)
            case ReasoningDelta(text, index):
                choice = self._text(text, index, None)
            case Finish(reason, index):
                choice = self._choice(index, "", None, reason)
            case Opaque(_, None):
                self.keep(more or {})
                return b""
            case Opaque(_, int(index)) if more or extra.choice:
                choice = self._choice(index, "", None, None)
            case Usage():
                self.usage = event
                return b""
            case Progress() if self.tells_progress:
                choice, more = self._choice(0, "", None, None), progress_object(event)
            case _:
                return b""
        return self.frame(encode_json(choice | extra.choice), more)

    def _text(self, text: str, index: int, logprobs: list[TokenLogprob] | None) -> dict[str, Any]:
        offset = self._offsets.get(index, 0)
        legacy = legacy_logprobs(logprobs, offset) if logprobs is not None else None
        self._offsets[index] = offset + len(text)
        return self._choice(index, text, legacy, None)

    def _choice(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
