"""A server under test: the form of its requests, and one stream with the times at which its pieces arrive."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from unilect.cli.bench.prompts import Sizes
from unilect.cli.bench.stats import Outcome
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    ConfigError,
    UnilectError,
)
from unilect.core.events import (
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.http.client import EVENTS, HttpServer, Response
from unilect.http.error_bodies import clean, error_text
from unilect.runtime.redact import redact
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.stream import stream

_PATH = "/chat/completions"
_FIRST_TIMEOUT_S = 600.0  # of the first request, for which a model may be loaded
_FEW_TOKENS = 4
_MOST_WORDS = 300  # of a server, about one failure
#: The fields of a request beside its messages, from those that say most to those that the strictest servers take.
_FORMS = (
    ("max_tokens", "ignore_eos", "stream_options"),
    ("max_tokens", "stream_options"),
    ("max_tokens",),
    ("max_completion_tokens", "stream_options"),
)


class Refused(BackendError):
    """
    An answer with another status than 200.

    Attributes:
        http_status: The status.
    """

    def __init__(self, http_status: int, text: str) -> None:
        super().__init__(text, reason=text)
        self.http_status = http_status


class Target:
    """
    A server under test.

    Args:
        name: Its name in the results.
        url: Its base URL.
        model: The model's name there.
        api_key: Its key, if it has one.
        timeout_s: The longest time of an answer.
        ends_itself: The model may end an answer before its length.

    Attributes:
        name, model: As given.
        url: Its base URL, without credentials.
        sizes: The tokens of its prompts.
        software: The name that the server gives itself; empty where it has none.
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: str,
        api_key: str | None,
        timeout_s: float,
        ends_itself: bool,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.name, self.url, self.model = name, redact(url), model
        self.sizes, self.software = Sizes(), ""
        self._timeout_s, self._has_key, self._ends_itself = timeout_s, bool(api_key), ends_itself
        self._form = 1 if ends_itself else 0
        self._server = HttpServer(
            url, headers=headers, timeout_s=_FIRST_TIMEOUT_S, reuse_connections=True, raise_for=self._raise_for
        )  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """Sentences about the requests that the server takes."""
        fields, notes = _FORMS[self._form], list[str]()
        if "ignore_eos" not in fields and not self._ends_itself:
            notes.append("it refuses `ignore_eos`: answers may be shorter than asked for")
        if "stream_options" not in fields:
            notes.append("it refuses `stream_options`: tokens are counted as pieces of the stream")
        if not self.sizes.known and not self._ends_itself:
            notes.append("it does not count the prompt's tokens: their number is a guess")
        return notes

    def body(self, messages: list[dict[str, Any]], tokens: int) -> bytes:
        """Return the body of a request for a stream of so many tokens."""
        fields = {
            "max_tokens": tokens,
            "max_completion_tokens": tokens,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        used = {name: fields[name] for name in _FORMS[self._form]}
        return msgspec.json.encode({"model": self.model, "messages": messages, "stream": True, **used})  # fmt: skip

    async def rehearse(self, messages: list[dict[str, Any]], tokens: int = _FEW_TOKENS) -> int:
        """
        Send a request that is not measured, in the first form that the server takes.

        Returns:
            The tokens of its prompt; 0 where the server does not count.

        Raises:
            ConfigError: It is not answered.
        """
        while True:
            outcome, now = Outcome(0.0), time.perf_counter()
            await self.send(self.body(messages, tokens), outcome, now, _FIRST_TIMEOUT_S)
            refused = outcome.failure in ("HTTP 400", "HTTP 422")
            if refused and self._form + 1 < len(_FORMS):
                self._form += 1
            elif outcome.failure:
                raise ConfigError(f"{self.name}: the first requests failed ({outcome.failure}). {outcome.detail}")  # fmt: skip
            else:
                return outcome.prompt_tokens

    async def send(
        self, body: bytes, outcome: Outcome, began: float, timeout_s: float | None = None
    ) -> None:
        """
        Send a request, read its stream, and fill in the outcome.

        Args:
            began: The time at which the step began, as of `perf_counter`.
            timeout_s: The longest time from now on; default: the target's, from the time at which the request was due.
        """
        outcome.sent = time.perf_counter() - began
        answer: Response | None = None

        async def post(path: str, data: bytes, gather_s: float) -> Response:
            nonlocal answer
            answer = await self._server.stream(path, data, gather_s, EVENTS)
            return answer

        if timeout_s is None:
            timeout_s = self._timeout_s - (outcome.sent - outcome.due)
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(stream(post, _PATH, body, ChunkDecoder())) as batches,
            ):
                async for batch in batches:
                    _read(batch, time.perf_counter() - began, outcome)
        except UnilectError as error:
            outcome.failure, outcome.detail = _kind(error, answer), error.for_operator[:_MOST_WORDS]
        except TimeoutError:
            outcome.failure = "timeout"
            outcome.detail = f"The answer took more than {timeout_s:.3g} s (--timeout)."
        if answer is not None:
            self.software = clean(answer.headers.get("server"))[:60]
        if not outcome.failure and not outcome.arrivals:
            outcome.failure, outcome.detail = "empty answer", "The stream ended without a token."

    async def aclose(self) -> None:
        """Close its connections."""
        await self._server.aclose()

    def _raise_for(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status == 200:
            return
        text = f"The server answered with status {status}: {error_text(body)}"
        if status in (401, 403):
            told = (
                "rejects this key. Give another one" if self._has_key else "requires a key. Give it"
            )
            text = f"The server {told} with --api-key, or in UNILECT_API_KEY."
        raise Refused(status, text)


def _read(batch: list[Event], now: float, outcome: Outcome) -> None:
    """Take what a batch of events brings: pieces of the answer, and the server's counts."""
    for event in batch:
        match event:
            case TextDelta(text) | ReasoningDelta(text) | RefusalDelta(text):
                if text:
                    outcome.arrivals.append(now)
                    outcome.tokens += event.tokens
            case ToolCallDelta():
                outcome.arrivals.append(now)
                outcome.tokens += event.tokens
            case Usage():
                outcome.prompt_tokens = event.prompt_tokens
                outcome.cached_tokens = event.cached_tokens or 0
                if event.completion_tokens:
                    outcome.tokens, outcome.counted = event.completion_tokens, True


def _kind(error: UnilectError, answer: Response | None) -> str:
    """Return the kind of a failure."""
    match error:
        case Refused():
            return f"HTTP {error.http_status}"
        case BackendTimeout():
            return "timeout"
        case BackendUnreachable():
            return "no connection"
    if answer is None:
        return "no connection" if error.connection_failed else "no stream"
    return "connection broken" if answer.broken else "error in the stream"
