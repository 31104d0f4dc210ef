"""Tests of unilect.answers.resume: answers that another backend makes the rest of."""

import itertools
from contextlib import aclosing
from typing import Any, cast

import msgspec
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from support.backends.engine import chat, completion
from support.backends.scripted import DONE, Exchange, delta, frames, scripted, stream_of
from support.common.properties import given
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.resume import DeliveredOutput, ReplayFilter
from unilect.answers.service import Service
from unilect.api.backend import Backend, Batches, Capabilities, Witness
from unilect.core.errors import BackendError, EngineDied, InvalidRequest, RateLimited, UnilectError
from unilect.core.events import (
    Answer,
    Event,
    Extra,
    Finish,
    Fold,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.families import MarkScanner, Reading, find
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.upstreams.openai._servers import KINDS, capabilities
from unilect.upstreams.openai.backend import OpenAIUpstream

LOST = EngineDied("It died.")
AGAIN = Capabilities(parameters={"seed": "native", "temperature": "native"}, resumes="again")
PENALIZED = dict.fromkeys(("seed", "presence_penalty", "frequency_penalty"), "native")
#: What a model writes: thoughts, text with characters of several bytes, and calls.
PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "so ", "a", " b", "\n\n", "é", "日本", "👩‍👩‍👧", "<", "<tool", '{"name": "add", ',
         '<tool_call>\n{"name": "add", "arguments": {"x": "🙂"}}\n</tool_call>', "</", "END", "e\u0301"]
    ),
    max_size=24,
)  # fmt: skip


def parsed(text: str, sizes: list[int], first_id: int = 0, index: int = 0) -> list[Event]:
    """The events of a text that is read in pieces of these sizes, again and again."""
    ids = itertools.count(first_id)
    parser = MarkScanner(
        Reading(family=find("hermes"), tools={"add": None}, thinking=True),
        lambda: f"call_{next(ids)}",
    )
    events: list[Event] = []
    at, turns = 0, itertools.cycle(sizes)
    while at < len(text):
        size = next(turns)
        events += parser.add(text[at : at + size])
        at += size
    events += parser.end()
    events = [event for event in events if not isinstance(event, Finish | Usage)]
    return [
        msgspec.structs.replace(event, index=index) if index else event
        for event in [*events, Finish("tool_calls" if parser.calls else "stop")]
    ]


def told(*batches: list[Event]) -> DeliveredOutput:
    """What a client has that got these batches."""
    found = DeliveredOutput()
    for batch in batches:
        found.add(batch)
    return found.whole()


def rest(had: DeliveredOutput, events: list[Event]) -> list[Event]:
    """What of these events is new to a client."""
    repetition = ReplayFilter(had, LOST)
    return [new for event in events if (new := repetition.rest(event)) is not None]


def without_ids(answer: Answer) -> Any:
    """An answer; the ids of its calls are chosen anew each time."""
    plain = msgspec.to_builtins(answer)
    for choice in plain["choices"]:
        for call in choice["tool_calls"]:
            del call["id"]
    return plain


@given(PIECES, st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_every_split_of_an_answer(pieces: list[str], sizes: list[int], other: int) -> None:
    """Wherever an answer is cut, and however it is cut into pieces the second time, the client has it whole and nothing twice."""
    text, used = "".join(pieces), Usage(3, 9)
    first = [*parsed(text, sizes), used]
    second = [Progress(3, 3), *parsed(text, [other], first_id=100), used]
    for at in range(len(first) + 1):
        had = told(*([event] for event in first[:at]))
        both = [*first[:at], *rest(had, second)]
        assert without_ids(fold([first])) == without_ids(fold([both]))
        ids = [event.id for event in both if isinstance(event, ToolCallDelta) and event.id]
        assert len(ids) == len(set(ids)) == len(fold([first]).choices[0].tool_calls)


@given(PIECES, st.integers(1, 9), st.data())
def test_another_answer(pieces: list[str], size: int, data: st.DataObject) -> None:
    """Of an answer that differs from what the client has nothing is told: it ends with the failure that has interrupted it."""
    text = "".join(pieces) + "."
    wrong = data.draw(st.integers(0, len(text) - 1))
    first = [event for event in parsed(text, [1]) if not isinstance(event, Finish)]
    had = told(first)
    second = parsed(text[:wrong] + "\0" + text[wrong + 1 :], [size])
    new: list[Event] = []
    with pytest.raises(EngineDied):
        repetition = ReplayFilter(had, LOST)
        for event in second:
            if (fresh := repetition.rest(event)) is not None:
                new.append(fresh)
    assert not new


def test_a_shorter_answer() -> None:
    """An answer that ends before all that the client has is another one."""
    with pytest.raises(EngineDied):
        rest(told([TextDelta("Hello")]), [TextDelta("Hel"), Finish("stop")])
    with pytest.raises(EngineDied):
        rest(told([ReasoningDelta("So.")]), [ReasoningDelta("So"), TextDelta("Yes")])


def test_another_call() -> None:
    """A call of another function is another answer, and so is none."""
    had = told([ToolCallDelta(0, "{", "call_1", "add"), RefusalDelta("No")])
    for event in (ToolCallDelta(0, "{", "call_2", "sub"), ToolCallDelta(1, "{", "call_2", "add")):
        with pytest.raises(EngineDied):
            rest(had, [event])


def test_the_tokens_of_a_piece_that_is_new_in_part() -> None:
    """Of a piece whose beginning the client has, the rest of its text, tokens and log probabilities is told."""
    ones = [TokenLogprob(letter, -1.0) for letter in "abcd"]
    had = told([TextDelta("a", logprobs=ones[:1])], [TextDelta("b", logprobs=ones[1:2])])

    assert [TextDelta("cd", 0, ones[2:], None, 2)] == rest(
        had, [TextDelta("abcd", logprobs=ones, tokens=4)]
    )
    assert [] == rest(had, [TextDelta("ab", logprobs=ones[:2], tokens=2)])


def test_choices_are_held_against_each_other_by_their_index() -> None:
    """Choices come in another order the second time; of each the client gets the rest."""
    batches: list[list[Event]] = [[TextDelta("a", 0)], [TextDelta("x", 1)], [Finish("stop", 1)]]
    second = [
        Opaque(Extra({"promptToken": [1]}), 0),
        TextDelta("xy", 1),
        TextDelta("ab", 0),
        Finish("stop", 0),
    ]
    with pytest.raises(EngineDied):
        rest(told(*batches, [TextDelta("z", 1)]), second)
    had = told([Opaque(Extra({"promptToken": [1]}), 0)], *batches[:2])
    assert ["y", "b"] == [e.text for e in rest(had, second) if isinstance(e, TextDelta)]


def test_a_long_answer_is_remembered_in_few_pieces() -> None:
    """Of an answer of many batches the last are kept as they are, and of the others what they say."""
    many = DeliveredOutput()
    for number in range(3000):
        many.add([TextDelta(f"{number} ")])

    assert len(many._recent) <= 256
    whole = many.whole()
    assert 3000 == whole.tokens
    assert "".join(f"{number} " for number in range(3000)) == whole.texts[0, TextDelta]
    assert "2999 " == many.tail()[-1].text


class Mortal(Backend):
    """
    A backend that makes a text a letter at a time, and dies as often as it is told.

    Attributes:
        asked: What it was asked.
    """

    def __init__(
        self, *lives: int, text: str = "Hello, 世界!", can: Capabilities = AGAIN, error: Any = None
    ) -> None:
        self.capabilities = can
        self.asked: list[ChatRequest | CompletionRequest] = []
        self._lives = list(lives)
        self._text = text
        self._error = error

    async def start(self) -> None:
        """Be ready."""

    async def aclose(self) -> None:
        """Stop."""

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Make the text, or so many letters of it."""
        self.asked.append(request)
        life = self._lives.pop(0) if self._lives else None
        yield [Progress(2, 2)]
        for letter in self._text[:life]:
            yield [TextDelta(letter)]
        if life is not None:
            raise self._error or EngineDied("It died.")
        yield [Finish("stop"), Usage(2, len(self._text))]


class Client:
    """What a client gets of a model of these backends: the answer, the error that ends it, and how often each backend is said to fail."""

    def __init__(self, *backends: Any) -> None:
        model = Model("m", [PooledBackend(backend) for backend in backends])
        self.metrics = Metrics()
        self.service = Service(Registry([model]), Accounts(self.metrics))
        self.text = ""
        self.usage = Usage(0, 0)
        self.error: UnilectError | None = None
        self.failures: list[int] = []

    async def asks(self, request: ChatRequest | CompletionRequest) -> "Client":
        """Send a request."""
        folding, run = Fold(), self.service.run(request)
        try:
            async with aclosing(run.batches()) as batches:
                async for batch in batches:
                    folding.add(batch)
        except UnilectError as error:
            self.error = error
        answer = folding.answer()
        self.text = "".join(choice.text or "" for choice in answer.choices)
        self.usage = run.usage
        members = self.service.registry.get("m").pool.members
        self.failures = [len(member.breaker.failed) for member in members]
        await self.service.registry.aclose()
        return self


@pytest.mark.parametrize("life", range(10))
async def test_an_engine_that_dies(life: int) -> None:
    """A stream whose engine dies after any letter is whole: nothing is missing or told twice, and each token is counted once."""
    mortal = Mortal(life)
    client = await Client(mortal).asks(chat(stream=True, temperature=0.5))

    assert ("Hello, 世界!", None) == (client.text, client.error)
    assert Usage(2, 10) == client.usage
    seeds = {request.seed for request in mortal.asked}
    assert (2, 1, True) == (len(mortal.asked), len(seeds), None not in seeds)


@pytest.mark.parametrize(
    ("lives", "text"),
    [((3, 5, 7), "Hello, 世界!"), ((3, 3), "Hel"), ((3, 2), "Hel"), ((1, 3, 5, 7), "Hello, ")],
)
async def test_an_engine_that_dies_again(lives: tuple[int, ...], text: str) -> None:
    """A stream outlives further deaths of its engine where its client got more of it between them, three of them at most."""
    mortal = Mortal(*lives)
    client = await Client(mortal).asks(chat(stream=True, temperature=0))

    assert text == client.text
    assert (text != "Hello, 世界!") == isinstance(client.error, EngineDied)
    assert len(lives) + (client.error is None) == len(mortal.asked)


class Reloaded(Mortal):
    """An engine that dies after three letters, in the moment in which a reload gives its model other settings."""

    def __init__(self) -> None:
        super().__init__(3, can=replace(AGAIN, parameters=PENALIZED))
        self.model = Model("m", cast(Any, self), defaults={"presence_penalty": 0.5})

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """As `Mortal`."""
        try:
            async with aclosing(super().generate(request)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            other = {"presence_penalty": 1.5, "frequency_penalty": 1.0}
            self.model.update_settings(
                Model("m", cast(Any, self), defaults=other, unsupported="report")
            )
            self.model.own_defaults.setdefault("", {})["presence_penalty"] = 1.0


async def test_settings_that_change_meanwhile() -> None:
    """A stream whose engine dies goes on with the defaults that it has begun with, and the next one has those that a reload has set."""
    engine = Reloaded()
    engine.model.own_defaults[""] = {"presence_penalty": 0.25}
    service = Service(Registry([engine.model]), Accounts(Metrics()))
    texts = []
    for _ in range(2):
        async with aclosing(service.run(chat(stream=True)).batches()) as batches:
            texts.append(fold([batch async for batch in batches]).choices[0].text)

    asked = [(one.presence_penalty, one.frequency_penalty) for one in engine.asked]
    assert ["Hello, 世界!"] * 2 == texts
    assert [(0.25, None), (0.25, None), (1.0, 1.0)] == asked


class Ended(Mortal):
    """An engine that is ended from outside after so many letters, and is away until it is started again."""

    def __init__(self, life: int) -> None:
        error = EngineDied("It was ended.")
        error.from_outside = True
        super().__init__(life, error=error)
        self.comes_back, self.processes = True, 1
        self.children, self.witnesses = (self,), set[Witness]()

    async def start(self) -> None:
        """Be back."""
        self.processes = 1

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """As `Mortal`."""
        self.processes = len(self._lives) ^ 1
        async with aclosing(super().generate(request)) as batches:
            async for batch in batches:
                yield batch


@pytest.mark.parametrize(
    ("lives", "more"),
    [
        ((), {"text": "Hallo"}),
        ((), {"text": "Hallo", "can": replace(AGAIN, continues=True)}),
        ((0,), {"error": InvalidRequest("No.")}),
        ((), {"text": "!", "can": Capabilities(resumes="text")}),
    ],
)
async def test_an_engine_that_is_ended_from_outside(
    lives: tuple[int, ...], more: dict[str, Any]
) -> None:
    """Where the other backend cannot go on with a stream, the engine that had it makes the rest once it is back."""
    mortal = Ended(4)
    client = await Client(mortal, Mortal(*lives, **more)).asks(chat(stream=True, seed=1))

    assert ("Hello, 世界!", None) == (client.text, client.error)
    assert 2 == len(mortal.asked)


async def test_an_engine_whose_answer_another_one_goes_on_with() -> None:
    """Where the other backend makes the same answer, the engine that was ended is not waited for."""
    mortal, other = Ended(4), Mortal()
    client = await Client(mortal, other).asks(chat(stream=True, seed=1))

    assert ("Hello, 世界!", None) == (client.text, client.error)
    assert (1, 1) == (len(mortal.asked), len(other.asked))


async def test_the_seed_of_a_request() -> None:
    """An answer is made again with its client's seed; one that leaves nothing to chance needs none, and a whole one is made anew."""
    for fields, seed in (({"seed": 7}, 7), ({"temperature": 0}, None)):
        mortal = Mortal(3)
        assert not (await Client(mortal).asks(chat(stream=True, **fields))).error
        assert [seed, seed] == [request.seed for request in mortal.asked]
    mortal = Mortal(3)
    assert not (await Client(mortal).asks(chat(temperature=0.5))).error
    assert [None, None] == [request.seed for request in mortal.asked]


async def test_the_next_backend_goes_on() -> None:
    """Where a backend breaks in the middle the next one of its model makes the rest."""
    broken, well = Mortal(4, error=BackendError("It broke.")), Mortal()
    client = await Client(broken, well).asks(chat(stream=True))

    assert ("Hello, 世界!", None) == (client.text, client.error)
    assert (1, 1) == (len(broken.asked), len(well.asked))


async def test_backends_that_break_one_after_the_other() -> None:
    """Each goes on where the client is, also one that follows a second failure; where none is left the client hears the last one."""
    backends = [Mortal(n, error=BackendError(f"It broke at {n}.")) for n in (3, 2, 6)]
    client = await Client(*backends, Mortal()).asks(chat(stream=True))
    assert ("Hello, 世界!", None) == (client.text, client.error)

    backends = [Mortal(n, error=BackendError(f"It broke at {n}.")) for n in (3, 3)]
    client = await Client(*backends).asks(chat(stream=True))
    assert ("Hel", "It broke at 3.") == (client.text, str(client.error))


async def test_a_backend_that_makes_another_answer() -> None:
    """An answer that turns out to be another one ends with the failure that interrupted it, and its backend is not to blame."""
    backends = Mortal(4, error=BackendError("It broke.")), Mortal(text="Hallo"), Mortal()
    client = await Client(*backends).asks(chat(stream=True))

    assert ("Hell", "It broke.") == (client.text, str(client.error))
    assert [1, 1, 0] == [len(backend.asked) for backend in backends]
    assert [1, 0, 0] == client.failures


class Other(Mortal):
    """A backend that makes another answer by itself, and goes on with one that it is given."""

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Make the text, or go on with that of a last message."""
        assert isinstance(request, ChatRequest)
        last = request.messages[-1]
        self._text = f"o to {last.content}o!" if last.role == "assistant" else "Hallo"
        async with aclosing(super().generate(request)) as batches:
            async for batch in batches:
                yield batch


async def test_an_engine_that_makes_another_answer_goes_on_with_the_text() -> None:
    """An engine that does not make the same answer again is given the text, where a text can go on; the usage is that of all of it."""
    can = replace(AGAIN, continues=True)
    backends = Mortal(4, error=BackendError("It broke."), can=can), Other(can=can)
    client = await Client(*backends).asks(chat(stream=True, temperature=0.5))
    assert ("Hello to Hello!", None) == (client.text, client.error)
    assert 15 == client.usage.completion_tokens

    backends = Mortal(4, error=BackendError("It broke."), can=can), Other(can=can)
    client = await Client(*backends).asks(chat(stream=True, temperature=0.5, seed=1))
    assert ("Hell", "It broke.") == (client.text, str(client.error))


@pytest.mark.parametrize("error", [InvalidRequest("No."), RateLimited("Later.")])
async def test_a_backend_that_refuses_to_go_on(error: UnilectError) -> None:
    """A client whose answer was interrupted is not told that its request is wrong; one that is busy is followed by the next."""
    backends = [Mortal(4, error=BackendError("It broke.")), Mortal(0, error=error), Mortal()]
    client = await Client(*backends).asks(chat(stream=True))
    refused = isinstance(error, InvalidRequest)

    assert ("Hell" if refused else "Hello, 世界!") == client.text
    assert ("It broke." if refused else "None") == str(client.error)


@pytest.mark.parametrize(
    ("can", "fields"),
    [(Capabilities(), {"temperature": 0}), (AGAIN, {"temperature": 0.5})],
)
async def test_what_cannot_go_on(can: Capabilities, fields: dict[str, Any]) -> None:
    """A stream ends with the failure where its backend makes another answer each time, or its seed cannot be set."""
    can = replace(can, parameters=can.parameters | {"seed": "refused"})
    mortal = Mortal(4, can=can)
    client = await Client(mortal).asks(chat(stream=True, **fields))

    assert ("Hell", True) == (client.text, isinstance(client.error, EngineDied))
    assert len(mortal.asked) <= 2


async def test_the_request_that_an_engine_died_of() -> None:
    """The stream of a request that is to blame for the death of its engine is not made again."""
    blamed = EngineDied("It was you.")
    blamed.blamed = True
    mortal = Mortal(4, error=blamed)
    client = await Client(mortal).asks(chat(stream=True))

    assert ("Hell", blamed, 1) == (client.text, client.error, len(mortal.asked))


async def test_no_other_model_goes_on() -> None:
    """An answer that has begun is not continued by the fallback of its model."""
    other = Mortal()
    models = [
        Model("m", [PooledBackend(Mortal(4, error=BackendError("It broke.")))], fallback="other"),
        Model("other", [PooledBackend(other)]),
    ]
    client = Client()
    client.service = Service(Registry(models), Accounts(Metrics()))
    await client.asks(chat(stream=True, model="m"))

    assert ("Hell", "It broke.", []) == (client.text, str(client.error), other.asked)


async def test_each_of_several_choices_goes_on() -> None:
    """Choices that are made beside each other are all made again, each with a seed of its own."""
    can = replace(AGAIN, parameters=AGAIN.parameters | {"n": "emulated"}, fans_out=True)
    mortal = Mortal(3, 10, can=can)
    client = await Client(mortal).asks(completion(n=2, stream=True, temperature=0.5))

    assert ("Hello, 世界!" * 2, None) == (client.text, client.error)
    seeds = [request.seed for request in mortal.asked]
    assert (4, 2) == (len(seeds), len(set(seeds)))


@pytest.mark.parametrize(("streams", "resumes"), [(False, "again"), (True, None), (True, "again")])
async def test_what_is_kept_of_an_answer(streams: bool, resumes: Any) -> None:
    """Nothing is kept of a whole answer, nor of one whose backend nobody can follow; nor is a seed set."""
    mortal = Mortal(can=replace(AGAIN, resumes=resumes))
    client = Client(mortal)
    run = client.service.run(chat(stream=streams, temperature=0.5))
    async with aclosing(run.batches()) as batches:
        assert [batch async for batch in batches]
    kept = streams and resumes is not None
    assert kept == (run._attempts.continuation is not None)
    assert kept == (mortal.asked[0].seed is not None)
    await client.service.registry.aclose()


@pytest.mark.parametrize("name", ["vLLM", "SGLang", "llama-server"])
async def test_a_server_that_continues_messages(name: str) -> None:
    """The next server of a kind that continues messages gets the text as its last one, under the fields that it knows."""
    asked: list[Any] = []

    async def cut(exchange: Exchange) -> None:
        asked.append(exchange.json())
        await exchange.send(
            stream_of(frames(delta(role="assistant", content=""), delta(content="Hel")))
        )
        exchange.reset()

    async def rest(exchange: Exchange) -> None:
        asked.append(exchange.json())
        used = {"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8}
        said = (
            delta(role="assistant"),
            delta(content="lo"),
            delta(content="!"),
            delta(finish="stop"),
        )
        await exchange.send(stream_of(frames(*said, {"choices": [], "usage": used}, DONE)))
        exchange.close()

    async with scripted(cut) as one, scripted(rest) as two:
        backends = [OpenAIUpstream(HttpServer(server.url), "m") for server in (one, two)]
        for backend in backends:
            backend.kind = next(kind for kind in KINDS if kind.name == name)
            backend.capabilities = capabilities(backend.kind, {})
        client = await Client(*backends).asks(chat(stream=True, temperature=0.5, max_tokens=9))

    assert ("Hello!", None, Usage(5, 3)) == (client.text, client.error, client.usage)
    first, second = asked
    assert [*first["messages"], {"role": "assistant", "content": "Hel"}] == second["messages"]
    assert (9, 8, True) == (
        first["max_tokens"], second["max_tokens"], second["continue_final_message"],
    )  # fmt: skip
    assert "continue_final_message" not in first
