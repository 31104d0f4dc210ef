"""
The promises of every backend, as a test that anybody can run: `check_backend`. It needs no test framework.

Each rule is a function of `RULES`; its docstring is the rule.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, get_args

import msgspec

from unilect.api.backend import Backend, Batches, Capabilities, MemoryNeed, Support
from unilect.api.parameters.rules import ACCEPTED, CONSTRAINTS, ENDPOINTS, parameters_of
from unilect.core.errors import UnilectError, UnsupportedOperation
from unilect.core.events import Answer, Event, Finish, Progress, Usage, fold
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Request,
    TextRequest,
)

LIMIT_S = 120.0  # a backend that has not done by then hangs
_AT_ONCE = 4
_LEAVING = 8
_TEXT = "Tell me a story about a dog."
_RequestT = TypeVar("_RequestT", bound=Request)
Rule = Callable[[Backend], Awaitable[None]]


class ContractBroken(AssertionError):
    """A backend does not do what every backend promises; one line for each broken rule."""


async def check_backend(factory: Callable[[], Backend], limit_s: float = LIMIT_S) -> None:
    """
    Hold a backend against the contract.

    Args:
        factory: Makes the backend, not started. It is stopped in the end.
        limit_s: The longest time that one rule may take.

    Raises:
        ContractBroken: It breaks rules; all are told.
    """
    backend, before, broken = factory(), asyncio.all_tasks(), list[str]()
    for rule in RULES:
        task = asyncio.ensure_future(rule(backend))
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            task.cancel()
            broken.append(f"{_words(rule)} It did not come to an end within {limit_s:.0f} s.")
        elif (error := task.exception()) is not None:
            told = str(error) if isinstance(error, ContractBroken) else repr(error)
            broken.append(f"{_words(rule)} {told}")
    left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
    if left:
        broken.append(f"Nothing is left behind after `aclose`. There are the tasks {left}.")
    if broken:
        raise ContractBroken("\n".join(broken))


def chat(text: str = "Hello!", **fields: Any) -> ChatRequest:
    """A greedy chat of one message, as a client's body gives it, with its raw fields."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0} | fields
    return _request(ChatRequest, body)


def completion(prompt: Any = "The capital of", **fields: Any) -> CompletionRequest:
    """A greedy completion, as a client's body gives it, with its raw fields."""
    return _request(CompletionRequest, {"prompt": prompt, "temperature": 0} | fields)


async def events_of(batches: Batches) -> list[Event]:
    """All events of an answer."""
    async with aclosing(batches):
        return [event async for batch in batches for event in batch]


async def answer(batches: Batches) -> Answer:
    """The whole answer that batches tell."""
    return fold([await events_of(batches)])


async def starts_once_and_again(backend: Backend) -> None:
    """`aclose` may come first and twice, `start` by many at once and again, and the one after the other."""
    await backend.aclose()
    await asyncio.gather(*(backend.start() for _ in range(_AT_ONCE)))
    await backend.start()
    for _ in range(2):
        await backend.aclose()
    await backend.start()
    await backend.check()


async def says_what_it_can(backend: Backend) -> None:
    """`capabilities` name parameters of requests, and each support by its word."""
    can = backend.capabilities
    _hold(isinstance(can, Capabilities), f"They are {can!r}.")
    known = ACCEPTED.union(CONSTRAINTS, *map(parameters_of, ENDPOINTS.values()))
    for name, support in can.parameters.items():
        _hold(support in get_args(Support), f"`{name}` is {support!r}.")
        _hold(
            name in known or can.passes_unknown or support == "refused",
            f"There is no parameter `{name}`.",
        )
    _hold(can.chat or can.completions or can.embeddings or can.rerank, "It answers nothing at all.")


async def says_what_it_needs(backend: Backend) -> None:
    """`memory_need` is told while it runs and while it does not: positive bytes, and nothing where they are not known."""
    for _ in range(2):
        if (need := backend.memory_need()) is not None:
            _hold(isinstance(need, MemoryNeed) and need.grows >= 0, f"It is {need!r}.")
            _hold(need.ready > 0 or any(need.gpus), f"It is {need!r}, which is nothing.")
        await backend.aclose()
    await backend.start()


async def ends_each_answer_once(backend: Backend) -> None:
    """An answer is deltas, then one Finish for each choice, then one Usage; a batch holds something."""
    for request in _requests(backend):
        for stream in (False, True):
            _hold_ended(await _batches(backend, request.changed(stream=stream)))


async def tells_what_is_used(backend: Backend) -> None:
    """Count as many prompt tokens in each Progress as in the Usage, and in the pieces no more tokens than the Usage has."""
    for request in _requests(backend):
        events = await events_of(backend.generate(request.changed(stream=True)))
        used, made = fold([events]).usage, sum(event.tokens for event in events)
        if read := [event for event in events if isinstance(event, Progress)]:
            _hold({one.total for one in read} == {used.prompt_tokens}, f"{read}, and {used}.")
            _hold(made <= used.completion_tokens, f"Pieces of {made} tokens, and {used}.")


async def answers_side_by_side(backend: Backend) -> None:
    """Requests that run at the same time are each answered whole."""
    for request in _requests(backend):
        answers = (_batches(backend, request) for _ in range(_AT_ONCE))
        for batches in await asyncio.gather(*answers):
            _hold_ended(batches)


async def keeps_to_its_limit(backend: Backend) -> None:
    """Generate at most `max_tokens` tokens where it is native, and finish an answer that is cut with `length`."""
    if backend.capabilities.parameters.get("max_tokens") != "native":
        return
    for request in _requests(backend):
        found = await answer(backend.generate(request.changed(max_tokens=2)))
        count, reason = found.usage.completion_tokens, found.choices[0].finish_reason
        _hold(count <= 2, f"Of 2 there were {count}.")
        _hold(reason == "length" or count < 2 or not found.choices[0].text, f"It says {reason}.")


async def stops_at_stop_words(backend: Backend) -> None:
    """End an answer before a stop word where `stop` is native, without the word in its text; Finish names the word, or none."""
    if backend.capabilities.parameters.get("stop") != "native":
        return
    for request in _requests(backend):
        whole = (await answer(backend.generate(request))).choices[0].text or ""
        if word := whole[len(whole) // 2 :][:4].strip():
            found = await answer(backend.generate(request.changed(stop=[word])))
            text = found.choices[0].text or ""
            _hold(word not in text, f"{word!r} is in {text!r}.")
            stop = found.choices[0].stop
            _hold(stop in (None, word), f"It says that {stop!r} ended it.")


async def lets_clients_leave(backend: Backend) -> None:
    """Answers that are given up, before they begin and after, leave room for others."""
    for request in _requests(backend):
        for _ in range(_LEAVING):
            batches = backend.generate(request)
            await anext(batches)
            await batches.aclose()
            await backend.generate(request).aclose()
            waiting = asyncio.ensure_future(_batches(backend, request))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        _hold_ended(await _batches(backend, request))


async def counts_its_tokens(backend: Backend) -> None:
    """A text's tokens give the text again, and are counted; a backend that has none says so."""
    try:
        tokens = await backend.tokenize("Hello, world! 中国")
        text = await backend.detokenize(tokens)
        count = await backend.count_tokens(tokens)
    except UnilectError:
        return
    _hold(text.strip() == "Hello, world! 中国", f"They give {text!r}.")
    _hold(count == len(tokens), f"Of {len(tokens)} it counts {count}.")


async def embeds_in_order(backend: Backend) -> None:
    """Inputs are embedded in their order, equal ones equally; a backend that embeds nothing says so."""
    can = backend.capabilities
    if can.rerank and not can.embeddings:  # an engine may have the method for other models
        return
    request = _request(EmbeddingRequest, {"input": ["Paris", "a story of a dog", "Paris"]})
    try:
        found = await backend.embed(request)
    except UnilectError:
        return
    _hold(len(found.vectors) == 3, f"Of 3 inputs there are {len(found.vectors)} vectors.")
    _hold(len({len(vector) for vector in found.vectors}) == 1, "They differ in length.")
    first, other, last = found.vectors
    _hold(max(abs(a - b) for a, b in zip(first, last, strict=True)) < 1e-3, "Equal inputs differ.")
    _hold(first != other, "Different inputs are the same.")


async def ranks_in_order(backend: Backend) -> None:
    """Give each document a score from 0 to 1 in its place where `rerank` is true, and equal documents equal scores."""
    if not backend.capabilities.rerank:
        return
    documents = ["Paris", "a story of a dog", "Paris"]
    try:
        found = await backend.rerank(
            _request(RerankRequest, {"query": "Paris", "documents": documents})
        )
    except UnsupportedOperation:  # an upstream may find only then that its server does not
        return
    _hold(len(found.scores) == 3, f"Of 3 documents there are {len(found.scores)} scores.")
    _hold(all(0 <= score <= 1 for score in found.scores), f"The scores are {found.scores}.")
    _hold(abs(found.scores[0] - found.scores[2]) < 1e-3, "Equal documents differ.")


async def stops_while_it_answers(backend: Backend) -> None:
    """`aclose` ends what runs: with a UnilectError, or with the whole answer."""
    running = [asyncio.ensure_future(_batches(backend, one)) for one in _requests(backend)]
    await asyncio.sleep(0)
    await backend.aclose()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(ended, list):
            _hold_ended(ended)
        else:
            _hold(isinstance(ended, UnilectError), f"It ended with {ended!r}.")
    await backend.aclose()


RULES: tuple[Rule, ...] = (
    starts_once_and_again,
    says_what_it_can,
    says_what_it_needs,
    ends_each_answer_once,
    tells_what_is_used,
    answers_side_by_side,
    keeps_to_its_limit,
    stops_at_stop_words,
    lets_clients_leave,
    counts_its_tokens,
    embeds_in_order,
    ranks_in_order,
    stops_while_it_answers,
)


def _requests(backend: Backend) -> list[TextRequest]:
    """A request of each kind that a backend answers."""
    can = backend.capabilities
    chats = [chat(_TEXT, max_tokens=32)] if can.chat else []
    return [*chats, *([completion(_TEXT, max_tokens=32)] if can.completions else [])]


async def _batches(backend: Backend, request: TextRequest) -> list[list[Event]]:
    async with aclosing(backend.generate(request)) as batches:
        return [batch async for batch in batches]


def _hold_ended(batches: list[list[Event]]) -> None:
    _hold(all(batches), "A batch was empty.")
    events = [event for batch in batches for event in batch]
    _hold(bool(events) and isinstance(events[-1], Usage), f"The last event was {events[-1:]}.")
    finished = Counter[int]()
    for event in events[:-1]:
        _hold(not isinstance(event, Usage), "There were two Usages.")
        index = getattr(event, "index", None)
        _hold(index is None or not finished[index], f"{event!r} came after its Finish.")
        if isinstance(event, Finish):
            finished[event.index] += 1
    told = {index for event in events if (index := getattr(event, "index", None)) is not None}
    _hold(told <= set(finished) and 0 in finished, f"Of the choices {told} ended {set(finished)}.")


def _hold(holds: bool, told: str) -> None:
    """
    Raises:
        ContractBroken: It does not hold.
    """
    if not holds:
        raise ContractBroken(told)


def _words(rule: Rule) -> str:
    return (rule.__doc__ or "").strip()


def _request(kind: type[_RequestT], body: dict[str, Any]) -> _RequestT:
    raw_fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    return msgspec.structs.replace(msgspec.convert(body, kind), raw_fields=raw_fields)
