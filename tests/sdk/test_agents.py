"""
The real coding agents, against a server whose model's words are scripted: each reads a file, calls a tool, edits the file, and says so.

What is tested is the wire: their own requests, with all tools that they bring, and what they make of the answers.
"""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agent_programs
import pytest
from agent_programs import CLAUDE, CODEX, CONTINUE, OPENCODE, Run, Setup

from support.common import environments
from support.servers.serving import KEY, serve

pytestmark = [pytest.mark.heavy, environments.may_install]
BEFORE, AFTER = "the colour is red\n", "the colour is blue\n"
ORDER = "Task 4711: multiply 6 by 7000, read colour.txt, and make the colour in it blue."
PRODUCT = "42000"
THOUGHT = "Which colour is it?"
FIRST, LAST = "I look first.", "All is blue now."
PATCH = "*** Begin Patch\n*** Update File: colour.txt\n@@\n-the colour is red\n+the colour is blue\n*** End Patch\n"
MULTIPLY = "expr 6 \\* 7000"


def call(name: str, **given: Any) -> str:
    """A call, as the model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': given})}</tool_call>"


def echo(*answers: tuple[str, str], **options: Any) -> dict[str, Any]:
    """The configuration of a model that says this to that."""
    told = [{"when": when, "text": text} for when, text in answers]
    return {"source": "echo:", "options": {"answers": told, **options}}


@dataclass(frozen=True)
class Task:
    """
    What an agent does.

    Attributes:
        model: The name of its model.
        reads, edits: The calls of its first and of its second turn; `FILE` stands for the file's path.
        edited: What its tool says when the file was edited.
        path: What it asks of the server.
        ignored: What the server cannot do of what it asks.
        thought: How the model's thought comes back; empty where the agent does not send it.
        wanted: Where else it wants to go, which no setting prevents.
    """

    model: str
    program: str
    setup: Setup
    path: str
    reads: tuple[str, ...]
    edits: str
    edited: str
    ignored: frozenset[str] = frozenset()
    thought: str = THOUGHT
    wanted: tuple[str, ...] = ()

    def model_config(self) -> dict[str, Any]:
        """What the model says to what."""
        reads = f"<think>{THOUGHT}</think>{FIRST}\n" + "\n".join(self.reads)
        return echo(
            ("Generate a title", "Colours"),
            ("Task 4711", reads),
            (self.edited, LAST),  # which may tell the line that it replaced
            (BEFORE.strip(), self.edits),
        )


def _opencode(model: str, package: str, path: str, **more: Any) -> Task:
    return Task(
        model,
        OPENCODE,
        agent_programs.opencode(package),
        path,
        (
            call("read", filePath="FILE"),
            call("bash", command=MULTIPLY, description="Multiply"),
        ),
        call("edit", filePath="FILE", oldString="red", newString="blue"),
        "Edit applied",
        **more,
    )


def _script(command: str) -> str:
    """A command, for a console of JavaScript."""
    return f"text(await tools.exec_command({{cmd: {json.dumps(command)}}}));"


_SHELLS = (call("exec_command", cmd="cat colour.txt"), call("exec_command", cmd=MULTIPLY))
_PATCHING = f"text(await tools.apply_patch({json.dumps(PATCH)}));"
TASKS = [
    _opencode("opencode-chat", "@ai-sdk/openai-compatible", "/v1/chat/completions"),
    _opencode("opencode-responses", "@ai-sdk/openai", "/v1/responses", thought=""),
    Task(
        "continue",
        CONTINUE,
        agent_programs.continue_cli,
        "/v1/chat/completions",
        (call("Read", filepath="FILE"), call("Bash", command=MULTIPLY)),
        call("Edit", file_path="FILE", old_string="red", new_string="blue"),
        "Successfully edited",
        thought="",
        wanted=("api.continue.dev",),  # for its newest version
    ),
    Task(
        "claude",
        CLAUDE,
        agent_programs.claude_code,
        "/v1/messages?beta=true",
        (
            call("Read", file_path="FILE"),
            call("Bash", command=MULTIPLY, description="Multiply"),
        ),
        call("Edit", file_path="FILE", old_string="red", new_string="blue"),
        "has been updated",
        frozenset({"output_config.effort"}),
        base64.b64encode(THOUGHT.encode()).decode(),
    ),
    Task(
        "codex",
        CODEX,
        agent_programs.codex,
        "/v1/responses",
        _SHELLS,
        call("exec_command", cmd="sed -i s/red/blue/ colour.txt && cat colour.txt"),
        AFTER.strip(),
        frozenset({"tools[8]:web_search"}),
    ),
    Task(  # Codex knows a model of this name, and gives it a tool that takes a text
        "gpt-5.5",
        CODEX,
        agent_programs.codex,
        "/v1/responses",
        _SHELLS,
        call("apply_patch", input=PATCH),
        "Success",
        frozenset(
            {"tools[8]:tool_search", "tools[9]:web_search", "reasoning.effort", "text.verbosity"}
        ),
    ),
    Task(  # and this one all tools as an item of the input, one of them a JavaScript console
        "gpt-6-sol",
        CODEX,
        agent_programs.codex,
        "/v1/responses",
        (call("functions__exec", input=_script(f"cat colour.txt; {MULTIPLY}")),),
        call("functions__exec", input=f"{_PATCHING} {_script('cat colour.txt')}"),
        AFTER.strip(),
        frozenset({"reasoning.context", "reasoning.effort", "text.verbosity"}),
    ),
]
AGENTS = {"codex": (CODEX, agent_programs.codex), "claude": (CLAUDE, agent_programs.claude_code)}
BROKEN = {"source": "echo:", "options": {"text": LAST, "failing_answers": 1, "breaks_after": 4}}
#: What models of a small context say, whose conversation has to be shortened before the file is edited.
FULL = {
    "codex": echo(  # counts the tokens: 37,000 with the first order, 48,000 with the first result
        ("CONTEXT CHECKPOINT", "Edit next."),
        ("Edit next.", call("exec_command", cmd="sed -i s/red/blue/ colour.txt && cat colour.txt")),
        (AFTER.strip(), LAST),
        ("Task 4711", call("exec_command", cmd="seq 1 4000")),
        ("3999", call("exec_command", cmd="cat colour.txt")),
        context=50_000,
    ),
    "claude": echo(  # waits until the server says so: 48,000, 62,000, then 72,000
        ("create a detailed summary", "<summary>Edit next.</summary>"),
        ("Edit next.", call("Edit", file_path="FILE", old_string="red", new_string="blue")),
        ("has been updated", LAST),
        ("Task 4711", call("Bash", command="seq 1 3000", description="Count")),
        (
            "2999",
            call("Read", file_path="FILE")
            + call("Bash", command="seq 7001 9000", description="Count"),
        ),
        context=66_000,
    ),
}


@dataclass
class Runs:
    """What is running, by the model that it asks, and the file that it works on."""

    done: dict[str, "Future[Run]"] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All agents at work, two at a time."""
    environments.node_folder("agents")
    programs = {task.model: (task.program, task.setup) for task in TASKS}
    models = {task.model: task.model_config() for task in TASKS}
    for name, agent in AGENTS.items():
        more = {"broken": BROKEN, "small": {"source": "demo:"}, "full": FULL[name]}
        for state, model in more.items():
            programs[f"{name}-{state}"] = agent
            models[f"{name}-{state}"] = model
    found, config = Runs(), "[models]\n"
    for name, model in models.items():
        file = found.files[name] = tmp_path_factory.mktemp(name) / "colour.txt"
        file.write_text(BEFORE)
        config += f"{json.dumps(name)} = {_toml(model)}\n".replace("FILE", str(file))
    with (
        serve("--api-key", KEY, config=config) as server,
        ThreadPoolExecutor(2) as executor,
    ):
        for name, (program, setup) in programs.items():
            context = models[name].get("options", {}).get("context", 200_000)
            folder = found.files[name].parent
            found.done[name] = executor.submit(
                agent_programs.run, program, setup, server, name, folder, ORDER, context
            )
        yield found


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    match value:
        case dict():
            inside = (f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items())
            return "{" + ", ".join(inside) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


@pytest.fixture(params=TASKS, ids=lambda task: task.model)
def task(request: pytest.FixtureRequest) -> Task:
    """Each task."""
    found: Task = request.param
    return found


def test_finishes_its_task(runs: Runs, task: Task) -> None:
    """An agent edits the file with its own tools, says the model's last words, and ends well."""
    run = runs.done[task.model].result()

    assert (0, AFTER) == (run.code, runs.files[task.model].read_text()), run.told
    assert LAST == run.said.splitlines()[-1], run.said


def test_what_it_asks_is_answered(runs: Runs, task: Task) -> None:
    """Nothing that an agent asks is refused; what its tools say, and what the model thought, are in its last request."""
    run = runs.done[task.model].result()
    asked = [(one.method, one.path, one.status) for one in run.asked]
    last = run.asked[-1].body.decode()

    assert {("POST", task.path, 200)} == set(asked)
    assert len(asked) >= 3
    assert all(told in last for told in (BEFORE.strip(), PRODUCT, task.edited, FIRST, task.thought))


def test_what_cannot_be_done_is_named(runs: Runs, task: Task) -> None:
    """What an agent asks for and cannot have is told it, and it is nothing that the task needs."""
    assert task.ignored == runs.done[task.model].result().ignored


def test_it_stays_at_home(runs: Runs, task: Task) -> None:
    """With the settings of its page, an agent asks nobody but the server, and where that page says so."""
    assert list(task.wanted) == runs.done[task.model].result().wanted


@pytest.mark.parametrize("name", AGENTS)
def test_asks_again_when_an_answer_breaks_off(runs: Runs, name: str) -> None:
    """An agent whose answer breaks off in its midst sees that, asks once more, and tells the second answer alone."""
    run = runs.done[f"{name}-broken"].result()

    assert (0, f"{LAST}\n") == (run.code, run.said), run.told
    assert [200, 200] == [one.status for one in run.asked]


@pytest.mark.parametrize(
    ("name", "words"), [("codex", "ran out of room"), ("claude", "Prompt is too long")]
)
def test_understands_that_a_prompt_is_too_long(runs: Runs, name: str, words: str) -> None:
    """An agent whose prompt does not fit into the model's context says that, and does not try the same again."""
    run = runs.done[f"{name}-small"].result()

    assert 0 != run.code
    assert words in run.said + run.told
    assert [400] == [one.status for one in run.asked]


@pytest.mark.parametrize(("name", "refused"), [("codex", False), ("claude", True)])
def test_shortens_its_conversation(runs: Runs, name: str, refused: bool) -> None:
    """An agent whose conversation no longer fits has the model sum it up, and goes on with its task."""
    run = runs.done[f"{name}-full"].result()
    sizes = [len(one.body) for one in run.asked]

    assert (0, AFTER) == (run.code, runs.files[f"{name}-full"].read_text()), run.told
    assert LAST == run.said.splitlines()[-1], run.said
    assert refused == (400 in [one.status for one in run.asked])
    assert sizes[-1] < max(sizes) - 10_000
