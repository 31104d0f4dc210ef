"""The libraries that applications speak through, each in an environment of its own, against a real server of the bundled model."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from results import Results, assert_passed, run

import environments
from environments import OPENAI, Recipe
from serving import Server

LITELLM = Recipe((("litellm[proxy]>=1.106",),))
LIBRARIES = {
    "openai0": OPENAI["0"],
    "langchain": Recipe((("langchain-openai>=1.7",),)),
    "llamaindex": Recipe(
        (("llama-index-llms-openai-like>=0.8", "llama-index-embeddings-openai>=0.7"),)
    ),
    "litellm": LITELLM,
}


def script(library: str) -> Path:
    """The script that speaks through a library."""
    return Path(__file__).parent / f"{library}_client.py"


def checks(library: str) -> list[str]:
    """The names of a script's checks."""
    return re.findall(r"^@check\ndef (\w+)", script(library).read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results(server: Server) -> Callable[[str], Results]:
    """What a library's script says; it is run once."""

    @cache
    def said(library: str) -> Results:
        python = environments.python(library, LIBRARIES[library])
        found = run([str(python), str(script(library))], server)
        assert {"version", *checks(library)} == set(found)
        return found

    return said


@pytest.mark.parametrize(
    ("library", "check"), [(name, check) for name in LIBRARIES for check in checks(name)]
)
def test_check(results: Callable[[str], Results], library: str, check: str) -> None:
    """What the check's docstring says is true for this library."""
    assert_passed(results(library), check)
