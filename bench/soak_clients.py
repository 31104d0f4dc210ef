"""
The clients of the soak: requests in every dialect, streamed and whole, at a pace; some leave, some read slowly, some may not ask.

Each request is random, so that no two ask for the same: an engine refuses one that was there at two of its deaths. What has become of a
request is an `Outcome`; `unexpected` says which of them no fault explains.
"""

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

LEAVES, SLOW = 0.1, 0.02  # shares of the requests
AT_ONCE = 96
#: What errors without a code say, and their status -> the code that others have.
SAY = {
    "An operator of this server": "request_cancelled",
    "The model's server": "backend_error",
    "backend": "backend_unavailable",
}
STATUSES = {
    401: "invalid_api_key",
    403: "permission_denied",
    429: "insufficient_quota",
    502: "backend_error",
    503: "backend_unavailable",
    504: "backend_timeout",
}
#: Of each model, what may go wrong while engines are killed and upstreams fail: what an engine has begun goes on.
UPSTREAM = frozenset({"backend_error", "backend_unavailable", "backend_unreachable", "backend_timeout", "rate_limit_exceeded", "engine_overloaded", "server_error"})  # fmt: skip
ALLOWED = {
    "gguf": frozenset[str](),
    "hf": frozenset[str](),
    "echo": frozenset[str](),
    "up": UPSTREAM,
}
LIMITED = frozenset({"rate_limit_exceeded", "insufficient_quota"})
#: The same of each caller who may not ask for everything.
REFUSED = {
    "hasty": LIMITED,
    "spent": LIMITED,
    "stranger": frozenset({"invalid_api_key"}),
    "guest": frozenset({"invalid_api_key"}),
    "bound": frozenset({"permission_denied"}),
}
WORDS = ["the", "sea", "a", "dog", "rain", "snow", "bread", "Paris", "wind", "old", "new", "river", "song", "night", "stone", "light", "and", "of", "in"]  # fmt: skip
ENGINES = ("gguf", "hf")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@dataclass
class Outcome:
    """
    What has become of a request.

    Attributes:
        kind, model, caller: What was asked, of which model, by whom.
        id: The request's; empty where no answer has begun.
        result: `ok`, `left`, or the code of the error.
        status: Of HTTP; 0 where no answer has begun.
        usage: The tokens of the prompt and of the answer, where the client was told; None for what it was not told.
        seconds: From the request to the end of its answer.
        why: What an error said.
    """

    kind: str
    model: str
    caller: str
    id: str = ""
    result: str = ""
    status: int = 0
    usage: tuple[int | None, int | None] = (None, None)
    seconds: float = 0.0
    why: str = ""


Make = Callable[[random.Random, str], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """
    One kind of request.

    Attributes:
        weight: How often it is asked, beside the others.
        path: Its URL.
        make: Its body, for a model; without `stream`.
        models: Those that are asked, each as often as it is named.
        streams: How often its answer is streamed.
        may: Codes of errors that it may get of any model.
        wrong: The codes of errors one of which it has to get.
        recorded: Whether it has a row in the ledger where it is answered.
    """

    name: str
    weight: float
    path: str
    make: Make
    models: tuple[str, ...] = ("gguf", "hf", "echo", "echo", "echo", "up", "up")
    streams: float = 0.6
    may: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    recorded: bool = True


def said(chance: random.Random, words: int = 12) -> str:
    """A text that nobody has said before."""
    return f"{chance.getrandbits(40):x} " + " ".join(
        chance.choices(WORDS, k=chance.randint(1, words))
    )


def chat(chance: random.Random, model: str) -> dict[str, Any]:
    """A chat, sometimes with what costs more."""
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": said(chance)}], "max_tokens": chance.randint(1, 12)}  # fmt: skip
    if model not in ENGINES:
        return fields
    formatted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    tool = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
    more: dict[str, Any] = chance.choice([{}, {}, {"response_format": formatted, "max_tokens": 40}, {"logprobs": True, "top_logprobs": 3}, {"n": 2}, {"tools": [tool]}])  # fmt: skip
    return fields | more


def long(chance: random.Random, model: str) -> dict[str, Any]:
    """A chat whose answer takes a while: one that a death may meet."""
    return chat(chance, "") | {"max_tokens": 150, "ignore_eos": True, "temperature": 0}


def many_tokens(chance: random.Random, model: str) -> dict[str, Any]:
    """An answer that is larger than what sockets hold, for those who read slowly."""
    return {"messages": [{"role": "user", "content": said(chance) * 150}]}


def completion(chance: random.Random, model: str) -> dict[str, Any]:
    """A text to go on with."""
    return {"prompt": said(chance), "max_tokens": chance.randint(1, 12)}


def response(chance: random.Random, model: str) -> dict[str, Any]:
    """A response, half of them stored."""
    return {"input": said(chance), "max_output_tokens": 16, "store": chance.random() < 0.5}


def background(chance: random.Random, model: str) -> dict[str, Any]:
    """A response that is made while nobody waits."""
    return {"input": said(chance), "max_output_tokens": 16, "background": True}


def message(chance: random.Random, model: str) -> dict[str, Any]:
    """One of Anthropic's."""
    return {"messages": [{"role": "user", "content": said(chance)}], "max_tokens": chance.randint(1, 12)}  # fmt: skip


def ollama(chance: random.Random, model: str) -> dict[str, Any]:
    """One of Ollama's."""
    options = {"num_predict": chance.randint(1, 12)}
    return {"messages": [{"role": "user", "content": said(chance)}], "options": options}


def native(chance: random.Random, model: str) -> dict[str, Any]:
    """One of llama.cpp's."""
    return {"prompt": said(chance), "n_predict": chance.randint(1, 12)}


def embedding(chance: random.Random, model: str) -> dict[str, Any]:
    """Texts to be made vectors of."""
    return {"input": [said(chance) for _ in range(chance.randint(1, 3))]}


def rerank(chance: random.Random, model: str) -> dict[str, Any]:
    """Documents to be ranked."""
    return {"query": said(chance), "documents": [said(chance), said(chance)]}


def bad(chance: random.Random, model: str) -> dict[str, Any]:
    """A body that is refused; `raw` is sent as it is."""
    right = chat(chance, "")
    return chance.choice(
        [
            {"raw": b'{"messages": ['},
            {"raw": b"\xff\xfe"},
            right | {"temperature": "hot"},
            right | {"messages": 7},
            right | {"model": "no-such-model"},
            right | {"max_tokens": -5},
            {"messages": []},
        ]
    )


KINDS: tuple[Kind, ...] = (
    Kind("chat", 6, "/v1/chat/completions", chat),
    Kind("long chat", 0.6, "/v1/chat/completions", long, models=("gguf", "gguf", "hf"), streams=0.7),
    Kind("long text", 0.1, "/v1/chat/completions", many_tokens, models=("echo",), streams=1),
    Kind("completion", 2, "/v1/completions", completion),
    Kind("response", 2, "/v1/responses", response, may=frozenset({"previous_response_not_found"})),  # the store keeps few
    Kind("background", 0.5, "/v1/responses", background, streams=0.3),
    Kind("message", 2, "/v1/messages", message),
    Kind("ollama", 2, "/api/chat", ollama),
    Kind("native", 0.5, "/completion", native, models=("gguf", "hf", "echo")),
    Kind("embedding", 0.7, "/v1/embeddings", embedding, models=ENGINES, streams=0),
    Kind("rerank", 0.3, "/v1/rerank", rerank, models=("up",), streams=0),
    Kind("bad body", 0.5, "/v1/chat/completions", bad, streams=0, wrong=frozenset({"invalid_value", "model_not_found"}), recorded=False),
)  # fmt: skip


@dataclass
class Clients:
    """
    Those who ask, at a pace.

    Args:
        url: The server's, without `/v1`.
        secrets: The keys of those who may ask for everything.
        others: The keys of those who may not, by who they are.
        rate: Requests a second.
        seed: Of what is asked.

    Attributes:
        outcomes: Of the requests that have ended.
        held_back: Requests that were not sent, since too many waited for their answers.
    """

    url: str
    secrets: list[str]
    others: dict[str, list[str]]
    rate: float
    seed: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    held_back: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[str, str] = {}  # key -> its last stored response

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return len(self._running)

    async def ask(self, seconds: float) -> None:
        """Ask for so long, and wait for the answers; each time over connections of its own."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(120)
        async with aiohttp.ClientSession(self.url, connector=connector, timeout=timeout) as session:
            end = time.monotonic() + seconds
            at = time.monotonic()
            while at < end:
                at += self._chance.expovariate(self.rate)
                await asyncio.sleep(at - time.monotonic())
                if len(self._running) >= AT_ONCE:
                    self.held_back += 1
                    continue
                task = asyncio.create_task(self._one(session))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await asyncio.gather(*self._running)

    async def crowd(self) -> None:
        """As many as ever ask at once, a few times."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            for _ in range(3):
                await asyncio.gather(*(self._one(session) for _ in range(AT_ONCE)))

    async def _one(self, session: aiohttp.ClientSession) -> None:
        chance = random.Random(self._chance.getrandbits(64))
        kind = chance.choices(KINDS, [one.weight for one in KINDS])[0]
        model = chance.choice(kind.models)
        caller, key = self._caller(chance)
        outcome = Outcome(kind.name, model, caller)
        body: dict[str, Any] = {"model": model} | kind.make(chance, model)
        body["stream"] = chance.random() < kind.streams
        if body["stream"] and "completions" in kind.path:
            body["stream_options"] = {"include_usage": True}
        if kind.name == "response" and body["store"] and (last := self._last.get(key)):
            body["previous_response_id"] = last
        sent = body.get("raw") or json.dumps(body).encode()
        request = session.post(kind.path, data=sent, headers={"Authorization": f"Bearer {key}"})
        leaves = chance.random() < LEAVES
        began = time.monotonic()
        try:
            async with asyncio.timeout(chance.expovariate(10) if leaves else 110):
                async with request as answer:
                    outcome.id, outcome.status = (
                        answer.headers.get("X-Request-Id", ""),
                        answer.status,
                    )
                    if leaves and chance.random() < 0.5:
                        reset(answer)
                    text = await self._read(outcome, answer, chance, body)
                    if kind.name == "response" and outcome.result == "ok" and body["store"]:
                        self._remember(key, text, chance)
        except TimeoutError:
            outcome.result = "left" if leaves else "no answer"
        except aiohttp.ClientError as error:
            outcome.result = "left" if leaves else type(error).__name__
        outcome.seconds = time.monotonic() - began
        if outcome.kind == "background" and outcome.id.startswith("resp_"):
            await self._follow(session, outcome, key)
        self.outcomes.append(outcome)

    def _caller(self, chance: random.Random) -> tuple[str, str]:
        if chance.random() < 0.9:
            number = chance.randrange(len(self.secrets))
            return f"client{number}", self.secrets[number]
        name = chance.choice([name for name, keys in self.others.items() if keys])
        return name, self.others[name][-1]

    async def _read(
        self, outcome: Outcome, answer: aiohttp.ClientResponse, chance: random.Random, body: dict[str, Any]
    ) -> bytes:  # fmt: skip
        if body["stream"] and chance.random() < (0.5 if outcome.kind == "long text" else SLOW):
            text = await slowly(answer)
        else:
            text = await answer.read()
        outcome.result, outcome.usage = told(text, answer.status, streams=body["stream"])
        outcome.why = "" if outcome.result == "ok" else text[-200:].decode(errors="replace")
        if outcome.kind == "background" and outcome.status == 200:
            at = text.find(
                b'"resp_'
            )  # its row has the id of the response, which outlives the request
            outcome.id = text[at + 1 : text.find(b'"', at + 1)].decode() if at >= 0 else ""
        return text

    def _remember(self, key: str, text: bytes, chance: random.Random) -> None:
        """Go on from a stored response some times, then begin anew."""
        at = text.rfind(b'"resp_')
        if chance.random() < 0.7 and at >= 0:
            self._last[key] = text[at + 1 : text.find(b'"', at + 1)].decode()
        else:
            self._last.pop(key, None)

    async def _follow(self, session: aiohttp.ClientSession, outcome: Outcome, key: str) -> None:
        """Wait for the end of a response that is made in the background, also where who asked for it has left."""
        headers = {"Authorization": f"Bearer {key}"}
        while True:
            async with session.get(f"/v1/responses/{outcome.id}", headers=headers) as answer:
                status, text = answer.status, await answer.read()
            if status != 200 or json.loads(text)["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.2)
        outcome.result, outcome.usage = told(text, status, streams=False)
        found = json.loads(text)
        outcome.why = "" if outcome.result == "ok" else json.dumps(found.get("error"))[:200]
        for path in ("/v1/usage", "/v1/models"):  # as clients look at while they wait
            async with session.get(path, headers=headers) as answer:
                await answer.read()
            if answer.status == 401 and outcome.caller == "guest":  # revoked since its answer
                continue
            if answer.status != 200 and outcome.result == "ok":
                wrong = f"{answer.status} of {path}"
                outcome.result = "request_cancelled" if answer.status == 403 else wrong


async def slowly(answer: aiohttp.ClientResponse) -> bytes:
    """The text of an answer, read late and in small pieces: the server has to wait."""
    pieces: list[bytes] = []
    await asyncio.sleep(1)
    while piece := await answer.content.read(8192):
        pieces.append(piece)
        await asyncio.sleep(0.02)
    return b"".join(pieces)


def reset(answer: aiohttp.ClientResponse) -> None:
    """Have the connection end with RST when it is closed, instead of FIN."""
    connection = answer.connection
    transport = None if connection is None else connection.transport
    if transport is not None:
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def told(text: bytes, status: int, streams: bool) -> tuple[str, tuple[int | None, int | None]]:
    """The result of an answer, and its usage, in whatever dialect it is."""
    frames = _frames(text, status, streams)
    usage: tuple[int | None, int | None] = (None, None)
    code = "" if status == 200 else str(status)
    whole = not streams
    for frame in frames:
        if frame == "[DONE]":
            whole = True
            continue
        inner = frame.get("response") if isinstance(frame.get("response"), dict) else frame
        error = frame.get("error") or inner.get("error")
        if error:
            code = _code(error, status)
        usage = _usage(inner, usage)
        kind = frame.get("type", "")
        whole = whole or kind in ("response.completed", "response.incomplete", "message_stop")
        whole = whole or frame.get("done") is True or frame.get("stop") is True
    return code or ("ok" if whole else "cut"), usage


def _code(error: Any, status: int) -> str:
    """The code of an error; Anthropic's and Ollama's APIs have none, so it is looked for in its text and its status."""
    code, text = error.get("code") if isinstance(error, dict) else None, json.dumps(error)
    if code and code != "server_error":  # Responses' for whatever its clients know no code for
        return str(code)
    found = next((known for part, known in SAY.items() if part in text), None)
    return found or STATUSES.get(status) or str(code or f"{status} {text[:150]}")


def _frames(text: bytes, status: int, streams: bool) -> list[Any]:
    if not streams or status != 200:
        try:
            return [json.loads(text)]
        except ValueError:
            return []
    found: list[Any] = []
    for line in text.splitlines():
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            found.append("[DONE]")
        elif data.startswith(b"{"):
            found.append(json.loads(data))
    return found


def _usage(frame: dict[str, Any], before: tuple[int | None, int | None]) -> tuple[int | None, int | None]:  # fmt: skip
    """What a frame tells of it; of Anthropic's only the answer's tokens, since those of a prompt are told without cached ones."""
    if "eval_count" in frame:
        return frame.get("prompt_eval_count"), frame["eval_count"]
    usage = frame.get("usage")
    if not isinstance(usage, dict):
        return before
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage.get("completion_tokens", 0)
    if "output_tokens" in usage:
        total = usage.get("total_tokens")
        return (usage.get("input_tokens") if total else None), usage["output_tokens"]
    return before


def unexpected(outcome: Outcome, cancelled: int) -> bool:
    """Whether no fault explains an outcome; `cancelled` is how many requests an operator has ended."""
    kind = next((one for one in KINDS if one.name == outcome.kind), None)
    if outcome.result in ("left", "") or (outcome.result == "request_cancelled" and cancelled):
        return False
    refused = REFUSED.get(outcome.caller, frozenset())
    if kind is None:
        return not refused
    if outcome.result in refused or outcome.result in kind.may:
        return False
    if kind.wrong:
        return outcome.result not in kind.wrong
    return outcome.result != "ok" and outcome.result not in ALLOWED[outcome.model]


def by_class(outcomes: list[Outcome]) -> dict[str, int]:
    """How many requests ended how, by model and by caller."""
    counts = Counter(
        f"{one.model} {one.caller if one.caller in REFUSED else 'client'}: {one.result}"
        for one in outcomes
        if one.result not in ("ok", "left")
    )
    return dict(sorted(counts.items()))
