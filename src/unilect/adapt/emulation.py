"""
Emulation of parameters that a backend lacks: several prompts, `n`, `best_of`, `echo`, `max_tokens: 0`.

For backends with one prompt and one choice per request (`Capabilities.fans_out`), whatever their protocol.
The choices run concurrently, as many as the backend has places, so the engine's continuous batching applies.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from math import isnan
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

from unilect.adapt.enforcement import sum_usage
from unilect.adapt.suppressed import SuppressedUsage
from unilect.api.backend import Backend, Batches, Generates
from unilect.api.parameters.rules import refusal
from unilect.core.errors import InvalidRequest
from unilect.core.events import (
    Choice,
    Event,
    Extra,
    Finish,
    Fold,
    Opaque,
    Progress,
    TextDelta,
    Usage,
)
from unilect.core.requests import ANY_SEED, ChatRequest, CompletionRequest, Prompt, TextRequest
from unilect.scheduling.parts import Room

#: What llama.cpp tells of an answer's length, by the field it stands in.
_LENGTHS = {"timings": ("predicted_n",), "generation_settings": ("n_predict", "max_tokens")}
PARTS_AT_ONCE = (
    8  # of one request, where nobody knows how many places its backend has; each has a connection
)
_QUEUE_BATCHES = 64  # what the choices of one request may run ahead of the client


class _Spread(NamedTuple):
    """The most parts of a request at a time, and the room that all requests share."""

    at_once: int
    room: Room


def generate(
    backend: Generates,
    request: TextRequest,
    tokens: Backend | None = None,
    at_once: int = PARTS_AT_ONCE,
    room: Room | None = None,
) -> Batches:
    """
    Answer a request on a backend that fans out, and emulate what the backend lacks.

    Args:
        tokens: The tokenizer of its model, if the backend has none itself.
        at_once: The most requests that the backend gets at a time.
        room: The room that all requests share; by default one has it alone.

    Raises:
        UnilectError: As `Backend.generate`; UnsupportedParameter for combinations that cannot be emulated.
    """
    spread = _Spread(at_once, room or Room())
    if isinstance(request, CompletionRequest):
        return _completions(backend, request, tokens or backend, spread)
    if (request.best_of or 1) > 1:
        raise refusal("best_of", "it belongs to plain completions")
    if _searches(backend, request) and request.token_limit != 0:
        return backend.generate(request)
    return _merge(backend, [_Part(i, _single(request, i)) for i in range(request.n or 1)], spread)


def several(request: TextRequest) -> bool:
    """Return False for one answer to one conversation, which every backend gives."""
    more = (request.n or 1) > 1 or (request.best_of or 1) > 1
    return more or request.token_limit == 0 or isinstance(request, CompletionRequest)


class _Part(Struct):
    """
    One choice to be made, or all that one search finds.

    Attributes:
        index: Its own; of a search that of the first.
        request: What makes it; `n` stands in that of a search alone.
        echo: The prompt's text, to be told before each.
        prompt: The number of the prompt that it answers.
    """

    index: int
    request: TextRequest
    echo: str | None = None
    prompt: int = 0


def _searches(backend: Generates, request: TextRequest) -> bool:
    """Return True if one beam search of the backend finds all choices. A search for each choice would find the same best beam."""
    several = (request.n or 1) > 1 and (request.num_beams or 1) > 1
    return several and backend.capabilities.fans_beams_out


async def _completions(
    backend: Generates, request: CompletionRequest, tokens: Any, spread: _Spread
) -> Batches:
    n, best_of = request.n or 1, request.best_of or 1
    scores = bool(request.echo) and request.logprobs is not None
    echoes = scores and backend.capabilities.parameters.get("echo") == "native"
    if scores and not echoes:
        raise refusal("echo", "the engine does not support log probabilities of a prompt")
    if best_of > 1 and best_of < n:
        raise InvalidRequest(
            f"`best_of` is {best_of} and `n` is {n}: best_of must be at least n.", param="best_of"
        )
    if best_of > n and request.stream:
        raise InvalidRequest(
            "`best_of` larger than `n` cannot be streamed, because the best answer is known only at the end.",
            param="best_of",
        )
    made_there = request.token_limit != 0 or echoes
    parts: list[_Part] = []
    texts: list[str | None] = []
    for number, prompt in enumerate(request.prompts):
        text = await _text(tokens, prompt) if request.echo and not echoes else None
        texts.append(text)
        # written once for all its choices: it may be long
        its_own = request if request.prompt is prompt else request.changed(prompt=prompt)
        if made_there and best_of <= n and _searches(backend, request):
            one = _single(its_own, 0, echoes).changed(n=n)
            parts.append(_Part(n * len(parts), one, text, number))
            continue
        for i in range(max(n, best_of)):
            parts.append(_Part(len(parts), _single(its_own, i, echoes), text, number))
    if len(parts) == 1 and made_there and parts[0].echo is None:
        batches = backend.generate(parts[0].request)
    elif best_of > n:
        batches = _best(backend, request, parts, texts, spread)
    else:
        batches = _merge(backend, parts, spread)
    async with aclosing(batches):
        async for batch in batches:
            yield batch


def _single(request: TextRequest, number: int, echoes: bool = False) -> TextRequest:
    """Return the request for one choice. Choices with one seed would all be the same, so each counts on from it, in 64 bits."""
    seed = request.seed
    if seed not in (None, ANY_SEED):
        seed = (seed + number + 2**63) % 2**64 - 2**63
    if isinstance(request, ChatRequest):
        return request.changed(n=None, seed=seed)
    logprobs = request.logprobs
    if (request.best_of or 1) > (request.n or 1) and logprobs is None:
        logprobs = 0
    return request.changed(
        n=None,
        best_of=None,
        echo=request.echo if echoes else None,
        seed=seed,
        logprobs=logprobs,
    )


async def _text(tokens: Any, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else await tokens.detokenize(prompt)


async def _one(backend: Generates, part: _Part) -> Batches:
    """Yield the events of one part, with its own indices."""
    if part.echo is not None:
        indices = range(part.index, part.index + (part.request.n or 1))
        yield [TextDelta(part.echo, index, tokens=0) for index in indices]
    if part.request.token_limit == 0 and not getattr(part.request, "echo", None):
        yield await _read_only(backend, part)
        return
    async with aclosing(backend.generate(part.request)) as batches:
        async for batch in batches:
            if not part.request.n:
                batch = _add_counts(batch)
            yield [
                event
                if isinstance(event, Usage | Progress) or event.index is None
                else msgspec.structs.replace(
                    event, index=part.index + (event.index if part.request.n else 0)
                )
                for event in batch
            ]


def _add_counts(batch: list[Event]) -> list[Event]:
    """Return a last batch whose choice tells its own counts, in llama.cpp's words; the usage will be that of all parts."""
    used = next((event for event in reversed(batch) if isinstance(event, Usage)), None)
    if used is None:
        return batch
    counts = {"tokens_evaluated": used.prompt_tokens, "tokens_predicted": used.completion_tokens}
    return [
        msgspec.structs.replace(event, extra=_with_native(event.extra, counts))
        if isinstance(event, Finish)
        else event
        for event in batch
    ]


def _with_native(extra: Extra | None, fields: dict[str, Any]) -> Extra:
    known = extra or Extra()
    return msgspec.structs.replace(known, native=fields | known.native)


def _with_zeros(told: Any, names: tuple[str, ...]) -> Any:
    """
    Return a server's native object, with those of `names` that it has set to 0.

    The answer has no token. The server generated one to read the prompt.
    """
    told = msgspec.json.decode(told) if isinstance(told, Raw) else told
    return told | {name: 0 for name in names if name in told}


async def _read_only(backend: Generates, part: _Part) -> list[Event]:
    """Return the end of an answer without a token: one is made and not told, so that all is checked and the prompt is read."""
    asked = part.request.changed(max_tokens=1)
    if isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None:
        asked = asked.changed(max_completion_tokens=1)
    native: dict[str, Any] = {}
    used = Usage(0, 0)
    async with aclosing(backend.generate(asked)) as batches:
        async for batch in batches:
            for event in batch:
                if isinstance(event, Finish) and event.extra is not None:
                    native = event.extra.native
                elif isinstance(event, Usage):
                    used = event
    if native:
        native = native | {"tokens_predicted": 0, "stop_type": "limit", "stopping_word": ""}
        for name, lengths in _LENGTHS.items():
            if name in native:
                native[name] = _with_zeros(native[name], lengths)
    return [
        Finish("length", part.index, Extra(native=native) if native else None),
        msgspec.structs.replace(used, completion_tokens=0, reasoning_tokens=0),
    ]


_Queue: TypeAlias = "asyncio.Queue[tuple[_Part, list[Event]] | Exception | None]"


async def _merge(backend: Generates, parts: list[_Part], spread: _Spread) -> Batches:
    """Yield all parts, as many at once as there is room for, their batches as they come; the usage is added up, a shared prompt counted once."""
    for part in parts[1:]:  # the ids of the first prompt are told, once
        part.request = part.request.changed(tokenize=None)
    queue: _Queue = asyncio.Queue(_QUEUE_BATCHES)
    left, running = iter(parts), 1 + spread.room.take(min(spread.at_once, len(parts)) - 1)
    tasks = [asyncio.create_task(_feed(backend, left, queue)) for _ in range(running)]
    for task in tasks[1:]:
        task.add_done_callback(lambda _: spread.room.give_back())
    usages: dict[int, Usage] = {}
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
                continue
            if isinstance(item, Exception):
                raise item
            part, events = item
            batch: list[Event] = [event for event in events if not isinstance(event, Usage)]
            if batch:
                yield batch
            for event in events:
                if isinstance(event, Usage):
                    usages[part.index] = event
        yield [_total(parts, usages)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(backend: Generates, left: Iterator[_Part], queue: _Queue) -> None:
    """Put the batches of one part that is left after the other into the queue, then None, or the error that ended one."""
    try:
        for part in left:
            async with aclosing(_one(backend, part)) as batches:
                async for batch in batches:
                    await queue.put((part, batch))
    except Exception as error:  # noqa: BLE001 - raised again by `_merge`, which would wait forever else
        await queue.put(error)
    else:
        await queue.put(None)


def _total(parts: list[_Part], usages: dict[int, Usage]) -> Usage:
    """Add up usage: each prompt is counted once, however many choices it has, and the tokens of every choice."""
    first: dict[int, Usage] = {}
    for part in parts:
        first.setdefault(part.prompt, usages[part.index])
    read, made = sum_usage([*first.values()]), sum_usage([*usages.values()])
    reasoning = made.reasoning_tokens or 0
    return Usage(read.prompt_tokens, made.completion_tokens, read.cached_tokens, reasoning)


async def _best(
    backend: Generates,
    request: CompletionRequest,
    parts: list[_Part],
    texts: list[str | None],
    spread: _Spread,
) -> Batches:
    """Yield of each prompt's `best_of` answers the `n` with the highest mean log probability of a token."""
    folding, held = Fold(), SuppressedUsage()
    async with aclosing(_merge(backend, parts, spread)) as batches:
        async for batch in batches:
            held.see(batch)
            folding.add(batch)
    held.release()
    answer = folding.answer()
    n, best_of = request.n or 1, request.best_of or 1
    events: list[Event] = [Opaque(Extra(answer.extra), 0)] if answer.extra else []
    for number in range(len(texts)):
        candidates = answer.choices[number * best_of : (number + 1) * best_of]
        for place, choice in enumerate(sorted(candidates, key=_mean_logprob, reverse=True)[:n]):
            index = number * n + place
            logprobs = choice.logprobs if request.logprobs is not None else None
            events.append(TextDelta(choice.text or "", index, logprobs))
            events.append(Finish(choice.finish_reason or "stop", index, stop=choice.stop))
    yield [*events, answer.usage]


def _mean_logprob(choice: Choice) -> float:
    # a prompt's first token, which an echo tells, has none
    values = [one.logprob for one in choice.logprobs or () if not isnan(one.logprob)]
    return sum(values) / len(values) if values else float("-inf")
