"""
The libraries that applications speak through, each in an environment of its own, against a real server of the bundled model:
every check in OpenAI's dialect, and all but errors and agents in those of the older servers too.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checks import DIALECTS, of_openai
from litellm_proxy import LITELLM, Proxy
from results import Results, assert_passed, run

from support.common import environments
from support.common.environments import LANGCHAIN, OPENAI, Recipe
from support.servers.serving import KEY, Server, serve

pytestmark = [pytest.mark.heavy, environments.may_install]
LIBRARIES = {
    "openai0": OPENAI["0"],
    "langchain": LANGCHAIN,
    "llamaindex": Recipe(
        (
            "llama-index-core==0.14.25",
            "llama-index-llms-openai==0.8.3",
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-embeddings-openai==0.7.0",
        )
    ),
    "litellm": LITELLM,
}


def script(library: str) -> Path:
    """The script that speaks through a library."""
    return Path(__file__).parent / f"{library}_client.py"


def checks(library: str) -> list[str]:
    """The names of a script's checks."""
    return re.findall(r"^@check\ndef (\w+)", script(library).read_text(), re.MULTILINE)


CASES = [
    (library, check if number == 0 else f"{check}-{number}")
    for library in LIBRARIES
    for number, _ in enumerate(DIALECTS)
    for check in checks(library)
    if number == 0 or not of_openai(check)
]


@pytest.fixture(scope="module")
def addresses() -> Iterator[Server]:
    """A server with an address for each dialect."""
    listeners = (f'[[listeners]]\nport = 0\ndialect = "{dialect}"\n' for dialect in DIALECTS[1:])
    with serve("--api-key", KEY, config="".join(listeners)) as running:
        assert len(DIALECTS) == 1 + len(running.further)
        yield running


@pytest.fixture(scope="module")
def results(addresses: Server, litellm_proxy: Proxy) -> Iterator[Callable[[str], Results]]:
    """What a library's script says. They run two at a time, and the proxy that is needed later starts beside them."""

    def said(library: str) -> Results:
        python = environments.python(library, LIBRARIES[library])
        found = run([str(python), str(script(library))], addresses)
        assert {"version", *(check for one, check in CASES if one == library)} == set(found)
        return found

    with ThreadPoolExecutor(2) as executor:
        futures = {library: executor.submit(said, library) for library in LIBRARIES}
        yield lambda library: futures[library].result()
        executor.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("library", "check"), CASES)
def test_check(results: Callable[[str], Results], library: str, check: str) -> None:
    """What the check's docstring says is true for this library."""
    assert_passed(results(library), check)
