"""A conversation of many turns reads as much of its prompt from the cache through each API."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from support.backends.engine import ENGINES_IN_CI
from support.clients.asking import ask
from support.servers.serving import KEY, Server

TURNS = {"gguf": 20, "hf": 8}
BLOCK = 64  # tokens; engines keep a prompt in blocks of at most so many
#: First turns of the same length, so that no API finds what another one left in the cache.
NAMES = {"chat": "Ada", "responses": "Bob", "messages": "Eve"}


class Talk:
    """One conversation, which is asked on with each call."""

    def __init__(self, server: Server, api: str) -> None:
        self._server = server
        self._api = api
        self._turns: list[Any] = []
        self._last: str | None = None

    def ask(self, text: str) -> tuple[int, int]:
        """The prompt's tokens, and how many of them were cached."""
        prompt, cached, said = getattr(self, f"_{self._api}")(text)
        self._turns += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
        return prompt, cached

    def _post(self, path: str, **fields: Any) -> Any:
        body = {"model": "demo", "temperature": 0} | fields
        said = ask(f"{self._server.root}{path}", body, {"Authorization": f"Bearer {KEY}"})
        assert 200 == said.status, said.text
        return said.body

    def _history(self, text: str) -> list[Any]:
        return [*self._turns, {"role": "user", "content": text}]

    def _chat(self, text: str) -> tuple[int, int, str]:
        body = self._post("/v1/chat/completions", messages=self._history(text), max_tokens=12)
        usage = body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, body["choices"][0]["message"]["content"]

    def _responses(self, text: str) -> tuple[int, int, str]:
        more = {} if self._last is None else {"previous_response_id": self._last}
        body = self._post("/v1/responses", input=text, max_output_tokens=12, **more)
        self._last, usage = body["id"], body["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, body["output"][-1]["content"][0]["text"]

    def _messages(self, text: str) -> tuple[int, int, str]:
        body = self._post("/v1/messages", messages=self._history(text), max_tokens=12)
        usage = body["usage"]
        cached = usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
        return prompt, cached, body["content"][0]["text"]


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
def test_cached_turns(server_on: Callable[[str], Server], engine: str) -> None:
    """Every turn reads the same number of tokens from the cache, within a block; and nearly all of what went before."""
    found = {}
    for api, name in NAMES.items():
        talk = Talk(server_on(engine), api)
        texts = [
            f"My name is {name}.",
            *(f"What is {number} + 2?" for number in range(1, TURNS[engine])),
        ]
        found[api] = [talk.ask(text) for text in texts]

    for (prompt, cached), *others in zip(*found.values(), strict=True):
        for other_prompt, other_cached in others:
            assert (
                abs(prompt - other_prompt) <= 4
            )  # a name may be a token longer, each time it is said
            assert abs(cached - other_cached) <= BLOCK
    for turns in found.values():
        for (before, _), (_, cached) in pairwise(turns):
            assert cached >= before - BLOCK
