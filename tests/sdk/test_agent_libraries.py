"""
Libraries that run agents, by their own loops, streams and outputs, against a real server of the bundled model on each engine: the AI SDK,
OpenAI's Agents SDK, Pydantic AI and LangChain, each in an environment of its own. A library's script asks both servers in one process.
"""

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from results import Results, assert_passed, run

from support.backends.engine import SOURCES, needs_transformers
from support.common import environments
from support.common.environments import LANGCHAIN, Recipe
from support.servers.serving import Server

pytestmark = [pytest.mark.heavy, environments.may_install, needs_transformers]
HERE = Path(__file__).parent
PYTHON = {
    "openai_agents": Recipe(("openai-agents==0.24.0",)),
    "pydantic_ai": Recipe(("pydantic-ai-slim[openai,anthropic]==2.68.0",)),
    "langchain_agents": LANGCHAIN,
}
AI = {"ai-5": "5", "ai-6": "6", "ai-7": "7"}  # major versions of the AI SDK
TIMEOUT_S = 300


def script(library: str) -> Path:
    """The script that speaks through a library."""
    return HERE / ("ai_client.mjs" if library in AI else f"{library}_client.py")


def checks(library: str) -> list[str]:
    """The names of a script's checks, as it prints them for the first server."""
    text = script(library).read_text()
    if library in AI:
        apis = re.findall(r"^  (\w+): \(apiKey", text, re.MULTILINE)
        found = re.findall(r'^(check|each)\("([^"]+)"', text, re.MULTILINE)
    else:
        (given,) = re.findall(r"^each = over(\(.+\))$", text, re.MULTILINE)
        apis = ast.literal_eval(given)
        found = re.findall(r"^@(check|each)\ndef (\w+)", text, re.MULTILINE)
    names = []
    for kind, name in found:
        names += [name] if kind == "check" else [f"{name} over {api}" for api in apis]
    return names


CASES = [
    (library, check if number == 0 else f"{check}-{number}")
    for library in (*PYTHON, *AI)
    for number, _ in enumerate(SOURCES)
    for check in checks(library)
]


@pytest.fixture(scope="module")
def results(
    server_on: Callable[[str], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Results]]:
    """What a library's script says. They run two at a time."""
    first, *others = [server_on(engine) for engine in SOURCES]
    servers = replace(first, further=tuple(other.url for other in others))
    folder = tmp_path_factory.mktemp("ai")

    def said(library: str) -> Results:
        if library in AI:
            command = [shutil.which("node") or "node", script(library).name, AI[library]]
        else:
            python = environments.python(
                "langchain" if PYTHON[library] is LANGCHAIN else library, PYTHON[library]
            )
            command = [str(python), "-W", "error", str(script(library))]
        found = run(command, servers, folder, TIMEOUT_S)
        assert {"version", *(check for one, check in CASES if one == library)} == set(found)
        return found

    with ThreadPoolExecutor(2) as executor:
        for file in (HERE / "ai_client.mjs", environments.ROOT / "docs" / "clients" / "ai-sdk.md"):
            shutil.copy(file, folder)
        (folder / "node_modules").symlink_to(environments.node_folder("ai") / "node_modules")
        futures = {library: executor.submit(said, library) for library in (*PYTHON, *AI)}
        yield lambda library: futures[library].result()
        executor.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("library", "check"), CASES)
def test_check(results: Callable[[str], Results], library: str, check: str) -> None:
    """What the check's docstring or name says is true for this library."""
    assert_passed(results(library), check)


@pytest.mark.parametrize("library", AI)
def test_major_version(results: Callable[[str], Results], library: str) -> None:
    """The AI SDK that was run is of the major version that it should be."""
    assert results(library)["version"][1].startswith(f"{AI[library]}.")
