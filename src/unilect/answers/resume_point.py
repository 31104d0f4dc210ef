"""
The place where a server goes on with a text that another one has begun.

The server gets the text as the beginning of its answer. A greedy answer gives back its last word first: tokens begin at words, and a
text that is cut within one is read as other tokens than those that it was made of. The server makes that word again, and what it makes
must be that word. Of any other answer only the space at its end is made again, which chat templates cut off.

A parameter that counts what the answer has so far, or binds all of it, counts from the point on and would bind the rest alone: such
answers do not go on.

Sources: https://docs.vllm.ai/en/stable/serving/openai_compatible_server/ (continue_final_message)
         https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from unilect.adapt import tools
from unilect.api.backend import Batches, Capabilities
from unilect.api.parameters.rules import ACCEPTED, is_neutral, limit_tokens
from unilect.api.parameters.support import names
from unilect.core.errors import UnilectError
from unilect.core.events import Event, Finish, Opaque, Progress, TextDelta, ToolCallDelta, Usage
from unilect.core.requests import ANY_SEED, CompletionRequest, Message, TextRequest
from unilect.runtime.context import current_request

_LONGEST_WORD = 64
#: What would be another answer if its beginning were a part of the prompt, or cannot be told of a beginning.
_NOT_CONTINUED = names(
    "n best_of echo suffix input_extra logprobs top_logprobs n_probs post_sampling_probs presence_penalty "
    "frequency_penalty mirostat response_format grammar num_beams use_beam_search t_max_predict_ms functions function_call tokenize "
    "dry_multiplier n_indent"
)


class ResumePoint(Struct, frozen=True):
    """
    The point at which an answer continues, and the request that continues it.

    Attributes:
        request: The request for the next server.
        text: The text that the client has.
        expected: The end of that text, which the next server generates again.
        tokens: The number of tokens of the text.
        again: The number of tokens of `expected`.
        stops: The stop words.
        spent: No token is left to generate.
    """

    request: TextRequest
    text: str
    expected: str
    tokens: int
    again: int
    stops: list[str]
    spent: bool


def is_greedy(request: TextRequest) -> bool:
    """Return True if the request is answered without sampling."""
    return request.temperature == 0 or request.top_k == 1


def find_resume_point(
    request: TextRequest,
    can: Capabilities,
    text: str,
    tokens: int,
    tail: list[TextDelta],
) -> ResumePoint | None:
    """
    Plan how a server continues an answer.

    Args:
        text: The text that the client has.
        tokens: The number of its tokens.
        tail: Its last pieces.

    Returns:
        None if the server cannot continue it.
    """
    greedy = is_greedy(request)
    if not _can_go_on(request, can) or not (greedy or request.seed in (None, ANY_SEED)):
        return None
    expected, again = split(text, tail, greedy)
    limit, spent = request.token_limit, False
    if limit is not None and tokens > again:
        spent = tokens >= limit
        if (left := max(1, limit - tokens + again)) < limit:
            request, _ = limit_tokens(request, left)
    sent = text[: len(text) - len(expected)]
    stops = request.stop_words
    if sent:
        request = _with(request, sent)
    return ResumePoint(request, text, expected, tokens, again, stops, spent)


def refuses(error: UnilectError) -> bool:
    """Return True if a backend rejects a request that another one has accepted. A 429 is about the caller, and does not count."""
    return error.status < 500 and error.status != 429


def split(text: str, tail: list[TextDelta], greedy: bool) -> tuple[str, int]:
    """The end of a text that is made again, and of how many tokens it is."""
    expected, again = "", 0
    for piece in reversed(tail if greedy else ()):
        expected, again = piece.text + expected, again + piece.tokens
        if len(expected) > _LONGEST_WORD:
            break
        if piece.text[:1].isspace() or expected == text:
            return expected, again
    space = text[len(text.rstrip()) :]
    again, rest = 0, len(space)
    for piece in reversed(tail):
        rest -= len(piece.text)
        if rest < 0:
            break
        again += piece.tokens
    return space, again


async def filter_continuation(batches: Batches, point: ResumePoint, lost: UnilectError) -> Batches:
    """
    Yield what a server adds to the text that the client has.

    Raises:
        UnilectError: As the backend; or `lost`, where it refuses the text, or does not continue it.
    """
    join = ContinuationFilter(point, lost)
    async with aclosing(batches):
        if point.spent:
            yield [
                Finish("length"),
                replace(join.usage(Usage(0, 0)), completion_tokens=point.tokens),
            ]
            return
        try:
            async for batch in batches:
                rest = [new for event in batch if (new := join.rest(event)) is not None]
                if join.stopped:  # what the server says of its own end is of a longer text
                    rest = [event for event in rest if not isinstance(event, Finish | Usage)]
                    told = next((one for one in batch if isinstance(one, Usage)), Usage(0, 0))
                    used = join.usage(replace(told, completion_tokens=0))
                    yield [*rest, Finish("stop", stop=join.stopped), used]
                    return
                if rest:
                    yield rest
        except UnilectError as error:
            if refuses(error):
                raise lost from error
            raise


class ContinuationFilter:
    """
    The events of an answer that goes on at a point.

    Attributes:
        stopped: The stop word that stands across the point; empty where there is none.
    """

    def __init__(self, point: ResumePoint, lost: UnilectError) -> None:
        self._point = point
        self._lost = lost
        self._expected = point.expected
        self._reach = max(map(len, point.stops), default=1) - 1  # of a stop word across the point
        self._new = ""  # the first that is new, as far as a stop word reaches
        self._tokens = 0
        self.stopped = ""

    def rest(self, event: Event) -> Event | None:
        """
        Return the part of an event that the client gets; None for nothing.

        Raises:
            UnilectError: The answer is another one.
        """
        match event:
            case Progress():
                return None
            case TextDelta(text, 0):
                self._tokens += event.tokens
                added = self._take_new(text)
                if added == text:
                    return event if text or event.extra else None
                # what is said of all of a piece, such as its ids, is wrong of a part
                return replace(event, text=added, extra=None) if added else None
            case Finish(reason):
                if self._expected and not (
                    reason == "stop"
                    and any(s.startswith(self._expected) for s in self._point.stops)
                ):
                    raise self._lost
                return replace(event, extra=None)  # its counts and its prompt are those of a part
            case ToolCallDelta() if not self._expected:
                return event
            case Opaque():
                return event
            case Usage():
                return self.usage(event)
        raise self._lost  # thoughts, or a call in place of the text

    def usage(self, told: Usage) -> Usage:
        """The usage of the whole answer, of what the server tells of its part; what it was given has been counted."""
        point = self._point
        given = point.tokens - point.again
        made = told.completion_tokens or self._tokens
        meter = current_request().meter
        known = 0 if meter is None else meter.usage.prompt_tokens
        # a text is not always read as the tokens that it was made of
        prompt = known or max(0, told.prompt_tokens - given)
        cached = None if told.cached_tokens is None else min(told.cached_tokens, prompt)
        return replace(told, prompt_tokens=prompt, completion_tokens=given + made, cached_tokens=cached)  # fmt: skip

    def _take_new(self, text: str) -> str:
        """
        Return the part of a text that the client does not have, up to a stop word.

        Raises:
            UnilectError: The text differs from what the client has.
        """
        length = min(len(text), len(self._expected))
        if not self._expected.startswith(text[:length]):
            raise self._lost
        self._expected, text = self._expected[length:], text[length:]
        if self._reach > len(self._new) and text and not self.stopped:
            before = self._point.text[-self._reach :]
            self._new += text[: self._reach - len(self._new)]
            across = before + self._new
            for word in self._point.stops:
                at = across.find(word)
                if 0 <= at < len(before):
                    self.stopped = word
        return "" if self.stopped else text


def _can_go_on(request: TextRequest, can: Capabilities) -> bool:
    """Return True if a server can continue such an answer, and the result is the same answer."""
    known = type(request).__struct_fields__
    if any(name not in known and name not in ACCEPTED for name in request.raw_fields):
        return False  # nobody here knows what it does to a beginning
    asked = (name for name in _NOT_CONTINUED if hasattr(request, name))
    if not all(is_neutral(request, name) for name in asked):
        return False
    if isinstance(request, CompletionRequest):
        return len(request.prompts) == 1 and isinstance(request.prompts[0], str)
    if not can.continues or tools.plan(request, can) is not None:
        return False
    if request.tools and request.tool_choice not in (None, "auto", "none"):
        return False
    last = request.messages[-1]
    return last.role != "assistant" or (
        request.continue_final_message is True and isinstance(last.content, str)
    )


def _with(request: TextRequest, text: str) -> TextRequest:
    """A request whose answer has begun with a text."""
    if isinstance(request, CompletionRequest):
        return request.changed(prompt=str(request.prompts[0]) + text)
    messages, last = request.messages, request.messages[-1]
    turns: list[Any] = list(messages)
    if (raw := request.raw_fields.get("messages")) is not None:
        turns = msgspec.json.decode(raw, type=list[Raw])  # with what we do not know of them
    if last.role == "assistant":
        messages, turns, text = messages[:-1], turns[:-1], str(last.content) + text
    message = Message(role="assistant", content=text)
    changed = request.changed(
        messages=[*messages, message], continue_final_message=True, add_generation_prompt=False
    )
    if changed.raw_fields:
        changed.raw_fields["messages"] = Raw(msgspec.json.encode([*turns, message]))
    return changed
