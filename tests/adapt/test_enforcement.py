"""Tests of unilect.adapt.enforcement, on the bundled model's engines."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, Spy, answer, chat, completion, engine, events_of
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.adapt import emulation
from unilect.adapt.enforcement import ATTEMPTS, ConstraintEnforcer, output_constraints
from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.api.parameters.rules import Unsupported
from unilect.constraints.checker import Checker
from unilect.core.errors import (
    CheckerUnavailable,
    ConstraintViolated,
    InvalidRequest,
    UnsupportedParameter,
)
from unilect.core.events import Finish
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.breaker import Breaker

#: What no engine enforces while it writes, and no digit satisfies.
NEVER: dict[str, Any] = {"not": {"type": "integer"}}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def demo(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """The bundled model on each engine, four requests at a time."""
    async with engine(request.param, parallel=4) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def checker() -> AsyncIterator[Checker]:
    """One for all tests."""
    made = Checker()
    yield made
    await made.aclose()


def digit(**keywords: Any) -> dict[str, Any]:
    """A format: an object of one digit, which is bound further."""
    a = {"type": "integer", "minimum": 0, "maximum": 9} | keywords
    schema = {"type": "object", "properties": {"a": a}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def held(backend: Any, checker: Checker, ignored: list[str] | None = None) -> ConstraintEnforcer:
    """A backend whose answers are held against what they must satisfy; what is ignored is noted, or refused."""
    told = [] if ignored is None else ignored
    rule: Unsupported = "refuse" if ignored is None else "report"
    return ConstraintEnforcer(backend, checker, rule, told.append)


async def test_asked_again(demo: Backend, checker: Checker) -> None:
    """A whole answer that breaks a keyword which the engine does not enforce is asked for again, and all attempts are counted."""
    spy = Spy(demo)
    request = chat("A number?", response_format=digit(**{"not": {"maximum": 5}}), temperature=0)
    prompt = await demo.count_tokens(request)
    attempts = set()
    for seed in range(12):
        spy.asked.clear()
        try:
            found = await answer(held(spy, checker).generate(request.changed(seed=seed)))
        except ConstraintViolated:
            assert ATTEMPTS == len(spy.asked)
            continue
        assert json.loads(found.choices[0].text or "")["a"] > 5
        assert prompt * len(spy.asked) == found.usage.prompt_tokens
        assert len({one.seed for one in spy.asked}) == len(spy.asked)
        attempts.add(len(spy.asked))

    assert attempts & {2, 3}


async def test_what_no_answer_satisfies(demo: Backend, checker: Checker) -> None:
    """Where three answers do not satisfy a schema the request fails, which is no failure of the backend."""
    spy = Spy(demo)
    request = chat("A number?", response_format=digit(**NEVER))
    with pytest.raises(
        ConstraintViolated, match=r"None of 3 answers.*`response_format`: at"
    ) as why:
        await events_of(held(spy, checker).generate(request))

    assert (422, "constraint_violated", 3) == (why.value.status, why.value.code, len(spy.asked))
    breaker = Breaker()
    for error in 20 * [why.value, CheckerUnavailable("busy", retry_after_s=2)]:
        breaker.record_result(error, 0.0)
    assert breaker.allows(0.0)


async def test_streams_are_held_back(demo: Backend, checker: Checker) -> None:
    """A stream whose schema has a keyword that the engine does not enforce tells nothing of the answers that break it."""
    spy = Spy(demo)
    wanted = digit(**{"not": {"maximum": 5}})
    request = chat("A number?", response_format=wanted, temperature=0, stream=True)
    attempts = set()
    for seed in range(12):
        spy.asked.clear()
        try:
            found = await answer(held(spy, checker).generate(request.changed(seed=seed)))
        except ConstraintViolated as error:
            assert "None of 3 answers" in str(error)
            continue
        assert json.loads(found.choices[0].text or "")["a"] > 5
        attempts.add(len(spy.asked))

    assert attempts & {2, 3}


async def test_streams_that_nothing_holds(demo: Backend, checker: Checker) -> None:
    """A stream whose schema has a keyword that nothing enforces is refused by name and path, or comes as it is made and names it."""
    spy, ignored = Spy(demo), list[str]()
    wanted = digit(format="ipv9", **NEVER)
    request = chat("?", response_format=wanted, stream=True)
    with pytest.raises(UnsupportedParameter, match=r"`format: ipv9` \(at \$\.properties\.a\)"):
        await events_of(held(spy, checker).generate(request))
    assert [] == spy.asked

    found = await answer(held(spy, checker, ignored).generate(request))
    assert (["response_format.format:ipv9"], 1) == (ignored, len(spy.asked))
    assert "a" in json.loads(found.choices[0].text or "")


async def test_a_format_that_nobody_knows(demo: Backend, checker: Checker) -> None:
    """A format that neither engine nor validator knows is refused, or reported."""
    request = chat("?", response_format=digit(format="ipv9"))
    with pytest.raises(UnsupportedParameter, match=r"`format: ipv9`.*the validator supports it"):
        await events_of(held(demo, checker).generate(request))
    ignored: list[str] = []
    await events_of(held(demo, checker, ignored).generate(request))
    assert ["response_format.format:ipv9"] == ignored


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": digit(type="hiccup")}, "response_format"),
        ({"response_format": digit(pattern="([")}, "response_format"),
        ({"response_format": digit(pattern="(["), "max_tokens": 0}, "response_format"),
        ({"response_format": digit(pattern="(["), "n": 2, "stream": True}, "response_format"),
        ({"grammar": "%llguidance {}\nstart: /(a?){2000}a{2000}/"}, "grammar"),
        ({"grammar": "%llguidance {}\nstart: nobody"}, "grammar"),
    ],
    ids=str,
)
async def test_what_is_none(
    demo: Backend, checker: Checker, fields: dict[str, Any], param: str
) -> None:
    """A schema or grammar that is none is the request's fault, also where no token is wanted."""
    spy = Spy(demo)
    with pytest.raises(InvalidRequest, match="cannot be compiled") as why:
        await events_of(emulation.generate(held(spy, checker), chat("?", **fields)))
    assert (param, []) == (why.value.param, spy.asked)


class Deaf(Spy):
    """An engine that follows nothing, as one whose matcher has given up without a word."""

    def generate(self, request: Any) -> Any:
        """An answer without what binds it."""
        return super().generate(request.changed(grammar=None, response_format=None))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fields",
    [{"response_format": digit()}, {"grammar": '%llguidance {}\nstart: "yes" | "yea"'}],
    ids=["schema", "grammar"],
)
async def test_what_an_engine_lets_through(
    demo: Backend, checker: Checker, fields: dict[str, Any], stream: bool
) -> None:
    """An answer that breaks what the engine should have enforced is never told to be finished."""
    ends: list[Any] = []
    batches = held(Deaf(demo), checker).generate(chat("?", stream=stream, **fields))
    with pytest.raises(ConstraintViolated):
        async with aclosing(batches):
            async for batch in batches:
                ends += [event for event in batch if isinstance(event, Finish)]
    assert [] == ends


@pytest.mark.parametrize("stream", [True, False])
async def test_what_holds(demo: Backend, checker: Checker, stream: bool) -> None:
    """An answer that satisfies its schema is told as it is."""
    request = chat("?", stream=stream, response_format=digit())
    found = await answer(held(demo, checker).generate(request))

    assert "stop" == found.choices[0].finish_reason
    assert "a" in json.loads(found.choices[0].text or "")


async def test_what_the_client_cuts(demo: Backend, checker: Checker) -> None:
    """An answer that ends by `max_tokens` or by a stop word of the client's is told as it is."""
    for fields in ({"max_tokens": 2}, {"stop": [":"]}):
        request = chat("?", response_format=digit(), **fields)
        found = await answer(held(demo, checker).generate(request))
        assert not (found.choices[0].text or "").endswith("}")


async def test_each_choice_by_itself(demo: Backend, checker: Checker) -> None:
    """Of several choices only the one that breaks its schema is asked for again."""
    spy = Spy(demo)
    wanted = digit(**{"not": {"const": 2}})
    request = chat("A number?", response_format=wanted, n=4, temperature=1, seed=5)
    found = await answer(emulation.generate(held(spy, checker), request))

    assert 2 not in [json.loads(one.text or "")["a"] for one in found.choices]
    assert 4 <= len(spy.asked) < 8


async def test_bonds() -> None:
    """Formats, grammars that llguidance follows and strict tools that must be called bind the end of an answer; all else does not."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}},
        {"type": "function", "function": {"name": "g", "parameters": schema}},
    ]
    named = {"type": "function", "function": {"name": "g"}}

    assert ["f"] == [
        bond.tool for bond in output_constraints(chat("?", tools=tools, tool_choice="required"))
    ]
    assert [] == output_constraints(chat("?", tools=tools, tool_choice=named))
    assert [] == output_constraints(chat("?", tools=tools))
    assert [] == output_constraints(chat("?", grammar='root ::= "a"'))
    assert [] == output_constraints(completion("?"))
    assert [{"type": "object"}] == [
        bond.schema
        for bond in output_constraints(chat("?", response_format={"type": "json_object"}))
    ]
    assert 1 == len(output_constraints(completion("?", grammar='%llguidance {}\nstart: "a"')))


async def test_the_arguments_of_strict_tools(demo: Backend, checker: Checker) -> None:
    """The arguments of a call that must come satisfy the schema of a strict tool, also what the engine does not enforce."""
    a = {"type": "integer", "minimum": 0, "maximum": 9} | NEVER
    parameters = {"type": "object", "properties": {"a": a}, "required": ["a"]}
    for strict in (True, False):
        function = {"name": "f", "parameters": parameters, "strict": strict}
        tools = [{"type": "function", "function": function}]
        request = chat("?", tools=tools, tool_choice="required")
        backend = held(demo, checker)
        if strict:
            for stream in (False, True):
                with pytest.raises(ConstraintViolated, match="`tools`: at"):
                    await events_of(backend.generate(request.changed(stream=stream)))


async def test_the_service_holds_answers(demo: Backend) -> None:
    """The service has each engine's answers held against what they must satisfy, and names what is ignored."""
    registry = Registry([Model("m", demo), Model("r", demo, unsupported="report")])
    service = Service(registry, Accounts(Metrics()))
    request = chat("?", response_format=digit(**NEVER))
    try:
        with pytest.raises(ConstraintViolated):
            await events_of(service.run(request.changed(model="m")).batches())
        unknown = chat("?", response_format=digit(format="ipv9"), stream=True)
        run = service.run(unknown.changed(model="r"))
        await events_of(run.batches())
        assert ("response_format.format:ipv9",) == run.ignored
    finally:
        await registry.checker.aclose()
