"""Tests of unilect.constraints.checker and its helper processes: the real libraries, and what is too hard for them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from support.clients.callers import of
from support.common.waiting import until
from unilect.constraints.checker import MAX_WAITING, MODEL, Checker
from unilect.constraints.process import child
from unilect.constraints.process import helper as _helper
from unilect.constraints.process.lane import Lane
from unilect.constraints.process.turns import Job, Turns
from unilect.core.errors import CheckerUnavailable, InternalError, InvalidRequest, TooManyWaiting

HARD = {"type": "string", "pattern": "^([a-df-z]*[a-df-z]*){0,8}$"}
DEFINITIONS: dict[str, Any] = {
    f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
    for i in range(1100)
}
CHAIN = {"$ref": "#/$defs/d0", "$defs": DEFINITIONS | {"d1100": {"type": "string"}}}
#: The helper without its analysis of grammars: what only limits can end.
BLIND = "from unilect.constraints import gbnf; from unilect.constraints.process import child; gbnf.analyse = lambda *text: None; child.main()"
#: A server that dies with a helper at work.
DYING = """
import asyncio
from unilect.constraints.checker import Checker
async def main():
    checker = Checker()
    await checker.gbnf('root ::= "a"', "grammar")
    print(checker._quick.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def checking(command: list[str] | None = None) -> AsyncIterator[Checker]:
    """A checker that is closed at the end."""
    checker = Checker(command)
    try:
        yield checker
    finally:
        await checker.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def checker() -> AsyncIterator[Checker]:
    """One for the tests that leave it as it is."""
    async with checking() as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too hard in the patient lane is so after the time of the quick one."""
    monkeypatch.setattr(_helper, "PATIENT_S", _helper.QUICK_S)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that helpers are given."""
    jobs: list[str] = []
    do = Lane.do

    async def counted(lane: Lane, name: str, *args: Any) -> Any:
        jobs.append(name)
        return await do(lane, name, *args)

    monkeypatch.setattr(Lane, "do", counted)
    return jobs


async def test_no_process_before_its_use() -> None:
    """A checker that nobody asks starts no process."""
    async with checking() as made:
        assert (None, None) == (made._quick.pid, made._patient.pid)


async def test_each_caller_has_results_of_its_own(checker: Checker, asked: list[str]) -> None:
    """A constraint that another caller has sent is compiled as if it were new, one of the caller's own is not."""
    for caller in ("ada", "ada", "bob", "ada", "bob"):
        with of(caller):
            await checker.gbnf('root ::= "each caller has results"', "grammar")

    assert ["gbnf"] * 2 == asked


@pytest.mark.parametrize(
    ("job", "constraint", "told"),
    [
        ("gbnf", 'root ::= "a"{5,2}', "line 1: a repetition is reversed"),
        ("gbnf", "[" * 65000, "the name of a rule was expected"),
        ("gbnf", "[" * 70000, "the maximum is 65536"),
        ("gbnf", 'root ::= (("a" | "b" | "c" "d") "x" ("y" ("z"))){1000}', "exceeds sane defaults"),
        pytest.param("gbnf", "root ::= ([a-df-z]* [a-df-z]*){0,8}", "too", marks=pytest.mark.heavy),
        pytest.param("gbnf", 'root ::= "hello" ([a-df-z]* [a-df-z]*){0,8}', "too", marks=pytest.mark.heavy),
        pytest.param("schema_to_gbnf", {"properties": {"a": HARD}}, "too", marks=pytest.mark.heavy),
        ("llguidance", '%llguidance {}\nstart: /(a?){2000}a{2000}/', "too many expressions"),
        ("llguidance", "%llguidance {}\nstart: nobody", "nobody"),
        ("llguidance", 'root ::= "a"{1000000}', "a symbol is repeated 1000000 times"),
        ("llguidance", "root ::= (", "a group is not closed"),
        ("schema", {"type": "hiccup"}, 'at $.type: "hiccup"'),
        ("schema", {"pattern": "(["}, 'at $.pattern: "(["'),
        ("schema", {"$ref": "file:///etc/passwd"}, "URLs are not fetched"),
        ("schema", {"items": {"$dynamicRef": "http://127.0.0.1/"}}, "URLs are not fetched"),
        ("schema", {"enum": ["a" * 300_000]}, "the maximum is 262144"),
        ("schema_to_gbnf", {"type": "integer", "minimum": 3, "maximum": 2}, "`minimum` (3) is above `maximum` (2)"),
    ],
    ids=lambda one: str(one)[:24],
)  # fmt: skip
async def test_what_is_refused(checker: Checker, job: str, constraint: Any, told: str) -> None:
    """A constraint that cannot be compiled is refused with the parameter and the reason, also the second time."""
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="`here` cannot be compiled") as caught:
            await getattr(checker, job)(constraint, "here")
        assert told in caught.value.message
        assert "here" == caught.value.param


async def test_what_is_followed(checker: Checker) -> None:
    """Grammars of both languages pass, with tokens of a vocabulary that is not known here."""
    await checker.gbnf('root ::= <[99999]> <think> "a"', "grammar")
    await checker.llguidance('root ::= ("yes" | "no")+', "grammar")
    await checker.llguidance('%llguidance {}\nstart: <|im_end|> "<|x|>" <[99999]> /<a>/', "grammar")


async def test_a_grammar_of_a_schema(checker: Checker) -> None:
    """The grammar of a schema has one blank at most between two symbols, and allows what satisfies the schema."""
    schema = {"type": "object", "properties": {"space": {"type": "integer"}}, "required": ["space"]}
    grammar = await checker.schema_to_gbnf(schema, "response_format")

    assert 'space ::= | " "' in grammar.splitlines()
    assert "```" not in grammar
    assert None is await checker.matches(grammar, '{"space": 3}')
    for text in ('{"space":  3}', '{"space": "a"}', '{"space": 3', '```json\n{"space": 3}```'):
        assert await checker.matches(grammar, text)


async def test_what_the_converter_takes(checker: Checker) -> None:
    """llama.cpp's converter takes what it knows, and whatever else it says is no error of the request."""
    assert await checker.is_taken({"type": "object", "properties": {"a": {"const": "x\u2028y"}}})
    assert not await checker.is_taken({"properties": {"a": True}, "type": "object"})
    assert not await checker.is_taken({"enum": ["a" * 300_000]})


async def test_answers_are_held_against_schemas(checker: Checker) -> None:
    """A text satisfies a schema or not, whatever either is."""
    day = {"type": "string", "format": "date"}
    letters = {"type": "string", "pattern": r"^\p{L}+$"}

    assert None is await checker.validate(day, '"2024-02-29"')
    assert 'is not a "date"' in (await checker.validate(day, '"2023-02-29"') or "")
    assert None is await checker.validate(letters, '"año"')
    assert "does not match" in (await checker.validate(letters, '"a1"') or "")
    assert "it is not valid JSON" in (await checker.validate({}, '{"a": ') or "")
    assert "it is not valid JSON" in (await checker.validate({}, "NaN") or "")
    assert "nested too deep" in (await checker.validate({}, "[" * 100_000) or "")
    assert await checker.validate({"$ref": "http://127.0.0.1/"}, "1")
    assert await checker.validate({"pattern": "^(?=(a+)+$)(a+)+b"}, f'"{"a" * 5000}"')


async def test_fifty_at_once(asked: list[str]) -> None:
    """Fifty who bring the same grammar wait for one job, and who comes later is answered from memory."""
    async with checking() as made:
        await asyncio.gather(*(made.gbnf('root ::= "a"', "grammar") for _ in range(50)))
        await made.gbnf('root ::= "a"', "grammar")

        assert ["gbnf"] == asked


@pytest.mark.usefixtures("impatient")
async def test_what_takes_too_long(asked: list[str]) -> None:
    """A job without an end is killed in both lanes and refused, jobs beside it are done, and the next one has a fresh helper."""
    async with checking() as made:
        await made.gbnf("root ::= .", "grammar")
        killed = made._quick.pid
        hard = asyncio.create_task(made.schema_to_gbnf(HARD, "response_format"))
        await until(lambda: "schema_to_gbnf" in asked)
        await made.gbnf('root ::= "b"', "grammar")
        assert not hard.done()  # it is in the patient lane
        with pytest.raises(InvalidRequest, match="takes too long"):
            await hard

        assert ["gbnf", "schema_to_gbnf", "gbnf", "schema_to_gbnf"] == asked
        assert killed != made._quick.pid


async def test_a_client_that_leaves(asked: list[str]) -> None:
    """A job goes on when who brought it leaves, and its result is there for the next one."""
    async with checking() as made:
        leaving = asyncio.create_task(made.gbnf('root ::= "a"', "grammar"))
        await until(lambda: asked)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await made.gbnf('root ::= "a"', "grammar")

        assert ["gbnf"] == asked


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"{5,2}',
        'root ::= e root "a" | "b"\ne ::= "x"?',
        "root ::= # x\r" + "(" * 32000 + '"a"' + ")" * 32000,
    ],
    ids=["reversed", "hidden recursion", "deep"],
)
@pytest.mark.usefixtures("impatient")
async def test_what_only_limits_end(grammar: str) -> None:
    """Without the analysis, what takes all memory or overflows the stack of llama.cpp ends the helper and is refused."""
    command = [sys.executable, "-c", BLIND, str(os.getpid()), str(MODEL)]
    async with checking(command) as made:
        with pytest.raises(InvalidRequest, match=r"takes too|too deep or too large"):
            await made.gbnf(grammar, "grammar")
        await made.gbnf('root ::= "a"', "grammar")


@pytest.mark.usefixtures("impatient")
async def test_a_stack_that_overflows() -> None:
    """A chain of definitions that overflows llguidance's stack ends the helper, which is replaced, and is refused."""
    async with checking() as made:
        with pytest.raises(InvalidRequest, match="too deep or too large"):
            await made.llguidance("%llguidance {}\nstart: %json " + json.dumps(CHAIN), "grammar")
        await made.llguidance('root ::= "a"', "grammar")


def kill(checker: Checker) -> int:
    """Kill the quick lane's helper as somebody from outside would; its process id."""
    pid = checker._quick.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.usefixtures("impatient")
async def test_a_helper_that_is_killed() -> None:
    """A job whose helper somebody kills is done by the next one; where that is killed too, it is an error of ours."""
    async with checking() as made:
        await made.gbnf("root ::= .", "grammar")
        once = asyncio.create_task(made.schema_to_gbnf(HARD, "x"))
        await asyncio.sleep(0)
        kill(made)
        with pytest.raises(InvalidRequest, match="takes too long"):
            await once
        await made.gbnf('root ::= "a"', "grammar")
        twice = asyncio.create_task(made.schema_to_gbnf(HARD | {"title": "other"}, "x"))
        await asyncio.sleep(0)
        first = kill(made)
        await until(lambda: made._quick.pid not in (first, None))
        kill(made)
        with pytest.raises(CheckerUnavailable, match=r"twice|cannot be started"):
            await twice


@pytest.mark.usefixtures("impatient")
async def test_closing_while_jobs_wait() -> None:
    """Who waits when the server stops is told so, and no process is left."""
    made = Checker()
    await made.gbnf("root ::= .", "grammar")
    process = psutil.Process(made._quick.pid)
    jobs = [
        asyncio.create_task(made.schema_to_gbnf(HARD | {"title": str(n)}, "x")) for n in range(4)
    ]
    await until(lambda: made._quick.waiting == 3)
    await made.aclose()

    said = await asyncio.gather(*jobs, return_exceptions=True)
    assert [CheckerUnavailable] * 4 == [type(error) for error in said]
    assert not process.is_running()
    for late in (made.gbnf('root ::= "b"', "grammar"), made.validate({}, "1")):
        with pytest.raises(CheckerUnavailable):
            await late
    assert (None, None) == (made._quick.pid, made._patient.pid)


async def test_too_many_jobs() -> None:
    """More of a caller's jobs than may wait are refused for now, but for the answers that have been worked for."""
    async with checking() as made:
        jobs = [
            asyncio.create_task(made.gbnf(f'root ::= "{n}"', "x")) for n in range(MAX_WAITING + 9)
        ]
        valid = asyncio.create_task(made.validate({}, "1"))
        said = await asyncio.gather(*jobs, return_exceptions=True)

        assert {type(None), TooManyWaiting} == {type(one) for one in said}
        assert None is await valid


async def test_what_a_helper_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper has none of the server's secrets, no core to leave, and is the first that goes when memory runs out."""
    monkeypatch.setenv("UNILECT_API_KEYS", "sk-secret")
    async with checking() as made:
        await made.gbnf("root ::= .", "grammar")
        process = psutil.Process(made._quick.pid)

        assert "sk-secret" not in str(process.environ())
        assert (0, 0) == process.rlimit(psutil.RLIMIT_CORE)
        assert 2**30 > process.rlimit(psutil.RLIMIT_DATA)[1] > 0
        assert "1000" == Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip()


async def test_a_helper_dies_with_its_server() -> None:
    """A server that is killed leaves no helper."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DYING, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    helper = psutil.Process(int(await server.stdout.readline()))
    server.kill()
    await server.wait()

    await asyncio.to_thread(helper.wait, 60)
    assert not helper.is_running()


async def test_a_helper_that_cannot_start() -> None:
    """A helper that does not start is an error of ours, whichever way it fails."""
    for command in (["/nowhere"], [sys.executable, "-c", ""]):
        async with checking(command) as made:
            with pytest.raises(CheckerUnavailable, match="cannot be started"):
                await made.gbnf("root ::= .", "grammar")
    wrong = [
        sys.executable,
        "-m",
        "unilect.constraints.process.child",
        str(os.getpid()),
        "/nowhere",
    ]
    async with checking(wrong) as made:
        with pytest.raises(CheckerUnavailable, match="cannot be started"):
            await made.gbnf("root ::= .", "grammar")


#: Says what is no answer to its first job, and is silent; its next life answers.
BABBLER = """
import json, os, sys
print('{"ready": true}', flush=True)
sys.stdin.readline()
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    print("no answer", flush=True)
    sys.stdin.readline()
print('{"done": 7}', flush=True)
sys.stdin.readline()
"""


async def test_a_helper_that_babbles(tmp_path: Path) -> None:
    """A helper that says what is no answer is replaced, and who waits is served."""
    command = [sys.executable, "-c", BABBLER, str(tmp_path / "babbled")]
    lane = Lane(command, _helper.PATIENT_S, 4)
    try:
        assert 7 == await lane.do("gbnf", {})
    finally:
        await lane.aclose()


async def test_who_waits_for_a_job_leaves() -> None:
    """A job for which nobody waits any longer is not done."""
    done: list[str] = []
    lane = Lane([sys.executable, "-c", BABBLER], _helper.PATIENT_S, 4)
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(job: Job) -> str:
        done.append(job.name)
        begun.set()
        await go.wait()
        return job.name

    lane._ask = answer  # type: ignore[method-assign]
    try:
        first, left, last = (asyncio.create_task(lane.do(name, {})) for name in "abc")
        await begun.wait()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        go.set()
        assert ["a", "c"] == await asyncio.gather(first, last)
        assert ["a", "c"] == done
    finally:
        await lane.aclose()


def wait_for(turns: Turns, caller: str, name: str = "", urgent: bool = False) -> Job:
    """A job that waits for its turn."""
    answer = asyncio.get_running_loop().create_future()
    job = Job(name, {}, answer, caller, urgent)
    turns.add(job)
    return job


def served(turns: Turns, times_s: dict[str, float]) -> list[str]:
    """The callers in the order of their turns, each of which takes the caller's time."""
    callers = []
    while (job := turns.take()) is not None:
        callers.append(job.caller)
        turns.charge(job.caller, times_s[job.caller])
    return callers


async def test_turns_by_time() -> None:
    """Who has used less of the helper is next, so quick jobs of one pass by the slow ones of another."""
    turns = Turns(64)
    for _ in range(3):
        wait_for(turns, "slow")
    for _ in range(5):
        wait_for(turns, "quick")

    assert ["slow", *["quick"] * 5, "slow", "slow"] == served(turns, {"slow": 0.5, "quick": 0.01})


async def test_who_comes_waits_for_one_job() -> None:
    """A caller who comes again and again beside twenty slow jobs of another waits for one of them at most, and so does the other."""
    turns = Turns(64)
    for _ in range(20):
        wait_for(turns, "slow")
    order = []
    for _ in range(8):
        job = turns.take()
        assert job is not None
        order.append(job.caller)
        wait_for(turns, "victim")
        turns.charge(job.caller, 0.5)

    assert ["slow"] + ["victim", "slow"] * 3 + ["victim"] == order


async def test_who_has_most_gives_way() -> None:
    """Where there is no room, the newest of the caller with the most is refused with 429; where all have one, who comes with 503."""
    turns = Turns(3)
    many = [wait_for(turns, "many") for _ in range(3)]
    one = wait_for(turns, "one")
    other = wait_for(turns, "other")
    assert [False, True, True] == [job.answer.done() for job in many]
    assert [TooManyWaiting] * 2 == [type(job.answer.exception()) for job in many[1:]]
    assert not one.answer.done()

    last = wait_for(turns, "last")
    refused = last.answer.exception()
    assert isinstance(refused, CheckerUnavailable)
    assert not other.answer.done()
    assert [503, 429, 2.0] == [
        refused.status,
        TooManyWaiting.status,
        refused.retry_after_s,
    ]


async def test_urgent_jobs_keep_to_turns() -> None:
    """An urgent job goes before the caller's own others, and not before another caller's turn."""
    turns = Turns(64)
    wait_for(turns, "a", "usual")
    wait_for(turns, "b", "usual")
    for _ in range(2):
        wait_for(turns, "a", "urgent", urgent=True)
    order = []
    while (job := turns.take()) is not None:
        order.append(f"{job.caller} {job.name}")
        turns.charge(job.caller, 1.0)

    assert ["a urgent", "b usual", "a urgent", "a usual"] == order


#: A helper that takes any job, and is told by a file of lines what to do with each.
ODD = """
import json, os, sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    name = json.loads(line)["job"]
    if name == "raise":
        raise KeyError(name)
    print({"odd": '{"odd": 1}', "list": "[]", "none": "", "bytes": "\\xff", "flaw": '{"flaw": "Traceback: here"}'}.get(name, '{"done": 7}'), flush=True)
"""


@pytest.mark.parametrize("name", ["raise", "odd", "list", "none", "bytes", "flaw"])
async def test_a_flaw_in_the_helper(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error in the helper, or what is no answer, is told as ours, the log has the reason, and who waits behind it is served."""
    lane = Lane([sys.executable, "-c", ODD], _helper.PATIENT_S, 4)
    try:
        wrong, waits = (asyncio.create_task(lane.do(job, {})) for job in (name, "gbnf"))
        with pytest.raises(InternalError, match="a bug in unilect"):
            await wrong
        assert 7 == await waits
    finally:
        await lane.aclose()
    told = {"raise": "KeyError: 'raise'", "flaw": "Traceback: here"}
    assert told.get(name, "it said what is no answer") in caplog.text


async def test_an_error_of_a_job() -> None:
    """A job's Python error is told with its frames and without its message, and a library's panic is a refusal."""

    class Panic(BaseException):
        pass

    with pytest.raises(KeyError) as caught:
        raise KeyError(f"a {'secret'}")
    error = child._flaw(caught.value)
    assert "test_checker.py" in error["flaw"]
    assert "KeyError" in error["flaw"]
    assert "a secret" not in str(error)
    assert "refused" not in error
    assert "refused" in child._flaw(Panic())


#: A helper whose jobs take a moment of the processor.
SLOW = """
import sys, time
print('{"ready": true}', flush=True)
for line in sys.stdin:
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    print('{"done": null}', flush=True)
"""


async def test_another_callers_slow_grammars() -> None:
    """A caller's constraint is compiled after one slow grammar of another caller, of whom twenty wait."""
    done: list[str] = []
    async with checking([sys.executable, "-c", SLOW]) as made:

        def ask(caller: str, number: int) -> "asyncio.Task[None]":
            with of(caller):
                task = asyncio.create_task(made.gbnf(f'root ::= "{number}"', "grammar"))
            task.add_done_callback(lambda _: done.append(caller))
            return task

        attack = [ask("attacker", number) for number in range(20)]
        await until(lambda: made._quick.waiting == 19)
        await asyncio.gather(ask("victim", 0), *attack)
    assert done.index("victim") <= 1
