"""Limits and calls that a model makes no answer for (token counts, tokenizing, prompts, loading), and limits and requests of several answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from support.servers.reloading import Reloadable
from unilect.testing.echo import Echo

HI = [{"role": "user", "content": "Hi"}]
CALLS: dict[str, dict[str, Any]] = {
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [72, 105]},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/chat/completions/input_tokens": {"messages": HI},
    "/apply-template": {"messages": HI},
    "/api/v1/token_check": {"prompts": [{"model": "cold", "prompt": "Hi", "max_tokens": 1}] * 3},
    "/api/chat": {"messages": []},
    "/api/generate": {"prompt": ""},
    "/api/embed": {"input": []},
}
COUNTED = ("/tokenize", "/detokenize", "/v1/messages/count_tokens", "/api/v1/token_check", "/api/chat")  # fmt: skip


class Client:
    """A client of a server with two models, `m` and `cold`, which nothing has loaded."""

    def __init__(self, server: Reloadable, session: ClientSession) -> None:
        self.server, self._session = server, session

    async def post(self, path: str, **body: Any) -> tuple[int, Any, Any]:
        """The status, the body and the headers of an answer; the model is `m` unless the body names another one."""
        async with self._session.post(
            self.server.url + path, json={"model": "m"} | body
        ) as response:
            return response.status, await response.json(), response.headers

    async def get(self, path: str) -> Any:
        """The body of an answer to a GET."""
        async with self._session.get(self.server.url + path) as response:
            assert 200 == response.status
            return await response.json()

    async def chat(self, **fields: Any) -> tuple[int, Any, Any]:
        """As `post`, of a chat."""
        return await self.post("/v1/chat/completions", messages=HI, **fields)

    @property
    def cold(self) -> Echo:
        """The backend that nothing has loaded."""
        backend = self.server.registry.models["cold"].pool.members[0].backend
        assert isinstance(backend, Echo)
        return backend


@asynccontextmanager
async def client(folder: Path, limits: str) -> AsyncIterator[Client]:
    """A client of a server with limits of every key."""
    file = folder / "unilect.toml"
    file.write_text(
        f'port = 0\napi_keys = ["sk-one-0123456789"]\n[store]\nurl = "sqlite://"\n[limits]\n{limits}\n'
        '[models.m]\nsource = "echo:"\noptions = { context = 4096 }\n'
        '[models.cold]\nsource = "echo:"\nload = "demand"\n'
    )
    server = Reloadable(file)
    headers = {"Authorization": "Bearer sk-one-0123456789"}
    async with server.running(["m"]), ClientSession(headers=headers) as session:
        yield Client(server, session)


async def test_calls_are_requests(tmp_path: Path) -> None:
    """Each call counts once against the requests of a minute, like an answer, and one too many is refused with a time."""
    async with client(tmp_path, f"requests_per_minute = {len(COUNTED) + 1}") as one:
        for path in COUNTED:
            assert 200 == (await one.post(path, **CALLS[path]))[0]
        status, _, headers = await one.chat()
        assert (200, "0") == (status, headers["x-ratelimit-remaining-requests"])
        for path, body in CALLS.items():
            status, _, headers = await one.post(path, **body)
            assert (path, 429, True) == (path, status, int(headers["Retry-After"]) > 0)


async def test_a_used_up_budget_loads_no_model(tmp_path: Path) -> None:
    """A key whose budget is used up is refused in each call as in its answers, and loads no model by it."""
    async with client(tmp_path, "tokens_per_day = 2\ntokens_per_minute = 50") as one:
        assert 200 == (await one.post("/v1/completions", prompt="a", max_tokens=1))[0]
        calls = CALLS | {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "x" * 99}]}
        }
        for path, body in calls.items():
            status, _, headers = await one.post(path, **body | {"model": "cold"})
            assert (path, 429, "false") == (path, status, headers["x-should-retry"])
        assert 0 == one.cold.starts


async def test_calls_use_no_tokens(tmp_path: Path) -> None:
    """Calls use nothing of a limit of tokens, and have no row in the ledger."""
    async with client(tmp_path, "tokens_per_day = 100000\nparallel = 1") as one:
        for path in COUNTED:
            assert 200 == (await one.post(path, **CALLS[path]))[0]
        status, told, _ = await one.chat(max_tokens=2)
        assert 200 == status
        _, _, after = await one.post("/tokenize", content="Hi")
        used = told["usage"]["total_tokens"]
        assert str(100000 - used - 1) == after["x-ratelimit-remaining-tokens"]  # 1 while it runs
        assert [1] == [row["requests"] for row in (await one.get("/v1/usage"))["data"]]


async def test_calls_within_a_request(tmp_path: Path) -> None:
    """What an answer needs to be counted or tokenized itself is part of its request, which counts once."""
    async with client(tmp_path, "requests_per_minute = 2") as one:
        input = [{"role": role, "content": "x" * 1500} for role in ("user", "assistant") * 3]
        input.append({"role": "user", "content": "Hi"})
        status, _, headers = await one.post("/v1/responses", input=input, truncation="auto")
        assert (200, "1") == (status, headers["x-ratelimit-remaining-requests"])
        status, _, headers = await one.post("/api/chat", messages=[*input[:-1], *HI], stream=False)
        assert 200 == status
        assert 429 == (await one.chat())[0]


async def test_descriptions_are_not_limited(tmp_path: Path) -> None:
    """What a model is can be asked for however often."""
    async with client(tmp_path, "requests_per_minute = 1") as one:
        for _ in range(3):
            await one.get("/v1/models/m")
            assert 200 == (await one.post("/api/show"))[0]
        assert 200 == (await one.chat())[0]


async def test_several_answers_are_one_request(tmp_path: Path) -> None:
    """A request of several answers is one for the limits of requests, and the tokens of all answers count, its prompt once."""
    limits = "requests_per_minute = 2\nparallel = 1\ntokens_per_day = 100000"
    async with client(tmp_path, limits) as one:
        _, alone, _ = await one.chat(max_tokens=2)
        status, four, headers = await one.chat(max_tokens=2, n=4)
        assert (200, "0") == (status, headers["x-ratelimit-remaining-requests"])
        once, each = alone["usage"], four["usage"]
        assert once["prompt_tokens"] == each["prompt_tokens"]
        assert 4 * once["completion_tokens"] == each["completion_tokens"]
        assert 429 == (await one.chat())[0]
