"""Tests of unilect.dialects.prompts: every form of a prompt, beside llama.cpp's own server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.llama_server import CONTEXT, llama_server
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import App, serving
from unilect.config.server import ModelConfig
from unilect.core.errors import InvalidRequest
from unilect.dialects.prompts import Written, one_by_one
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
SAME = ("index", "content", "tokens_evaluated", "tokens_predicted", "stop_type")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[App, str]]:
    """An application in front of a model that begins every prompt with a token, and llama.cpp's own server with it."""
    path: Path = tiny_gguf.make(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    model = GgufEngine("tiny", path, ModelConfig(context=CONTEXT, parallel=2))
    await model.start()
    try:
        with llama_server(path) as url:
            async with serving(model) as app:
                yield app, url
    finally:
        await model.aclose()


@in_one_loop
@pytest.mark.parametrize(
    "prompt",
    [
        ["one day", "sun"],
        [[5, 6], [7]],
        [[5, 6], "one day", ["sun", 7]],
        [["one day", 5, "sun"]],
        {"prompt_string": "one day"},
        {"prompt_string": ["one day", 5]},
        [{"prompt_string": "one day"}, "sun"],
        [{"prompt_string": ["sun", 9]}, [5]],
        [],
        [1, "a", [2]],
        [["a", "b"]],
        [["a", [1]]],
        {},
        {"prompt": "x"},
        {"prompt_string": 5},
        {"prompt_string": "x", "multimodal_data": ["AAAA"]},
    ],
    ids=str,
)  # fmt: skip
async def test_every_form(both: tuple[App, str], prompt: Any) -> None:
    """What the reference answers is answered in the same words, and what it refuses is refused."""
    app, url = both
    body = {"prompt": prompt, "n_predict": 5, "temperature": 0}
    theirs = ask(f"{url}/completion", body)
    async with app.post("/completion", **body) as response:
        status, ours = response.status, await response.json()

    if prompt == []:  # nothing to read, which OpenAI's clients may say
        assert (400, 200) == (theirs.status, status)
        return
    assert theirs.status == status, ours
    if status == 400:
        assert ours["error"]["param"].startswith("prompt")
        return
    several, had = (one if isinstance(one, list) else [one] for one in (theirs.body, ours))
    assert [[one[n] for n in SAME] for one in several] == [[one[n] for n in SAME] for one in had]


@in_one_loop
async def test_streams_of_mixed_prompts(both: tuple[App, str]) -> None:
    """A stream tells the pieces of each prompt by its number."""
    app, _ = both
    whole = {"prompt": [["one day", 5], "sun"], "n_predict": 5, "temperature": 0}
    async with app.post("/completion", **whole) as response:
        told = [one["content"] for one in await response.json()]
    async with app.post("/completion", **whole, stream=True) as response:
        lines = (await response.read()).split(b"\n\n")
    frames = [msgspec.json.decode(line[6:]) for line in lines if line]

    assert told == ["".join(f["content"] for f in frames if f["index"] == n) for n in (0, 1)]


@pytest.mark.parametrize(
    ("written", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        ([1], [[1]]),
        (["a", 1], [["a", 1]]),
        ([[1], [2]], [[1], [2]]),
        (["a", [1]], ["a", [1]]),
        ([[]], [[]]),
        ({"prompt_string": "a"}, ["a"]),
        ({"prompt_string": "a", "multimodal_data": []}, ["a"]),
    ],
)
def test_one_by_one(written: Any, prompts: list[Any]) -> None:
    """Texts and ids beside each other are one prompt, and lists and objects are many."""
    assert prompts == one_by_one(msgspec.convert(written, Written))


@pytest.mark.parametrize(
    ("written", "param"),
    [
        ([5, [6]], "prompt[0]"),
        (["a", ["b", "c"]], "prompt[1]"),
        ([{"prompt_string": "a", "multimodal_data": ["x"]}], "prompt[0].multimodal_data"),
    ],
)
def test_what_is_no_prompt(written: Any, param: str) -> None:
    """An item that is no prompt is named by its place."""
    with pytest.raises(InvalidRequest) as told:
        one_by_one(msgspec.convert(written, Written))

    assert param == told.value.param
