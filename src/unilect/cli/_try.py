"""
`unilect try -- COMMAND...`: a server of somebody else's is started, measured and stopped, and the table that serves it is printed.

It is started twice: once to see where it listens and which models it has, and then with the table that is printed in the end, which is what
is asked and measured. So the table is one that has worked.
"""

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from unilect import testing
from unilect.cli._screen import fail, tell
from unilect.config import command_line
from unilect.config.document import write_key, write_value
from unilect.config.model import ModelConfig, name_from, wrong_name
from unilect.core.errors import ConfigError, UnilectError
from unilect.core.events import Event, TextDelta, ToolCallDelta, fold
from unilect.core.requests import EmbeddingRequest
from unilect.engines.command.engine import Address, CommandEngine
from unilect.engines.command.program_help import read_help
from unilect.engines.process.child_process import ChildProcess
from unilect.hub.repositories import REPO
from unilect.runtime.child_environment import child_environment
from unilect.runtime.tasks import run_aside

#: In a flag that says where a server listens.
_PLACE = re.compile(r"port|host|uds|sock|bind|listen|addr", re.IGNORECASE)
_RULE_TIMEOUT_S = 60.0
_SHOWN = 8  # names of models
#: The promises of a backend that a server may break; the others are its keeper's.
_RULES = (
    testing.ends_each_answer_once,
    testing.tells_what_is_used,
    testing.keeps_to_its_limit,
    testing.stops_at_stop_words,
    testing.answers_side_by_side,
    testing.lets_clients_leave,
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def try_command(
    words: Sequence[str], name: str | None, model: str | None, variables: Sequence[str]
) -> None:
    """
    Run a server once, and print what it is and the table that serves it.

    Raises:
        ConfigError: The command line is none, or cannot be served.
    """
    if not words:
        raise ConfigError("try: names no command. Write it after `--`: unilect try -- llama-server -m model.gguf")  # fmt: skip
    name = name or name_from(command_line.program_of(list(words)) or "model")
    if wrong := wrong_name(name):
        raise ConfigError(f"--name: {wrong}")
    table: dict[str, Any] = {"command": [command_line.as_written(word) for word in words]}
    if model:
        table["model"] = model
    if variables:
        table["environment"] = {variable: f"${variable}" for variable in variables}
    try:
        asyncio.run(_try(name, table))
    except UnilectError as error:
        fail(error.for_operator)


async def _try(name: str, table: dict[str, Any]) -> None:
    finds = not {"port", "socket"} & command_line.placeholders_in(table["command"], command_line.PLACEHOLDERS)  # fmt: skip
    tell("starting it, to see where it listens ...", on_stderr=True)
    engine, began = _engine(name, table, finds), time.monotonic()
    try:
        found = await engine.find()
        first_s = time.monotonic() - began
    finally:
        await engine.aclose()
    if finds:
        table["command"] = await place(table["command"], found)
    if "model" not in table and (chosen := choose(name, table["command"], found.models)):
        table["model"] = chosen
    tell("starting it again, with the table that is printed below ...", on_stderr=True)
    engine, began = _engine(name, table), time.monotonic()
    try:
        await engine.start()
        again_s = time.monotonic() - began
        tell("asking it ...", on_stderr=True)
        facts = {
            "server": engine.kind,
            "listened at": found.socket or (f"port {found.port}" if finds else "{port}"),
            "ready": f"after {first_s:.1f} s, and again after {again_s:.1f} s",
            "models": ", ".join(found.models[:_SHOWN]) or "none listed",
            **await _ask(engine),
        }
        broken = [told for rule in _RULES if (told := await _break(rule, engine))]
        process = engine.children[0]
        assert isinstance(process, ChildProcess)
        memory = await asyncio.to_thread(lambda: process.proportional_memory_bytes)
        facts["memory"] = (
            f"{memory / 1e6:,.0f} MB after these answers (proportional set size of all its processes)"
        )
    finally:
        await engine.aclose()
    for fact, told in facts.items():
        tell(f"{fact:<12} {told}")
    tell(f"{'contract':<12} {len(_RULES) - len(broken)} of {len(_RULES)} promises hold")
    for told in broken:
        tell(f"{'':<12} broken: {told}")
    tell(to_toml(name, table))


def _engine(name: str, table: Mapping[str, Any], finds: bool = False) -> CommandEngine:
    values = {"name": name, "parallel": str(ModelConfig().most_parallel), "threads": "1"}  # fmt: skip
    return CommandEngine(name, ModelConfig(**table), values, finds)


async def place(words: Sequence[str], found: Address) -> list[str]:
    """
    Return the words of a command with a placeholder where they say, or could say, where the server listens.

    Of several words with the same number those are meant that a flag of such a name has: `--max-model-len 8000 --port 8000`.

    Raises:
        ConfigError: They do not, and its help names no flag for it.
    """
    said = found.socket or str(found.port)
    mark = "{socket}" if found.socket else "{port}"
    pattern = re.compile(rf"(?<![\w.]){re.escape(said)}(?![\w.])")
    said_at = [at for at, word in enumerate(words) if pattern.search(word)]
    said_at = [at for at in said_at if _PLACE.search(_flag_of(words, at))] or said_at
    if said_at:
        return [pattern.sub(mark, word) if at in said_at else word for at, word in enumerate(words)]
    values = dict.fromkeys(command_line.PLACEHOLDERS, "1")
    asked = [*(command_line.fill(word, values, str) for word in words), "--help"]
    if not found.socket and "--port" in await run_aside(
        lambda: read_help(asked, child_environment())
    ):
        return [*words, "--port", "{port}"]
    raise ConfigError(
        f"try: the server listens at {said}, which its command line does not say, and its --help has no `--port`. "
        f"Write the flag that sets it, with the placeholder: unilect try -- {words[0]} ... {mark}"
    )


def _flag_of(words: Sequence[str], at: int) -> str:
    """Return the flag that a word is the value of; empty where it is none's."""
    own, equals, _ = words[at].partition("=")
    flag = own if equals else words[at - 1] if at else ""
    return flag if flag.startswith("-") else ""


def choose(name: str, words: Sequence[str], models: Sequence[str]) -> str | None:
    """Return the model that a command line names, where the server lists several and none of the table's name, or lists none."""
    if len(models) == 1 or name in models:
        return None
    values = [word.rpartition("=")[2] for word in words[1:]]
    named = [one for one in values if one in models or (not models and _is_model(one))]
    return named[0] if named else None


def _is_model(word: str) -> bool:
    return REPO.match(word) is not None or os.path.isdir(word) or word.endswith(".gguf")


async def _ask(engine: CommandEngine) -> dict[str, str]:
    """Return what its answers show."""
    facts = {}
    for kind, request in (
        ("chat", testing.chat("What is the capital of France?", max_tokens=48, stream=True)),
        ("completion", testing.completion("The capital of France is", max_tokens=16, stream=True)),
        ("tools", testing.chat("What is the weather in Paris?", max_tokens=96, stream=True, tools=[_TOOL])),
    ):  # fmt: skip
        try:
            began, first, events = time.monotonic(), 0.0, list[Event]()
            async with aclosing(engine.generate(request)) as batches:
                async for batch in batches:
                    words = any(isinstance(one, TextDelta | ToolCallDelta) for one in batch)
                    first = first or (words and time.monotonic()) or 0.0
                    events += batch
        except UnilectError as error:
            facts[kind] = f"no: {error.for_operator}"
            continue
        facts[kind] = _describe(kind, events, (first or began) - began, time.monotonic() - (first or began))  # fmt: skip
    try:
        vectors = (await engine.embed(EmbeddingRequest(input=["Paris"]))).vectors
        facts["embeddings"] = f"yes, {len(vectors[0])} numbers"
    except UnilectError as error:
        facts["embeddings"] = f"no: {error.for_operator}"
    return facts


def _describe(kind: str, events: list[Event], first_s: float, rest_s: float) -> str:
    answer = fold([events])
    choice, used = answer.choices[0], answer.usage
    if kind == "tools":
        names = ", ".join(call.name for call in choice.tool_calls)
        return f"yes, it called {names}" if names else "taken, and none called"
    speed = max(0, used.completion_tokens - 1) / rest_s if rest_s > 0 else 0
    text = (choice.text or choice.reasoning or "")[:60]
    return (
        f"yes, {text!r}; {used.prompt_tokens} and {used.completion_tokens} tokens, "
        f"the first after {first_s * 1000:.0f} ms, then {speed:.0f} a second"
    )


async def _break(rule: testing.Rule, engine: CommandEngine) -> str:
    """Return how a server breaks a promise; empty where it keeps it."""
    try:
        async with asyncio.timeout(_RULE_TIMEOUT_S):
            await rule(engine)
    except (testing.ContractBroken, UnilectError) as error:
        return f"{(rule.__doc__ or '').strip()} {error}"
    except TimeoutError:
        return f"{(rule.__doc__ or '').strip()} It took more than {_RULE_TIMEOUT_S:g} s."
    return ""


def to_toml(name: str, table: Mapping[str, Any]) -> str:
    """Return the table of a model; a command whose words need no quotes is a text."""
    words = table["command"]
    line = " ".join(words)
    try:
        plain = command_line.split_words(line) == words
    except ConfigError:
        plain = False
    shown = dict(table) | ({"command": line} if plain else {})
    lines = [f"{option} = {write_value(value)}" for option, value in shown.items()]
    return "\n".join(["", f"[models.{write_key(name)}]", *lines])
