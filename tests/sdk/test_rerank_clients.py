"""
Libraries that rerank, each in an environment of its own, against real servers of a tiny reranker, a GGUF file and a cross-encoder of
transformers: Cohere's own client, and LiteLLM. A library's script asks both servers in one process.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from litellm_proxy import LITELLM
from results import Results, assert_passed, run

from support.backends.engine import needs_transformers
from support.common import environments
from support.common.environments import Recipe
from support.models import tiny_gguf, tiny_reranker
from support.servers.serving import KEY, serve

pytestmark = [pytest.mark.heavy, environments.may_install, needs_transformers]
LIBRARIES = {"cohere": Recipe(("cohere==7.3.1",)), "litellm_rerank": LITELLM}
ENGINES = ("gguf", "transformers")


def script(library: str) -> Path:
    """The script that speaks through a library."""
    return Path(__file__).parent / f"{library}_client.py"


CHECKS = [
    (library, check if number == 0 else f"{check}-{number}")
    for library in LIBRARIES
    for number, _ in enumerate(ENGINES)
    for check in re.findall(r"^@check\ndef (\w+)", script(library).read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Results]]:
    """What a library's script says."""
    folder = tmp_path_factory.mktemp("reranker")
    file = tiny_gguf.make_bert_reranker(folder / "r.gguf")
    encoder = tiny_reranker.cross_encoder(folder / "hf")
    # TEI's clients name no model, and get the first one
    models = '[models.r]\nsource = "{}"\n[models.chat]\nsource = "demo:"\n'
    with (
        serve("--api-key", KEY, config=models.format(file)) as first,
        serve("--api-key", KEY, config=models.format(f"hf:{encoder}")) as second,
    ):
        running = replace(first, further=(second.url,))

        @cache
        def said(library: str) -> Results:
            name = "litellm" if LIBRARIES[library] is LITELLM else library
            python = environments.python(name, LIBRARIES[library])
            return run([str(python), str(script(library))], running)

        yield said


@pytest.mark.parametrize(("library", "check"), CHECKS)
def test_check(results: Callable[[str], Results], library: str, check: str) -> None:
    """What the check's docstring says is true for this library."""
    assert_passed(results(library), check)
