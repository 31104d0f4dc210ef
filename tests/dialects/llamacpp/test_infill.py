"""A gap between two texts, filled in by a GGUF model: its prompt and its answer are those of llama.cpp's own server."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import engine
from support.backends.llama_server import CONTEXT, llama_server
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import App, chunks, serving
from unilect.config.model import ModelConfig
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
GAP = {"input_prefix": "one day", "input_suffix": "cat is", "n_predict": 6, "temperature": 0}
SAME = ("prompt", "content", "tokens_evaluated", "tokens_predicted", "stop_type")
FIRST_MARK = 474  # the id of a token behind tiny_gguf's others


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models whose vocabulary says what fills in, all that there is or the least, and one whose head does."""
    folder = tmp_path_factory.mktemp("infill")
    heads = dict(zip(("prefix", "fim_suf", "fim_mid"), range(FIRST_MARK, FIRST_MARK + 3), strict=True))  # fmt: skip
    return {
        "all": tiny_gguf.make(folder / "a.gguf", marks=tiny_gguf.FILL_IN, begins=False),
        "least": tiny_gguf.make(folder / "l.gguf", marks=("<PRE>", "▁<SUF>", "<fim-middle>")),
        "head": tiny_gguf.make(folder / "h.gguf", marks=("[A]", "[B]", "[C]"), ids=heads),
    }


@asynccontextmanager
async def filling(file: Path) -> AsyncIterator[App]:
    """An application in front of a model."""
    model = GgufEngine("tiny", file, ModelConfig(context=CONTEXT, parallel=2))
    await model.start()
    try:
        async with serving(model) as app:
            yield app
    finally:
        await model.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(files: dict[str, Path]) -> AsyncIterator[App]:
    """An application in front of the model that has all marks."""
    async with filling(files["all"]) as app:
        yield app


@pytest.fixture(scope="module")
def reference(files: dict[str, Path]) -> Iterator[str]:
    """The URL of llama.cpp's own server with the same model."""
    with llama_server(files["all"]) as url:
        yield url


async def post(app: App, path: str = "/infill", **body: Any) -> Any:
    """The answer to a POST that succeeds, and ignores nothing."""
    async with app.post(path, **body) as response:
        assert 200 == response.status, await response.text()
        assert "X-Unilect-Ignored" not in response.headers
        return await response.json()


async def refused(app: App, path: str, **body: Any) -> tuple[int, str, str]:
    """The status, the parameter and the code of a POST that is refused."""
    async with app.post(path, **body) as response:
        error = (await response.json())["error"]
        return response.status, error["param"], error["code"]


@in_one_loop
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input_suffix": ""},
        {"input_prefix": ""},
        {"input_prefix": "", "prompt": "one day"},
        {"input_extra": [{"filename": "a.py", "text": "the sun"}, {"text": "it is", "time": 5}]},
        {"input_prefix": "<|fim_middle|></s> day", "input_extra": [{"text": "<|file_sep|>"}]},
        {"stop": [], "samplers": ["top_k", "top_p", "infill"], "top_k": 40, "t_max_predict_ms": 60_000, "seed": 5},
        {"n_indent": 2, "ignore_eos": True, "seed": 3, "temperature": 1},
    ],
    ids=str,
)  # fmt: skip
async def test_the_same_answer(app: App, reference: str, fields: dict[str, Any]) -> None:
    """The model reads the same prompt, in which no text of the client's counts as a mark, and fills in the same."""
    body = GAP | fields
    theirs, ours = ask(f"{reference}/infill", body).body, await post(app, **body)

    assert {name: theirs[name] for name in SAME} == {name: ours[name] for name in SAME}


@pytest.mark.parametrize("name", ["least", "head"])
async def test_other_vocabularies(files: dict[str, Path], name: str) -> None:
    """The marks are found by other names and in the head; files stand apart without a mark for them; a prompt begins as all do."""
    body = GAP | {"input_extra": [{"filename": "a.py", "text": "the sun"}]}
    async with filling(files[name]) as app:
        with llama_server(files[name]) as url:
            theirs = ask(f"{url}/infill", body).body
        ours = await post(app, **body)

    assert {name: theirs[name] for name in SAME} == {name: ours[name] for name in SAME}
    assert {"least": "<s><PRE>", "head": "<s>[A]"}[name] in ours["prompt"]


@in_one_loop
async def test_the_line_before_the_gap(app: App) -> None:
    """`prompt` goes on where `input_prefix` ends."""
    parts = await post(app, **GAP | {"input_prefix": "one ", "prompt": "day"})

    assert (await post(app, **GAP))["prompt"] == parts["prompt"]


@in_one_loop
async def test_warming_up(app: App) -> None:
    """`n_predict: 0` reads the prompt into the cache, with which the next request begins; only wanted fields are told."""
    long = GAP | {"input_prefix": "the day is on it. " * 9}
    read = await post(app, **long | {"n_predict": 0, "samplers": [], "response_fields": ["content", "timings/prompt_n"]})  # fmt: skip
    filled = await post(app, **long)

    assert ({"content", "timings/prompt_n"}, "") == (read.keys(), read["content"])
    assert 64 < read["timings/prompt_n"] + 8
    assert filled["tokens_evaluated"] - 1 == filled["timings"]["cache_n"]


@in_one_loop
async def test_long_texts(app: App, reference: str) -> None:
    """The two texts are read whole, and refused by their length; other files lose their beginning where there is no room for them."""
    whole = await post(app, **GAP | {"input_prefix": "one day " * 40, "input_suffix": "on it " * 30})  # fmt: skip
    others = [{"filename": "old", "text": "sun " * 400}, {"filename": "new", "text": "cat"}]
    fitted = await post(app, **GAP | {"input_extra": others})
    async with app.post("/infill", **GAP | {"input_prefix": "one day " * 400}) as response:
        error = (await response.json())["error"]

    assert (40, 30) == (whole["prompt"].count("one day"), whole["prompt"].count("on it"))
    assert 400 < fitted["tokens_evaluated"] < CONTEXT
    assert "old" not in fitted["prompt"]
    assert "new\n cat" in fitted["prompt"]
    assert (400, "context_length_exceeded") == (response.status, error["code"])


@in_one_loop
async def test_very_long_texts(app: App) -> None:
    """A text that no context can hold is refused before it is read; of a file that is as long, the end is read."""
    huge = "one day " * 60_000
    told = await refused(app, "/infill", **GAP | {"input_suffix": huge})
    filled = await post(app, **GAP | {"input_extra": [{"text": huge}] * 2})

    assert (400, "input_suffix", "context_length_exceeded") == told
    assert filled["tokens_evaluated"] < CONTEXT


@in_one_loop
async def test_ids_that_there_are_not(app: App) -> None:
    """A prefix of unknown token ids is refused."""
    told = await refused(app, "/v1/completions", prompt=[5, 99_999], suffix="a")

    assert (400, "prompt") == told[:2]


@in_one_loop
async def test_a_suffix(app: App) -> None:
    """OpenAI's `suffix` fills the same gap: whole, streamed, several times, for ids, and counted with all that was read."""
    wanted = (await post(app, **GAP))["content"]
    asked = {"prompt": "one day", "suffix": "cat is", "max_tokens": 6, "temperature": 0}
    whole = await post(app, "/v1/completions", **asked, n=2, tokenize=True)
    ids = (await post(app, "/tokenize", content="one day"))["tokens"]
    others = await post(app, "/v1/completions", **asked | {"prompt": [ids, [5]], "input_extra": []})
    async with app.post("/v1/completions", **asked, stream=True) as response:
        frames = await chunks(response)

    assert [wanted] * 2 == [choice["text"] for choice in whole["choices"]]
    assert len(whole["promptToken"]) == whole["usage"]["prompt_tokens"]
    assert wanted == others["choices"][0]["text"]
    assert wanted == "".join(frame["choices"][0]["text"] for frame in frames[:-1])


@in_one_loop
async def test_what_a_suffix_is_not_combined_with(app: App) -> None:
    """Log probabilities of a prompt with a gap are refused, and a snippet that is none is told by its place."""
    asked = {"prompt": "a", "suffix": "b"}

    assert (400, "echo", "unsupported_parameter") == await refused(app, "/v1/completions", **asked, echo=True, logprobs=1)  # fmt: skip
    assert "input_extra[0].text" == (await refused(app, "/infill", input_extra=[{"text": 5}]))[1]


@pytest.mark.parametrize("fields", [{"input_suffix": "b"}, {"input_suffix": ""}, {}])
async def test_a_model_without_marks(fields: dict[str, Any]) -> None:
    """A model that cannot fill in says so, also where the text behind the gap is empty."""
    async with engine(context=CONTEXT) as running, serving(running) as app:
        told = await refused(app, "/infill", input_prefix="a", **fields)
        suffix = await refused(app, "/v1/completions", prompt="a", suffix="b")

    assert (400, "input_suffix", "unsupported_parameter") == told
    assert (400, "suffix", "unsupported_parameter") == suffix
