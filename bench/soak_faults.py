"""
What goes wrong during the soak: an upstream that breaks, fails, hangs and restarts, engines that are killed, configurations that are
reloaded (also one that cannot be used), keys that come and go, requests that an operator cancels, and a log that is cut at its beginning.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
from processes import tree, unilect

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.backends.scripted import (  # noqa: E402 - found on the path above
    DONE,
    Exchange,
    Scripted,
    answer,
    delta,
    frames,
    scripted,
    stream_of,
)

#: What a child's command line says, and what it is called here.
ROLES = {
    "unilect.engines.gguf": "gguf engine",
    "unilect.engines.transformers": "hf engine",
    "unilect.constraints": "checker",
}
#: Who is killed, one after the other. An engine that dies five times in ten minutes is given up, so none is killed so often.
KILLED = ("checker", "gguf engine", "checker", "hf engine")
HANGS_S = 6.0  # longer than the `timeout_s` of the model


class Upstream:
    """
    A server with OpenAI's API that misbehaves, on a port of its own.

    Attributes:
        done: How often it did what.
    """

    def __init__(self, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.port = 0
        self._chance = random.Random(seed)
        self._server: Scripted | None = None
        self._up = AsyncExitStack()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._up = AsyncExitStack()
        server = await self._up.enter_async_context(scripted(self._script, self.port))
        self._server, self.port = server, server.port

    async def stop(self) -> None:
        """Listen no more, and break all connections off."""
        await self._up.aclose()

    async def _script(self, exchange: Exchange) -> None:
        assert self._server is not None
        self._server.requests.clear()  # it notes them for tests
        if not exchange.head.startswith(b"POST"):
            listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            found = exchange.head.split()[1] == b"/v1/models"
            await exchange.send(answer(json.dumps(listed if found else {}).encode(), "200 OK" if found else "404 Not Found"))  # fmt: skip
            exchange.close()
            return
        what = self._chance.choices(
            ("answers", "fails", "is busy", "breaks off", "hangs", "breaks the answer off", "hangs in the answer"),
            (80, 5, 2, 3, 2, 5, 3),
        )[0]  # fmt: skip
        self.done[what] += 1
        if what == "fails":
            told = b'{"error": {"message": "no", "type": "server_error"}}'
            await exchange.send(answer(told, "500 Internal Server Error"))
        elif what == "is busy":
            await exchange.send(answer(b'{"error": {"message": "busy"}}', "429 Too Many Requests", retry_after="1"))  # fmt: skip
        elif what == "hangs":
            await self._hang(exchange)
        elif what != "breaks off":
            await self._answer(exchange, what)
            return
        exchange.reset() if what == "breaks off" else exchange.close()

    async def _answer(self, exchange: Exchange, what: str) -> None:
        if b" /v1/rerank" in exchange.head.split(b"\r\n")[0]:
            ranked = {"model": "m", "results": [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": 0.25}]}  # fmt: skip
            await exchange.send(answer(json.dumps(ranked).encode()))
            exchange.close()
            return
        key = "text" if b"/v1/completions" in exchange.head else ""
        await exchange.send(stream_of(b""))
        for number in range(6):
            if number == 3 and what == "breaks the answer off":
                exchange.reset()
                return
            if number == 3 and what == "hangs in the answer":
                await self._hang(exchange)
                exchange.close()
                return
            piece = {"choices": [{"index": 0, "text": "word ", "finish_reason": None}]} if key else delta(content="word ")  # fmt: skip
            await exchange.send(frames(piece))
            await asyncio.sleep(0.01)
        end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]} if key else delta(finish="stop")  # fmt: skip
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}}  # fmt: skip
        await exchange.send(frames(end, usage, DONE))
        exchange.close()

    async def _hang(self, exchange: Exchange) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HANGS_S):
                await exchange.client_gone()


class Admin:
    """An operator, at the server's admin API; each request has a connection of its own, so that none is left at rest."""

    def __init__(self, socket: Path) -> None:
        connector = aiohttp.UnixConnector(str(socket), force_close=True)
        self._session = aiohttp.ClientSession("http://localhost", connector=connector)

    async def get(self, path: str) -> Any:
        """What a route tells."""
        async with self._session.get(path) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer of a route that does something."""
        data = b"" if body is None else json.dumps(body).encode()
        async with self._session.post(path, data=data) as answer:
            return answer.status, await answer.json()

    async def aclose(self) -> None:
        """Leave."""
        await self._session.close()


class Faults:
    """
    What goes wrong, each at a pace of its own.

    Args:
        pid: The server's process.
        folder: Where its configuration, `unilect.toml`, and its log are.
        configuration: Makes the text of a configuration of a number; those of even numbers are as number 0, but for what is told.
        guests: The keys that come and go; the last one is used.
        pace: 1 for those of a long run; less for what happens more often.

    Attributes:
        done: How often what has happened.
    """

    def __init__(
        self,
        pid: int,
        folder: Path,
        admin: Admin,
        upstreams: list[Upstream],
        configuration: Callable[[int], str],
        guests: list[str],
        pace: float,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._pid, self._folder, self._admin = pid, folder, admin
        self._upstreams, self._configuration, self._guests = upstreams, configuration, guests
        self._pace = pace
        self._chance = random.Random(7)
        self._reloads = self._kills = self._keys = 0

    async def go_on(self, seconds: float) -> None:
        """Have things go wrong for so long."""
        happens: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (40, self.kill),
            (60, self.reload),
            (45, self.restart_upstream),
            (25, self.change_key),
            (10, self.cancel),
        ]
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._again(every * self._pace, what, end) for every, what in happens))  # fmt: skip

    async def _again(self, every: float, what: Callable[[], Awaitable[None]], end: float) -> None:
        at = time.monotonic() + every * 0.4
        while at < end:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await what()
            at += every

    async def kill(self) -> None:
        """Kill -9 one of the server's children."""
        kind = KILLED[self._kills % len(KILLED)]
        self._kills += 1
        pids = [pid for pid in tree(self._pid) if role(pid) == kind]
        if pids:
            os.kill(self._chance.choice(pids), signal.SIGKILL)
            self.done[f"kill -9: {kind}"] += 1

    async def reload(self) -> None:
        """Reload another configuration by SIGHUP; every fifth cannot be used."""
        self._reloads += 1
        file = self._folder / "unilect.toml"
        if self._reloads % 5 == 3:
            file.write_text("models = 3\n")
            status, _ = await self._admin.post("/reload")
            self.done["reload that is refused" if status == 400 else f"reload: {status}"] += 1
            file.write_text(self._configuration(self._reloads - 1))
            return
        file.write_text(self._configuration(self._reloads))
        os.kill(self._pid, signal.SIGHUP)
        self.done["reload"] += 1

    async def settle(self) -> None:
        """Reload the first configuration, and wait until it is in force."""
        (self._folder / "unilect.toml").write_text(self._configuration(0))
        status, told = await self._admin.post("/reload")
        if status != 200:
            raise RuntimeError(f"the configuration cannot be reloaded: {told}")

    async def restart_upstream(self) -> None:
        """Take one of the upstreams away for a second."""
        upstream = self._upstreams[self.done["restart of an upstream"] % len(self._upstreams)]
        await upstream.stop()
        await asyncio.sleep(1)
        await upstream.start()
        self.done["restart of an upstream"] += 1

    async def change_key(self) -> None:
        """Revoke the last key that came, and make another: by turns over the admin API, and by the command beside the server."""
        self._keys += 1
        name = f"guest{self._keys}"
        if self._keys > 1:
            status, _ = await self._admin.post(f"/keys/guest{self._keys - 1}/revoke")
            self.done[f"key revoked: {status}"] += 1
        if self._keys % 4:
            status, made = await self._admin.post("/keys", {"name": name})
            self.done[f"key made: {status}"] += 1
            self._guests.append(made["key"])
            return
        process = await asyncio.create_subprocess_exec(
            *(unilect(), "keys", "create", name, "--config", "unilect.toml"),
            cwd=self._folder,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        self.done[f"key made by the command: {process.returncode}"] += 1
        self._guests.append(out.decode().strip())

    async def cancel(self) -> None:
        """End a request that runs, as an operator."""
        running = (await self._admin.get("/requests"))["requests"]
        if running:
            id = self._chance.choice(running)["id"]
            status, _ = await self._admin.post(f"/requests/{id}/cancel")
            self.done["request cancelled"] += status == 200


def role(pid: int) -> str:
    """What a child of the server is; `another` for what is none of these."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return next((name for module, name in ROLES.items() if module in line), "another")
