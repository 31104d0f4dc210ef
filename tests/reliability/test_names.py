"""The name of a model is looked up in a table, and never a path: no file is opened for a name that no model has."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, site

from unilect.config.server import Config, ModelConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")
_HEADS = ["", "/", "./", "../", "../../../", "~/", "file:", "file:///", "hf:", "gguf:", "demo/../", "%2e%2e/", "..\\", "\\\\host\\", "C:\\", "/proc/self/fd/", "http://127.0.0.1:9/", "s3://", "models--", "demo:"]  # fmt: skip
_TAILS = [
    "etc/passwd",
    "model.gguf",
    "org/name",
    "config.json",
    ".",
    "\x00.gguf",
    "a" * 300,
    "\u202e",
    "{{7*7}}",
    "*",
]
NAMES = [head + tail for head in _HEADS for tail in _TAILS]
_seen: list[str] = []
_watched: list[bool] = []


def _hear(event: str, args: tuple[object, ...]) -> None:
    if _watched and event in ("open", "os.listdir", "os.scandir", "socket.connect", "subprocess.Popen"):  # fmt: skip
        _seen.append(f"{event} {args!r:.200}")


sys.addaudithook(_hear)  # which cannot be taken off again


@contextmanager
def watched() -> Iterator[list[str]]:
    """What this process opens, lists, connects to and starts."""
    _seen.clear()
    _watched.append(True)
    try:
        yield _seen
    finally:
        _watched.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[Site]:
    """A server of the bundled model, on llama.cpp, and of an echo."""
    models = {"demo": ModelConfig(), "echo": ModelConfig(source="echo:")}
    async with site(Config(port=0, models=models, log_level="error")) as running:
        yield running


async def test_names_that_no_model_has(demo: Site) -> None:
    """200 names that are paths, URLs and worse are 404, and nothing is opened, listed, connected to or started for any of them."""
    for number, name in enumerate(NAMES):
        async with demo.post(model=name, max_tokens=1) as response:
            await response.read()  # the connection of this client is made, and is kept
        if number == 1:
            break
    found: dict[str, int] = {}
    with watched() as seen:
        for name in NAMES:
            async with demo.post(model=name, max_tokens=1) as response:
                found[name] = response.status
                await response.read()

    assert 200 == len(NAMES) == len(set(NAMES))
    assert {404} == set(found.values()), {n: s for n, s in found.items() if s != 404}
    assert [] == [one for one in seen if "127.0.0.1" not in one]


@pytest.mark.parametrize("field", ["prompt_embeds", "input_embeds", "multimodal_data", "lora_path", "logits_processors"])  # fmt: skip
async def test_tensors_and_code(demo: Site, field: str) -> None:
    """Fields in which other servers take tensors, files or code are refused by name."""
    value: Any = "gASVAAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg=="
    for path, body in (
        ("/v1/chat/completions", {}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        async with demo.post(path, max_tokens=1, **body, **{field: value}) as response:
            told = await response.json()

        assert (400, field) == (response.status, told["error"]["param"])
