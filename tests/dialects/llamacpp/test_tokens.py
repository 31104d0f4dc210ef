"""Tests of unilect.dialects.llamacpp.tokens, beside llama.cpp's own server with the same models."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import engine, needs_transformers
from support.backends.llama_server import CONTEXT, llama_server
from support.backends.scripted import HELLO, says, scripted, stream_of
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import App, serving, upstream
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine
from unilect.http.client import HttpServer
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream, raise_for

in_one_loop = pytest.mark.asyncio(loop_scope="module")
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]  # fmt: skip
PREFILL = [*HI, {"role": "assistant", "content": "He"}]


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    """The URL of llama.cpp's own server with the bundled model."""
    with llama_server() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    """An application in front of the same model as a GGUF file."""
    async with engine(context=CONTEXT, parallel=2) as running, serving(running) as app:
        yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronted(reference: str) -> AsyncIterator[App]:
    """An application in front of the reference itself, by its native protocol."""
    backend = LlamaCppUpstream(HttpServer(reference, raise_for=raise_for))
    try:
        async with serving(backend) as app:
            yield app
    finally:
        await backend.aclose()


async def post(app: App, path: str, **body: Any) -> tuple[int, Any]:
    """The status and the answer of a POST."""
    async with app.session.post(f"http://127.0.0.1:{app.port}{path}", json=body) as response:
        return response.status, json.loads(await response.read())


@in_one_loop
@pytest.mark.parametrize(
    "body",
    [
        {"content": "Hello <|im_start|> wörld 😀"},
        {"content": "Hello <|im_start|> wörld 😀", "with_pieces": True},
        {"content": "Hello <|im_start|> wörld", "with_pieces": True, "parse_special": False},
        {"content": "Hello <|im_start|>", "parse_special": False},
        {"content": ["Hello", 5, "<|im_end|>x"], "add_special": True, "with_pieces": True},
        {"content": [1, 2], "with_pieces": True},
        {"content": "", "with_pieces": True, "add_special": True},
    ],
)  # fmt: skip
async def test_the_same_tokens(
    app: App, fronted: App, reference: str, body: dict[str, Any]
) -> None:
    """Ids and pieces are llama.cpp's own, of a text and of texts between ids, on a file and on a server."""
    theirs = ask(f"{reference}/tokenize", body).body

    for running in (app, fronted):
        assert (200, theirs) == await post(running, "/tokenize", **body)


async def test_a_model_with_a_beginning(tmp_path: Path) -> None:
    """What stands before every prompt is told where it is wanted, with the blanks of SentencePiece in the pieces."""
    path = tiny_gguf.make(tmp_path / "tiny.gguf")
    model = GgufEngine("tiny", path, ModelConfig(context=CONTEXT, parallel=2))
    await model.start()
    try:
        with llama_server(path) as url:
            async with serving(model) as app:
                for content in ("one day </s>", [5, "one day"], ["one", 5, "day"], ""):
                    for fields in ({}, {"add_special": True}, {"parse_special": False, "add_special": True}):  # fmt: skip
                        body = {"content": content, "with_pieces": True} | fields
                        theirs = ask(f"{url}/tokenize", body).body
                        assert (200, theirs) == await post(app, "/tokenize", **body), body
    finally:
        await model.aclose()


@in_one_loop
@pytest.mark.parametrize("fields", [{"messages": HI}, {"messages": HI, "tools": TOOLS}, {"messages": PREFILL}])  # fmt: skip
async def test_the_same_prompt(app: App, reference: str, fields: dict[str, Any]) -> None:
    """The prompt of a conversation, and its tokens, are llama.cpp's own."""
    prompt = ask(f"{reference}/apply-template", fields).body
    count = ask(f"{reference}/v1/chat/completions/input_tokens", fields).body

    assert (200, prompt) == await post(app, "/apply-template", **fields)
    for prefix in ("/v1", ""):
        assert (200, count) == await post(app, f"{prefix}/chat/completions/input_tokens", **fields)


@in_one_loop
async def test_the_counted_prompt_is_the_one_that_is_read(app: App) -> None:
    """The tokens that are told are those of the chat's usage."""
    counted = await post(app, "/v1/chat/completions/input_tokens", messages=HI)
    answered = await post(app, "/v1/chat/completions", messages=HI, max_tokens=1)

    assert counted[1]["input_tokens"] == answered[1]["usage"]["prompt_tokens"]


@in_one_loop
async def test_what_a_prompt_has_no_place_for(app: App) -> None:
    """A chat is judged as if it were answered: an unknown field is named, a refused one refused."""
    body = {"messages": HI, "penalize_nl": True}
    async with app.session.post(f"http://127.0.0.1:{app.port}/apply-template", json=body) as said:
        named = said.headers["X-Unilect-Ignored"]
    refused = await post(app, "/apply-template", messages=HI, verbosity="high")
    missing = await post(app, "/v1/chat/completions/input_tokens")

    assert "penalize_nl" == named
    assert (400, "verbosity") == (refused[0], refused[1]["error"]["param"])
    assert (400, "messages") == (missing[0], missing[1]["error"]["param"])


@in_one_loop
async def test_texts_between_ids_are_bounded(app: App) -> None:
    """Each text is a call to the engine, so there may be so many."""
    status, told = await post(app, "/tokenize", content=["a", 5] * 65)
    unknown = await post(app, "/tokenize", content=[2**30], with_pieces=True)

    assert (400, "content") == (status, told["error"]["param"])
    assert (400, "content") == (unknown[0], unknown[1]["error"]["param"])


@needs_transformers
async def test_on_transformers() -> None:
    """The transformers engine tells the same prompt, pieces and plain tokens; a plain text leaves no trace in later ones."""
    async with engine("hf", context=CONTEXT) as running, serving(running) as app:
        prompt = await post(app, "/apply-template", messages=HI)
        pieces = await post(app, "/tokenize", content="Hi ö<|im_end|>", with_pieces=True)
        unknown = await post(app, "/tokenize", content=[2**30], with_pieces=True)
        marks = {"content": "Hi <|im_start|>ö<|im_end|>", "with_pieces": True, "add_special": True}
        plain = await post(app, "/tokenize", **marks, parse_special=False)
        after = await post(app, "/tokenize", **marks)
        long = await post(app, "/tokenize", content="<|im_end|> one " * 500, parse_special=False)
    async with engine(context=CONTEXT) as running, serving(running) as app:
        theirs = [await post(app, "/tokenize", **marks, parse_special=parse) for parse in (False, True)]  # fmt: skip

    assert (200, {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}) == prompt
    assert ["Hi", " ", [195], [182], "<|im_end|>"] == [one["piece"] for one in pieces[1]["tokens"]]
    assert (400, "content") == (unknown[0], unknown[1]["error"]["param"])
    assert theirs == [plain, after]
    assert plain != after
    assert 2000 < len(long[1]["tokens"])


async def test_backends_that_tell_neither() -> None:
    """A backend that tells no prompts and no tokens answers 501."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        for path, body in (
            ("/apply-template", {"messages": HI}),
            ("/v1/chat/completions/input_tokens", {"messages": HI}),
            ("/tokenize", {"content": "a", "parse_special": False}),
        ):
            status, told = await post(app, path, **body)
            assert (501, "unsupported_operation") == (status, told["error"]["code"])


@in_one_loop
async def test_health_under_v1(app: App) -> None:
    """`/v1/health` is `/health`, and needs no key."""
    for path in ("/health", "/v1/health"):
        assert (200, b'{"status": "ok"}') == await app.get(path)
