"""One caller's prompts are not in another caller's cache, through each API; a model with `share_cache` has one cache for all."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from support.backends.engine import ENGINES_IN_CI, SOURCES
from support.clients.asking import ask
from support.servers.serving import Server, serve

APIS = ("chat", "completions", "responses", "messages")
KEYS = ("sk-ada", "sk-bob", "sk-cy")
WORDS = 150  # of two tokens each
BLOCK = 64  # tokens; engines keep a prompt in blocks of at most so many
OPENING = 8  # tokens at most with which all of a caller's prompts begin: those of the chat template


@pytest.fixture(scope="module")
def server_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Server]]:
    """The server of an engine, with two models and a key for each caller."""
    with ExitStack() as stack:

        def started(engine: str) -> Server:
            tables = [
                f'[models.{name}]\nsource = "{SOURCES[engine]}"\ncontext = 2048\nparallel = 2\nshare_cache = {share}\n'
                for name, share in (("apart", "false"), ("common", "true"))
            ]
            keys = ", ".join(f'"{key}"' for key in KEYS)
            return stack.enter_context(serve(config=f"api_keys = [{keys}]\n{''.join(tables)}"))

        yield cache(started)


def prompt_of(name: str) -> str:
    """A text that no other one begins like."""
    return f"{name} " + "word " * WORDS


def cached(server: Server, model: str, api: str, key: str, text: str) -> tuple[int, int]:
    """The tokens of a prompt, and how many of them the caller has in the cache."""
    fields: dict[str, Any] = {"model": model, "temperature": 0}
    turns = [{"role": "user", "content": text}]
    path, more = {
        "chat": ("/v1/chat/completions", {"messages": turns, "max_tokens": 2}),
        "completions": ("/v1/completions", {"prompt": text, "max_tokens": 2}),
        "responses": ("/v1/responses", {"input": text, "max_output_tokens": 2, "store": False}),
        "messages": ("/v1/messages", {"messages": turns, "max_tokens": 2}),
    }[api]
    said = ask(f"{server.root}{path}", fields | more, {"Authorization": f"Bearer {key}"})
    assert 200 == said.status, said.text
    usage = said.body["usage"]
    if api == "messages":
        found = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + found, found
    name = "input" if api == "responses" else "prompt"
    return usage[f"{name}_tokens"], usage[f"{name}_tokens_details"]["cached_tokens"]


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("engine", ENGINES_IN_CI)
def test_callers_are_kept_apart(server_of: Callable[[str], Server], engine: str, api: str) -> None:
    """Another caller reads all of a prompt that is in the cache; who sent it before reads nearly nothing, and so does the other then."""
    server, text = server_of(engine), prompt_of(f"{api} apart")
    asked = ["sk-ada", "sk-ada", "sk-bob", "sk-ada", "sk-bob"]
    found = [cached(server, "apart", api, key, text) for key in asked]

    (total, _), *_ = found
    assert total >= 2 * WORDS
    first, again, other, still, others_own = [count for _, count in found]
    assert max(first, other) <= OPENING
    assert min(again, still, others_own) >= total - BLOCK


@pytest.mark.heavy
def test_what_llamacpp_says(server_of: Callable[[str], Server]) -> None:
    """llama.cpp's own count of a prompt's cached tokens is nought for another caller, also where it asks for the cache."""
    server, text = server_of("gguf"), prompt_of("native")
    found = []
    for key in (*KEYS, "sk-cy"):
        body = {"model": "apart", "prompt": text, "n_predict": 1, "cache_prompt": True}
        said = ask(f"{server.root}/completion", body, {"Authorization": f"Bearer {key}"})
        found.append((said.body["timings"]["cache_n"], said.body["timings"]["prompt_n"]))

    assert max(cached for cached, _ in found[:3]) <= OPENING
    assert min(read for _, read in found[:3]) >= 2 * WORDS
    assert found[3][0] >= 2 * WORDS - BLOCK


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
def test_more_callers_than_slots(server_of: Callable[[str], Server], engine: str) -> None:
    """A caller who gets the place of another one finds nothing of theirs there, and they find nothing of its."""
    server, text = server_of(engine), prompt_of("taking turns")
    found = [cached(server, "apart", "chat", key, text)[1] for key in KEYS]

    assert max(found) <= OPENING


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
def test_a_shared_cache(server_of: Callable[[str], Server], engine: str) -> None:
    """With `share_cache` another caller's prompt is reused."""
    server, text = server_of(engine), prompt_of("common")
    found = [cached(server, "common", "chat", key, text) for key in ("sk-ada", "sk-bob")]

    (total, first), (_, second) = found
    assert first <= OPENING
    assert second >= total - BLOCK
