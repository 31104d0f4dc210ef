"""What FastChat's servers and clients must find again; `test_fastchat_real.py` asks the real ones."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.backends.engine import engine
from support.backends.fastchat import HELLO, FakeFastChat, fake_fastchat, frame, used
from support.servers.appserver import App, serving, upstream
from support.servers.configured import merged
from unilect.cli._commands import _as_worker
from unilect.config.server import Config, ModelConfig
from unilect.dialects.fastchat._workers import Registration, Status, Workers
from unilect.http.client import HttpServer
from unilect.models.registry import Registry
from unilect.upstreams.fastchat.backend import Controller, FastChatUpstream
from unilect.web import streaming

REGISTRATION = {
    "worker_name": "",
    "check_heart_beat": True,
    "worker_status": None,
    "multimodal": False,
}


@asynccontextmanager
async def controller(**config: Any) -> AsyncIterator[App]:
    """unilect as a controller; its own model `m` is on a server that is not there."""
    nowhere = upstream("http://127.0.0.1:1/v1")
    async with serving(nowhere, Config(fastchat_controller=True, **config)) as app:
        yield app


@asynccontextmanager
async def in_front(fake: FakeFastChat, **config: Any) -> AsyncIterator[App]:
    """unilect in front of a FastChat controller, whose model it serves as `m`."""
    backend = FastChatUpstream(Controller(HttpServer(fake.url)), ModelConfig(**config), "m")
    async with serving(backend) as app:
        yield app


async def said(app: App, path: str, **body: Any) -> Any:
    """The JSON that a call answers with."""
    async with app.post(path, **body) as response:
        return await response.json(content_type=None)


def url(app: App) -> str:
    """Where an application listens."""
    return f"http://127.0.0.1:{app.port}"


async def test_case_13_a_controllers_calls() -> None:
    """Every call of FastChat's controller is answered in its form, and a worker's model is a model of ours."""
    async with fake_fastchat() as fake, controller() as app:
        fake.answers["/worker_get_status"] = {
            "model_names": ["vicuna"],
            "speed": 1,
            "queue_length": 2,
        }
        assert {"exist": False} == await said(
            app, "/receive_heart_beat", worker_name=fake.url, queue_length=0
        )
        assert (
            await said(app, "/register_worker", **REGISTRATION | {"worker_name": fake.url})
        ) is None
        assert {"exist": True} == await said(
            app, "/receive_heart_beat", worker_name=fake.url, queue_length=1
        )
        assert (await said(app, "/refresh_all_workers")) is None
        assert {"models": ["m", "vicuna"]} == await said(app, "/list_models")
        assert {"models": ["m"]} == await said(app, "/list_multimodal_models")
        assert {"models": ["vicuna"]} == await said(app, "/list_language_models")
        assert {"address": fake.url} == await said(app, "/get_worker_address", model="vicuna")
        assert {"address": url(app)} == await said(app, "/get_worker_address", model="m")
        assert {"address": ""} == await said(app, "/get_worker_address", model="x")
        status = {"model_names": ["m", "vicuna"], "speed": 1.0, "queue_length": 3.0}
        assert status == await said(app, "/worker_get_status")
        assert (200, b'"success"') == await app.get("/test_connection")

        chat = await said(app, "/v1/chat/completions", model="vicuna")
        assert "Hello" == chat["choices"][0]["message"]["content"]


async def test_case_13_hierarchical_controller() -> None:
    """A controller can be a worker of another one, and calls go down through both."""
    async with fake_fastchat() as fake, controller() as below, controller() as above:
        await said(below, "/register_worker", **REGISTRATION | {"worker_name": fake.url})
        await said(above, "/register_worker", **REGISTRATION | {"worker_name": url(below)})

        assert {"address": url(below)} == await said(above, "/get_worker_address", model="m")
        async with above.post("/worker_generate_stream", model="m", prompt="Hi") as response:
            assert b"".join(HELLO) == await response.read()
        for path, expected in fake.answers.items():
            if path in ("/count_token", "/model_details", "/worker_get_conv_template"):
                assert expected == await said(above, path, model="m", prompt="Hi")
        assert {"model": "m", "prompt": "Hi"} == fake.params


async def test_case_13_no_worker() -> None:
    """A call for a model that no worker has is answered with FastChat's 50005, once."""
    async with controller() as app:
        async with app.post("/worker_generate_stream", model="x", prompt="Hi") as response:
            told, rest = (await response.read()).split(b"\0")
            assert (200, b"") == (response.status, rest)
    assert 50005 == json.loads(told)["error_code"]


async def test_case_13_a_relay_that_breaks() -> None:
    """A worker that dies in the middle of a relayed stream is told in one more frame."""
    async with fake_fastchat() as fake, controller() as app:
        await said(app, "/register_worker", **REGISTRATION | {"worker_name": fake.url})
        fake.pieces = [HELLO[0], b"\xff" * 10]

        async def script(exchange: Any) -> None:
            if b"/worker_generate_stream" not in exchange.head:
                return await fake_script(exchange)
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + HELLO[0])
            exchange.close()

        fake_script, fake.server._script = fake.script, script
        async with app.post("/worker_generate_stream", model="m", prompt="Hi") as response:
            first, error, _ = (await response.read()).split(b"\0")

    assert "Hel" == json.loads(first)["text"]
    assert 50001 == json.loads(error)["error_code"]


async def test_case_13_a_relay_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put into a relayed stream while its worker is silent, since that may be within a frame."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.0)  # due in every round of the loop
    read = asyncio.Event()

    async def script(exchange: Any) -> None:
        if b"/worker_generate_stream" not in exchange.head:
            return await fake_script(exchange)
        length = len(HELLO[0])
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        await exchange.send(HELLO[0][:5])
        await read.wait()
        await exchange.send(HELLO[0][5:])

    async with fake_fastchat() as fake, controller() as app:
        await said(app, "/register_worker", **REGISTRATION | {"worker_name": fake.url})
        fake_script, fake.server._script = fake.script, script
        async with app.post("/worker_generate_stream", model="m", prompt="Hi") as response:
            told = await response.content.readexactly(5)
            for _ in range(100):
                await asyncio.sleep(0)
            read.set()
            told += await response.read()

    assert HELLO[0] == told


@pytest.mark.parametrize("name", ["", "w", "ftp://a:1", "http://a:1/\n2026 INFO all is well", 1])
async def test_case_13_only_http_urls_register(name: Any) -> None:
    """A worker's name that is no http URL is refused, and nothing of it reaches a log."""
    async with controller() as app:
        async with app.post("/register_worker", **REGISTRATION | {"worker_name": name}) as response:
            body = await response.json()
        assert (400, "worker_name") == (response.status, body["error"]["param"])
        assert {"models": ["m"]} == await said(app, "/list_models")


async def test_case_13_shortest_queue() -> None:
    """The worker with the shortest queue for its speed is chosen, and its queue counts as one longer."""
    workers = Workers(Registry([]))
    for name, speed, queue in (("http://a:1", 1, 1), ("http://b:1", 4, 2)):
        await workers.register(Registration(name, worker_status=Status(["m"], speed, queue)))

    chosen = [await workers.address("m") for _ in range(4)]

    assert ["http://b:1", "http://b:1", "http://a:1", "http://b:1"] == chosen
    await workers.aclose()


async def test_case_13_lottery() -> None:
    """By lot, every worker is chosen, the faster ones more often, and queues count nothing."""
    workers = Workers(Registry([]), "lottery")
    for name, speed, queue in (("http://a:1", 1, 0), ("http://b:1", 9, 99)):
        await workers.register(Registration(name, worker_status=Status(["m"], speed, queue)))

    chosen = Counter([await workers.address("m") for _ in range(1000)])

    assert {"http://a:1", "http://b:1"} == set(chosen)
    assert chosen["http://b:1"] > chosen["http://a:1"]
    await workers.aclose()


async def test_case_13_aliases() -> None:
    """`--model-names a,b` serves one model under these names, and both are registered."""
    settings = _as_worker(
        merged(["demo:"], None, {"fastchat_register": url_of_nobody()}, {}), ["a", "b"]
    )
    (name,) = settings.models

    async with engine() as backend:
        aliases = settings.models[name].aliases
        async with serving(backend, settings, aliases=aliases) as app:
            status = await said(app, "/worker_get_status")
            answers = [
                await said(app, "/worker_generate", model=alias, prompt="a", max_new_tokens=1)
                for alias in ("m", "b")
            ]

    assert ("a", ["b"]) == (name, aliases)
    assert ["m", "b"] == status["model_names"]
    assert [0, 0] == [answer["error_code"] for answer in answers]


def url_of_nobody() -> str:
    """A controller that is not there."""
    return "http://127.0.0.1:1"


#: FastChat's ErrorCode -> the number and the status that a client of ours gets where a worker tells it
ERROR_CODES = {
    40001: (40302, 400),
    40101: (50001, 502),
    40102: (50001, 502),
    40103: (40103, 403),
    40301: (40301, 404),
    40302: (40302, 400),
    40303: (40303, 400),
    42901: (42901, 429),
    42902: (42902, 429),
    42903: (42903, 429),
    50001: (50001, 502),
    50002: (50002, 502),
    50003: (50001, 502),
    50004: (50001, 502),
    50005: (50005, 503),
    50006: (50006, 504),
}


@pytest.mark.parametrize("code", ERROR_CODES)
async def test_case_14_a_workers_error_codes(code: int) -> None:
    """A worker's error keeps FastChat's number where it is about the request or the worker, in an envelope that all clients read."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        fake.pieces = [frame("**NETWORK ERROR**", error_code=code)]
        async with app.post("/v1/chat/completions", model="m") as response:
            body, status = await response.json(), response.status

    assert ERROR_CODES[code] == (body["code"], status)
    assert ("error", body["error"]["message"]) == (body["object"], body["message"])


async def test_case_14_our_error_codes() -> None:
    """Our own errors have FastChat's numbers: validation, both kinds of bad key, model, range, context."""
    async with engine() as backend, serving(backend, Config(api_keys=["k"])) as app:

        async def code(key: str | None = "k", **body: Any) -> Any:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            messages = [{"role": "user", "content": "Hi"}]
            async with app.session.post(
                f"{url(app)}/v1/chat/completions",
                json={"messages": messages} | body,
                headers=headers,
            ) as response:
                return (await response.json())["code"]

        long = [{"role": "user", "content": "cat " * 3000}]
        assert [40101, 40102, 40001, 40301, 40302, 40303] == [
            await code(None),
            await code("wrong"),
            await code(n="x"),
            await code(model="x"),
            await code(temperature=3.0),
            await code(messages=long),
        ]


async def test_case_15_token_check() -> None:
    """A prompt that leaves no room for its answer does not fit, and its tokens are told."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        fake.answers["/count_token"] = {"count": 3, "error_code": 0}
        prompts = [{"model": "m", "prompt": "a b c", "max_tokens": tokens} for tokens in (98, 97)]

        async with app.post("/api/v1/token_check", prompts=prompts[:1]) as response:
            body = await response.read()
        both = await said(app, "/api/v1/token_check", prompts=prompts)

    assert b'{"prompts":[{"fits":false,"tokenCount":3,"contextLength":100}]}' == body
    assert [False, True] == [item["fits"] for item in both["prompts"]]


async def test_case_15_api_chat() -> None:
    """/api/v1/chat/completions takes repetition_penalty, and `messages` as the raw prompt."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        body = {"model": "m", "messages": "USER: Hi ASSISTANT:", "repetition_penalty": 1.2}
        chat = await said(app, "/api/v1/chat/completions", **body)
        await said(app, "/api/v1/chat/completions", model="m")

    first, second = fake.asked["/worker_generate_stream"]
    assert ("USER: Hi ASSISTANT:", 1.2) == (first["prompt"], first["repetition_penalty"])
    assert "\nUser: Hi\nBot:" == second["prompt"]
    assert ("chat.completion", "Hello") == (
        chat["object"],
        chat["choices"][0]["message"]["content"],
    )


async def test_case_15_engines_embeddings() -> None:
    """/v1/engines/{model}/embeddings embeds with the model that the URL names."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        fake.answers["/worker_get_embeddings"] = {"embedding": [[1.0, 0.0]], "token_num": 2}
        found = await said(app, "/v1/engines/m/embeddings", input="a")

    assert [1.0, 0.0] == found["data"][0]["embedding"]
    assert {"prompt_tokens": 2, "total_tokens": 2} == found["usage"]


@pytest.mark.parametrize(
    "path", ["/api/v1/chat/completions", "/api/v1/token_check", "/v1/engines/m/embeddings"]
)
async def test_case_15_all_want_a_key(path: str) -> None:
    """Where there are keys, all of FastChat's routes want one; its own left those under /api open."""
    config = Config(api_keys=["k"])
    async with serving(upstream("http://127.0.0.1:1/v1"), config) as app:
        async with app.post(path) as response:
            body = await response.json()

    assert (401, 40101, "invalid_api_key") == (
        response.status,
        body["code"],
        body["detail"]["error"]["code"],
    )


async def test_case_17_batches() -> None:
    """Inputs go to a worker in batches of the configured size, and come back in order."""
    async with fake_fastchat() as fake, in_front(fake, embedding_batch=4) as app:

        async def script(exchange: Any) -> None:
            if b"/worker_get_embeddings" in exchange.head:
                texts = exchange.json()["input"]
                vectors = [[float(text)] for text in texts]
                fake.answers["/worker_get_embeddings"] = {"embedding": vectors, "token_num": 2}
            await fake_script(exchange)

        fake_script, fake.server._script = fake.script, script
        texts = [str(number) for number in range(9)]
        found = await said(app, "/v1/embeddings", model="m", input=texts)

    assert [4, 4, 1] == [len(body["input"]) for body in fake.asked["/worker_get_embeddings"]]
    assert [[float(number)] for number in range(9)] == [item["embedding"] for item in found["data"]]
    assert 6 == found["usage"]["prompt_tokens"]


async def test_case_17_token_ids() -> None:
    """Token ids are embedded where the model's tokens are known, alone and in lists, and refused where a worker reads texts."""
    async with engine() as backend, serving(backend) as app:
        ids = await backend.tokenize("Hello there")
        text, one, many = [
            await said(app, "/v1/embeddings", input=given)
            for given in ("Hello there", ids, [ids, ids])
        ]
    async with fake_fastchat() as fake, in_front(fake) as app:
        async with app.post("/v1/embeddings", model="m", input=[1, 2]) as response:
            refused = await response.json()

    assert text["data"][0]["embedding"] == pytest.approx(one["data"][0]["embedding"], abs=1e-4)
    assert 2 == len(many["data"])
    assert (400, "input") == (response.status, refused["error"]["param"])
    assert "check_embedding_ctx_length" in refused["message"]


LOGPROBS = {
    "tokens": ["Hel", "lo"],
    "token_logprobs": [-0.5, -0.25],
    "top_logprobs": [{}, {}],
    "text_offset": [0, 3],
}


async def test_case_18_echo_logprobs_best_of_beam_n() -> None:
    """echo, logprobs, best_of, use_beam_search and n do on a worker what they say."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        body = {"model": "m", "prompt": "Oh, ", "max_tokens": 5}
        echo = await said(app, "/v1/completions", **body, echo=True)
        three = await said(app, "/v1/completions", **body, n=3)
        await said(app, "/v1/completions", **body, use_beam_search=True)
        assert fake.params["use_beam_search"] is True
        fake.pieces = [
            frame("Hello", usage=used(3, 2), finish_reason=None, logprobs=LOGPROBS),
            frame("Hello", usage=used(3, 2), finish_reason="stop", logprobs=LOGPROBS),
        ]
        with_logprobs = await said(app, "/v1/completions", **body, logprobs=1)
        before = len(fake.asked["/worker_generate_stream"])
        best = await said(app, "/v1/completions", **body, best_of=4)

    assert "Oh, Hello" == echo["choices"][0]["text"]
    assert ["Hello"] * 3 == [choice["text"] for choice in three["choices"]]
    assert [0, 1, 2] == [choice["index"] for choice in three["choices"]]
    assert (3, 6) == (three["usage"]["prompt_tokens"], three["usage"]["completion_tokens"])
    assert LOGPROBS == with_logprobs["choices"][0]["logprobs"]
    assert (1, 4) == (len(best["choices"]), len(fake.asked["/worker_generate_stream"]) - before)
    assert best["choices"][0]["logprobs"] is None


async def test_case_22_model_cards() -> None:
    """A model's card has `root`, `parent` and FastChat's one permission."""
    async with fake_fastchat() as fake, in_front(fake) as app:
        _, body = await app.get("/v1/models")
    (card,) = json.loads(body)["data"]
    (permission,) = card["permission"]

    assert ("m", "model", "m", None) == (card["id"], card["object"], card["root"], card["parent"])
    assert permission.pop("id").startswith("modelperm-")
    assert {
        "object": "model_permission",
        "created": card["created"],
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": True,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    } == permission


async def test_case_23_timeouts_and_batch_size() -> None:
    """FASTCHAT_WORKER_API_TIMEOUT is `timeout_s`, FASTCHAT_WORKER_API_EMBEDDING_BATCH_SIZE is `embedding_batch`."""
    async with fake_fastchat() as fake:

        async def script(exchange: Any) -> None:
            if b"/worker_generate_stream" in exchange.head:
                await exchange.client_gone()
            else:
                await fake_script(exchange)

        fake_script, fake.server._script = fake.script, script
        async with in_front(fake, timeout_s=1.0, embedding_batch=2) as app:
            async with app.post("/v1/chat/completions", model="m") as response:
                body = await response.json()
            fake.answers["/worker_get_embeddings"] = {"embedding": [[1.0]] * 2, "token_num": 2}
            await said(app, "/v1/embeddings", model="m", input=["a"] * 4)

    assert (504, 50006) == (response.status, body["code"])
    assert [2, 2] == [len(asked["input"]) for asked in fake.asked["/worker_get_embeddings"]]
