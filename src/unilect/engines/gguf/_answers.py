"""
Requests to the child for an answer, and the decoding of its answers.

A plain completion is asked for at the native /completion, which alone says which stop word ended it and what was cut. A chat is
asked for at /v1/chat/completions, whose parsers know each template; where one cannot read what the model wrote, the server
loses the text, so the same text is made again without a parser and read here.

Log probabilities are told of an answer only. For those of a prompt llama.cpp is made to write the prompt: a grammar leaves it one
token at a time, and what it tells of each is the model's own, before the grammar. No grammar can force a token that ends an
answer, or that is a part of a character, nor is anything told where the latter is made: its odds against a letter are asked for.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md (tokens)
"""

import math
import secrets
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec

from unilect.api.backend import Batches
from unilect.api.parameters.support import names
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Extra,
    Finish,
    Fold,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.core.requests import ChatRequest, CompletionRequest, ImagePart, TextRequest
from unilect.engines.gguf._errors import StrayAnswer, fault
from unilect.engines.gguf._request import template_body
from unilect.engines.gguf._turns import ModelTemplate
from unilect.families import CallStyle, Scanner, has_begun, thoughts_of
from unilect.http.client import HttpServer
from unilect.tools.forced import call_reader, must_call
from unilect.tools.reader import Reader, reading_of
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.llamacpp import NO_PROBABILITY, FrameDecoder, apply_template, detokenize
from unilect.wire.llamacpp_request import top_logprobs
from unilect.wire.normalize import VERBOSE
from unilect.wire.stream import map_batches, stream

#: The fields that belong to a chat's body and not to that of its text alone.
CONVERSATION = names(
    "messages tools tool_choice parallel_tool_calls response_format chat_template_kwargs verbose response_fields logprobs "
    "top_logprobs add_generation_prompt continue_final_message reasoning_format thinking_budget_tokens"
)
_BUILD = "system_fingerprint"
_SEEDS = 2**32 - 1  # the last one means any
_AT_ONCE = 128  # tokens of a prompt
_BIAS, _SURELY, _LEAST = 500.0, 30.0, 1e-45  # logits, and a probability
_ODDS = {"temperature": 1, "samplers": ["temperature"], "post_sampling_probs": True, "n_probs": 2}


def of_server(request: TextRequest, build: str, slot: int) -> list[Event]:
    """Make the events that name the server of an answer: its build, and for clients of llama.cpp's protocol the slot."""
    told: list[Event] = [Opaque(Extra({_BUILD: build}))]
    if isinstance(request, CompletionRequest):
        told.append(Opaque(Extra(native={"id_slot": slot}), 0))
    return told


async def stream_completion(
    server: HttpServer, request: TextRequest, body: dict[str, Any]
) -> Batches:
    """Yield the events of a plain completion."""
    decoder = FrameDecoder(not request.stream, top_logprobs(request), bool(request.return_tokens))
    answer = stream(server.stream, "/completion", msgspec.json.encode(body), decoder)
    try:
        async with aclosing(answer) as batches:
            async for batch in batches:
                yield batch
    except BackendError as error:
        raise fault(error) from error


async def start_chat(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: ModelTemplate
) -> Batches:
    """Start the answer to a chat with its template; returns its batches."""
    if not must_call(request):
        body = body | {"messages": await template.fit(server, body["messages"])}
        if "grammar" in body:
            prompt = await template.render(server, request)
            body = await template.bound(server, body, prompt)
        is_legacy = request.reasoning_format == "deepseek-legacy"
        tell = with_inline_reasoning if is_legacy else stream_chat
        return tell(server, request, body, template.text)
    prompt = await template.render(server, request)
    if (ending := await template.find_open_ending(server, prompt)) is not None:
        prompt += ending.mark + ending.rest
    without = (*CONVERSATION, "stop")
    sampling = {name: value for name, value in body.items() if name not in without}
    return stream_forced_call(server, request, prompt, sampling, template.style)


async def stream_echo(
    server: HttpServer, request: CompletionRequest, body: dict[str, Any], ids: list[int]
) -> Batches:
    """
    Yield the events of a prompt that is told with its log probabilities, and of its continuation where one is wanted.

    Args:
        body: What asks for the continuation.
        ids: The prompt; its first token has nothing before it, and no log probability.
    """
    prompt, top = request.prompts[0], request.logprobs or 0
    told, names = list[TokenLogprob](), dict[int, bytes]()
    asked: dict[str, Any] = {"temperature": 0, "n_predict": 1, "n_probs": top or 1}
    asked |= {name: body[name] for name in ("lora", "id_slot")}

    async def token(one: dict[str, Any]) -> TokenLogprob:
        raw = bytes(one["bytes"]) or names.get(one["id"])
        if raw is None:  # a special token
            raw = names[one["id"]] = (await detokenize(server, [one["id"]])).encode()
        beside = [await token(other) for other in one.get("top_logprobs", ())[:top]]
        logprob = NO_PROBABILITY if one["logprob"] is None else one["logprob"]
        return TokenLogprob(raw.decode(errors="replace"), logprob, list(raw), beside)

    if ids:  # nothing is read of what the slot held before
        begin = asked | {"prompt": ids[:1], "cache_prompt": False}
        first = await _aside(server, begin, ids[0])
        told.append(await token(first | {"logprob": math.nan, "top_logprobs": []}))
    while len(told) < len(ids):
        yield [Progress(len(told), len(ids))]
        asked["prompt"], wanted = ids[: len(told)], ids[len(told) : len(told) + _AT_ONCE]
        told += [await token(one) for one in await _score(server, asked, wanted)]
    text = prompt if isinstance(prompt, str) else await detokenize(server, ids)
    yield [Progress(len(ids), len(ids)), TextDelta(text, 0, told, tokens=0)]
    if request.token_limit == 0:
        yield [Finish("length"), Usage(len(ids), 0, 0)]
        return
    body |= {"prompt": ids or "", "cache_prompt": False}  # what is in the cache was never there
    async with aclosing(stream_completion(server, request, body)) as batches:
        async for batch in batches:
            yield batch


async def _score(server: HttpServer, asked: dict[str, Any], wanted: list[int]) -> list[Any]:
    """Score the wanted tokens at their places behind a prompt; returns llama.cpp's entry of each."""
    grammar = "root ::= " + " ".join(f"<[{id}]>" for id in wanted)
    with suppress(InvalidRequest):  # how it is told that the grammar leaves nothing
        told = await _request_logprobs(
            server, asked | {"grammar": grammar, "n_predict": len(wanted)}
        )
        if [one["id"] for one in told] == wanted:
            return told
    if len(wanted) == 1:
        return [await _aside(server, asked, wanted[0])]
    half = len(wanted) // 2
    told = await _score(server, asked, wanted[:half])
    asked = asked | {"prompt": asked["prompt"] + wanted[:half]}
    return told + await _score(server, asked, wanted[half:])


async def _aside(server: HttpServer, asked: dict[str, Any], wanted: int) -> Any:
    """
    Score a token where a letter is sampled instead; returns its entry.

    Both are biased above all other tokens, and the letter so far above the token that it is always sampled: their odds give the
    probability.
    """
    [letter] = await _request_logprobs(server, asked | {"grammar": "root ::= [ -~]"})
    bias = [[letter["id"], _BIAS], [wanted, _BIAS - _SURELY + letter["logprob"]]]
    [both] = await _request_logprobs(server, asked | _ODDS | {"logit_bias": bias})
    one = next(one for one in both["top_probs"] if one["id"] == wanted)
    odds = math.log((one["prob"] or _LEAST) / both["prob"])
    return letter | one | {"logprob": min(0.0, _SURELY + odds)}


async def _request_logprobs(server: HttpServer, body: dict[str, Any]) -> list[Any]:
    answer = msgspec.json.decode(await server.post("/completion", msgspec.json.encode(body)))
    return list(answer.get("completion_probabilities", ()))


def stream_forced_call(
    server: HttpServer, request: ChatRequest, prompt: str, body: dict[str, Any], style: CallStyle
) -> Batches:
    """
    Return the events of one forced call.

    Args:
        prompt: The rendered conversation.
        body: Sampling and the like for llama.cpp, and the grammar that allows nothing but a call; the prompt is added.

    Raises:
        InvalidRequest: `max_tokens` ends the answer before a call has begun.
        BackendError: The engine wrote something that the grammar forbids.
    """
    bound = body | {"prompt": prompt + style.before}
    read = call_reader(request, style)
    return map_batches(stream_completion(server, request, bound), read)


async def stream_chat(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: str
) -> Batches:
    """
    Yield the events of a chat.

    Args:
        template: The chat template, which shows how its models think and call.

    Raises:
        StrayAnswer: Its parser cannot read the answer, and what has been told cannot be taken back.
    """
    if body.get("seed", _SEEDS) == _SEEDS:  # known, so that the same text can be made again
        body = body | {"seed": secrets.randbelow(_SEEDS)}
    told = Fold()
    try:
        decoder = ChunkDecoder(joined=not request.stream)
        answer = stream(server.stream, "/v1/chat/completions", msgspec.json.encode(body), decoder)
        async with aclosing(answer) as batches:
            async for batch in batches:
                told.add(batch)
                if left := [*_public(batch)]:
                    yield left
        return
    except BackendError as error:
        lost = fault(error)
        # a sampler ends the thoughts then, which only the chat's parser sets up
        budget = request.thinking_budget_tokens
        has_budget = budget is not None and budget >= 0
        replay = _ReplayFilter(told.answer())
        if not isinstance(lost, StrayAnswer) or replay.calls or _has_images(request) or has_budget:
            raise lost from error
    again = _regenerate(server, request, body, template)
    async with aclosing(again) as batches:
        async for batch in batches:
            if new := replay.filter(batch, lost):
                yield new


def with_inline_reasoning(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: str
) -> Batches:
    """
    Return the events of a chat whose thoughts are told apart and in its text, too, with their marks.

    llama.cpp documents this as `deepseek-legacy`, and tells them apart only.
    """
    reading = msgspec.structs.replace(reading_of(request, template), tools=None)
    marks = reading.thinking
    form: Literal["none", "deepseek"] = "none" if marks else "deepseek"
    request = request.changed(reasoning_format=form)
    scanner = reading.scanner()
    answer = stream_chat(server, request, body | {"reasoning_format": form}, template)
    return map_batches(
        answer, lambda batch: [one for event in batch for one in _twice(event, scanner)]
    )


def _twice(event: Event, scanner: Scanner) -> list[Event]:
    """Return an event, and what it tells of thoughts; their tokens are counted once."""
    found: list[Event] = []
    if isinstance(event, TextDelta):
        found = scanner.add(event.text)
    elif isinstance(event, Finish):
        found = scanner.end()
    thoughts = [
        msgspec.structs.replace(one, tokens=0) for one in found if isinstance(one, ReasoningDelta)
    ]
    return [*thoughts, event]


class _ReplayFilter:
    """
    The part of an answer that has been sent, from which its second generation continues.

    Attributes:
        calls: A tool call has been sent.
    """

    def __init__(self, sent: Answer) -> None:
        [choice] = sent.choices or [Choice(0)]
        self.calls = bool(choice.tool_calls)
        self._told: dict[type, str] = {
            TextDelta: choice.text or "",
            ReasoningDelta: choice.reasoning or "",
        }
        self._probabilities = len(choice.logprobs or ())

    def filter(self, batch: list[Event], lost: StrayAnswer) -> list[Event]:
        """
        Return the events of a batch of the second generation that are new.

        Raises:
            StrayAnswer: Its text differs from the first.
        """
        events: list[Event] = []
        for event in batch:
            if isinstance(event, TextDelta) and event.logprobs and self._probabilities:
                new = event.logprobs[self._probabilities :]
                self._probabilities -= len(event.logprobs) - len(new)
                event = msgspec.structs.replace(event, logprobs=new or None)
            if isinstance(event, TextDelta | ReasoningDelta) and self._told[type(event)]:
                told = self._told[type(event)]
                if not (told.startswith(event.text) or event.text.startswith(told)):
                    raise lost
                self._told[type(event)] = told[len(event.text) :]
                event = msgspec.structs.replace(event, text=event.text[len(told) :])
                if not event.text:
                    continue
            events.append(event)
        return events


async def _regenerate(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: str
) -> Batches:
    """Yield the text of a chat, made with the same seed and read leniently: thoughts and calls as far as they are some."""
    prompt = await apply_template(server, template_body(request) | {"messages": body["messages"]})
    thoughts = thoughts_of(template)
    end = thoughts[1] if thoughts is not None and has_begun(prompt, thoughts) else None
    reading = reading_of(request, template, end)
    if request.reasoning_format == "none":  # thoughts are text, with their marks
        if reading.begun:
            yield [TextDelta(prompt[prompt.rindex(reading.family.thoughts[0].rstrip()) :])]
        reading = msgspec.structs.replace(reading, thinking=False, begun=False)
    reader = Reader(reading)
    plain = {name: value for name, value in body.items() if name not in CONVERSATION}
    plain |= {"prompt": prompt, "preserved_tokens": sorted(reading.family.tokens)}
    if "max_tokens" in plain:
        plain["n_predict"] = plain.pop("max_tokens")
    top = top_logprobs(request)
    if top is not None:
        plain["n_probs"] = max(top, 1)
    answer = stream_completion(server, request, plain)
    async with aclosing(answer) as batches:
        async for batch in batches:
            if events := reader.read([one for one in batch if not isinstance(one, Progress)]):
                yield events


def _public(batch: list[Event]) -> Iterator[Event]:
    """
    Yield the events that clients get.

    The server's fingerprint may name no build, and `of_server` has told it. Of what it says beside OpenAI's fields they get that the
    context was full.
    """
    for event in batch:
        extra = getattr(event, "extra", None)
        if extra is not None and VERBOSE in extra.chunk:  # in the first of the last frames
            chunk = {**extra.chunk}
            chunk |= {"truncated": True} if chunk.pop(VERBOSE).get("truncated") else {}
            extra = msgspec.structs.replace(extra, chunk=chunk)
            event = msgspec.structs.replace(event, extra=extra if extra != Extra() else None)
        if type(event) is Opaque and (event.extra is None or _BUILD in event.extra.chunk):
            continue
        yield event


def without_alternatives(batches: Batches) -> Batches:
    """Return an answer whose tokens are told without others beside them: llama.cpp tells one at least, or nothing at all."""
    return map_batches(batches, lambda batch: list(map(_drop_alternatives, batch)))


def _drop_alternatives(event: Event) -> Event:
    if not isinstance(event, TextDelta) or not event.logprobs:
        return event
    bare = [msgspec.structs.replace(token, top_logprobs=[]) for token in event.logprobs]
    return msgspec.structs.replace(event, logprobs=bare)


def _has_images(request: ChatRequest) -> bool:
    return any(
        isinstance(part, ImagePart)
        for message in request.messages
        if isinstance(message.content, list)
        for part in message.content
    )
