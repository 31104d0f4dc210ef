"""Tests of unilect.http.reasons: what the operator is told of a server, and the client is not."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.backends.fastchat import fake_fastchat
from support.backends.loopback import free_port
from support.backends.scripted import HELLO, Exchange, Script, answer, says, scripted, stream_of
from support.common.certificates import certificate, needs_openssl
from support.servers.appserver import serving_models
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import BackendError, BackendUnreachable, InvalidRequest, UnilectError
from unilect.http import client as _http
from unilect.http.client import HttpServer
from unilect.http.reasons import likely_base
from unilect.models import sources

KEY = "sk-very-secret-key"


async def failure(url: str, **settings: Any) -> UnilectError:
    """The error of a request to a server."""
    with pytest.raises(UnilectError) as raised:
        await HttpServer(url, **settings).post("/chat/completions", b"{}")
    return raised.value


async def test_refused() -> None:
    """A server that does not listen is told with its address."""
    port = free_port()
    error = await failure(f"http://127.0.0.1:{port}/v1")

    assert error.reason == (
        f"The model's server cannot be reached: connection refused by 127.0.0.1:{port}."
    )
    assert "127.0.0.1" not in error.message


async def test_a_name_that_does_not_resolve() -> None:
    """A host that nobody knows is told by its name."""
    error = await failure("http://no-such-host.invalid/v1")

    assert isinstance(error, BackendUnreachable)
    assert "the name no-such-host.invalid does not resolve" in (error.reason or "")


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
async def test_a_name_that_is_none(host: str) -> None:
    """A host that cannot be a name is one that cannot be reached."""
    error = await failure(f"http://{host}/v1")

    assert isinstance(error, BackendUnreachable)
    assert f"the name {host} is not a valid host name" in (error.reason or "")


@needs_openssl
async def test_no_connection_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server to which no connection is made in time is told with its address."""

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(_http, "CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    error = await failure("http://10.0.0.1:8000/v1")

    assert isinstance(error, BackendUnreachable)
    assert "no connection to 10.0.0.1:8000 within 0 s" in (error.reason or "")


async def test_silence() -> None:
    """A server that says nothing is told with its URL and how long was waited, the operator alone."""
    async with scripted(Exchange.client_gone) as server:
        error = await failure(server.url, timeout_s=0.01)

    assert f"({server.url}) sent nothing for 0.01 s" in (error.reason or "")
    assert server.url not in error.message


async def test_a_certificate_that_signs_itself(tmp_path: Path) -> None:
    """A server whose certificate is not trusted is told as that."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate(tmp_path))
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(f"https://127.0.0.1:{port}/v1")

    assert isinstance(error, BackendUnreachable)
    assert f"the certificate of 127.0.0.1:{port} is self-signed" in (error.reason or "")


async def test_no_tls() -> None:
    """A server that speaks plain HTTP where TLS is expected is told as that."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(f"https://127.0.0.1:{port}/v1")

    assert "failed the TLS handshake" in (error.reason or "")
    assert "without TLS does; try http://" in (error.reason or "")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            says(answer(b'{"error":{"message":"out of memory\\n"}}', "500 Oops")),
            "with status 500: out of memory",
        ),
        (
            says(answer(b"<h1>Bad gateway</h1>", "502 Oops")),
            "with status 502: <h1>Bad gateway</h1>",
        ),
        (says(answer(b"x" * 9000, "500 Oops")), f"with status 500: {'x' * 300}"),
        (says(answer(b"", "500 Oops")), "with status 500."),
        (
            says(answer(b"", "307 Elsewhere", location="https://a/b?key=c")),
            "a redirect to https://a/b?key=***, which is not followed.",
        ),
    ],
)
async def test_what_was_answered(script: Script, expected: str) -> None:
    """An error answer is told with its URL, its status and its words, in one short line."""
    async with scripted(script) as server:
        error = await failure(f"{server.url}?api_key={KEY}")

    said = f"POST {server.url}/chat/completions?api_key=*** was answered "
    assert (error.reason or "").startswith(said)
    assert (error.reason or "").endswith(expected)
    assert "memory" not in error.message


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}])
async def test_a_key_that_is_refused(headers: dict[str, str]) -> None:
    """Where a server wants a key and none is configured the operator is told so, and else that it is refused."""
    async with scripted(says(answer(b'{"error":"no"}', "401 No"))) as server:
        error = await failure(server.url, headers=headers)

    assert (BackendError, not headers) == (
        type(error),
        "No key is configured for it: set `api_key`" in (error.reason or ""),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"404 page not found",
        b'{"detail":"Not Found"}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b'{"error":{"message":"There is no POST /v2/chat/completions here; see GET /docs.","code":"unknown_url"}}',
        b'{"error":{"message":"Invalid URL (POST /v2/chat/completions)"}}',
        b"<html>Cannot POST /v2</html>",
        b"",
    ],
)
async def test_a_wrong_base_url(body: bytes) -> None:
    """A URL that the server does not have is the operator's fault, who is told which it is and what was likely meant."""
    async with scripted(says(answer(body, "404 Not Found"))) as server:
        base = server.url.removesuffix("/v1")
        error = await failure(f"{base}/v2")

    assert 502 == error.status
    assert f"POST {base}/v2/chat/completions was answered with status 404" in (error.reason or "")
    assert f"the base URL is likely {base}/v1" in (error.reason or "")
    assert "v2" not in error.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","code":404}',
        b'{"error":{"message":"model \'x\' not found","type":"api_error"}}',
        b'{"error":{"message":"gone","code":"model_not_found"}}',
    ],
)
async def test_a_model_that_is_not_there(body: bytes) -> None:
    """A model that the server does not have is the operator's fault, and a reason to ask the server anew what it has."""
    async with scripted(says(answer(body, "404 Not Found"))) as server:
        http = HttpServer(server.url)
        with pytest.raises(BackendError) as raised:
            await http.post("/chat/completions", b"{}")

    assert (502, 1) == (raised.value.status, http.doubts)


async def test_what_else_is_not_found() -> None:
    """What a server does not find may be the request's: that is told to the client."""
    async with scripted(
        says(answer(b'{"error":{"message":"no such file id"}}', "404 No"))
    ) as server:
        error = await failure(server.url)

    assert (InvalidRequest, "no such file id" in error.message) == (type(error), True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h/v2/chat/completions", "http://h/v1"),
        ("http://h/chat/completions", "http://h/v1"),
        ("http://h/v1/chat/completions/chat/completions", "http://h/v1"),
        ("http://h/v1/x/models", "http://h/v1"),
        ("http://h/openai/models", "http://h/openai/v1"),
        ("http://h/v1/chat/completions", ""),
        ("http://h/v3/embeddings?a=b", "http://h/v1?a=b"),
    ],
)
def test_likely_base(url: str, expected: str) -> None:
    """The base URL that was likely meant is guessed from the one that was not found."""
    assert expected == likely_base(url)


# What a client sees


async def test_an_upstream_that_repeats_its_key(caplog: pytest.LogCaptureFixture) -> None:
    """No secret of an upstream reaches a client or the log, whatever the upstream says of it, and however."""
    said = {"error": {"message": f"bad {KEY}, me:pass-word, {'x' * 440} {KEY}", "param": KEY}}
    told = msgspec.json.encode(said)
    for status in ("400 Bad Request", "500 Oops"):
        async with scripted(says(answer(told, status))) as server:
            table = ModelConfig(
                source=server.url.replace("//", "//me:pass-word@") + f"?api_key={KEY}",
                model="x",
                api_key=KEY,
                api_key_header="api-key",
            )
            config = Config(models={"m": table})
            async with serving_models(config, sources.registry(config)) as app:
                async with app.chat(model="m", stream=False) as response:
                    seen = await response.text()
        for secret in (KEY, KEY[:6], "pass-word"):
            assert secret not in seen + str(response.headers) + caplog.text
    assert "fails: POST http://127.0.0.1" in caplog.text


async def test_a_client_is_told_what_to_ask_for(caplog: pytest.LogCaptureFixture) -> None:
    """A client's error holds no address and no word of the upstream, but the id under which the log has which known fault that names."""
    async with scripted(says(answer(b'{"error":{"message":"CUDA error"}}', "500 Oops"))) as server:
        config = Config(models={"m": ModelConfig(source=server.url, model="x")})
        async with serving_models(config, sources.registry(config)) as app:
            async with app.chat(model="m", stream=False) as response:
                body = await response.json()

    request_id = response.headers["X-Request-Id"]
    assert f"(Request {request_id}.)" in body["error"]["message"]
    assert "CUDA" not in str(body)
    assert str(server.port) not in str(body)
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "was answered with status 500 (it names: cuda error; its words " in line
    assert f"({request_id})" in line


async def test_a_server_that_is_down_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is down when we start is told once for each model, with the reason; also where its model is named."""
    port = free_port()
    tables = {name: ModelConfig(source=f"http://127.0.0.1:{port}/v1", model=name) for name in "ab"}
    registry = sources.registry(Config(models=tables))
    await registry.start(tables)
    await registry.aclose()

    told = f"http://127.0.0.1:{port}/v1 is out: The model's server cannot be reached: connection refused by 127.0.0.1:{port}."
    assert [f"a: {told}", f"b: {told}"] == [
        one.getMessage() for one in caplog.records if one.levelname == "WARNING"
    ]


async def test_a_model_that_cannot_be_started_yet(caplog: pytest.LogCaptureFixture) -> None:
    """A model that its server does not have yet is told at the start with the reason, and once."""
    async with fake_fastchat() as fake:
        fake.answers["/list_models"] = {"models": []}
        registry = sources.registry(
            Config(models={"m": ModelConfig(source=f"fastchat+{fake.url}")})
        )
        for _ in range(3):
            await registry.start(["m"])
        await registry.aclose()

    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "The FastChat controller has no worker that answers." in line


async def test_a_wrong_base_url_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """A server whose list of models is not where it should be is told with the URL when it is met."""
    async with scripted(says(answer(b"404 page not found", "404 Not Found"))) as server:
        table = ModelConfig(source=server.url.removesuffix("1") + "2", model="x")
        registry = sources.registry(Config(models={"m": table}))
        await registry.start(["m"])
        await registry.aclose()

    assert f"the base URL is likely {server.url}" in caplog.text


async def test_a_server_of_two_models(caplog: pytest.LogCaptureFixture) -> None:
    """A server of several models, of which none is named, is told with their names and the option to set, and clients are not."""
    listed = answer(b'{"data":[{"id":"qwen"},{"id":"llama"}]}')
    async with scripted(says(listed)) as server:
        config = Config(models={"m": ModelConfig(source=server.url)})
        registry = sources.registry(config)
        await registry.start(["m"])
        async with serving_models(config, registry) as app:
            async with app.chat(model="m", stream=False) as response:
                seen = await response.text()

    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"][:1]
    assert line.startswith(f"m: {server.url} fails: The server has 2 models (qwen, llama); ")
    assert "name one with `model = ...`" in line
    assert response.status >= 500
    assert "qwen" not in seen


async def test_another_model_after_a_restart() -> None:
    """A server that does not know its model any more is asked anew what it has, and the next request is answered."""
    models, now_s = ["old"], asyncio.get_running_loop().time()

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            await exchange.send(answer(msgspec.json.encode({"data": [{"id": models[0]}]})))
        elif exchange.json()["model"] == models[0]:
            await exchange.send(stream_of(HELLO))
        else:
            told = b'{"error":{"message":"The model `old` does not exist."}}'
            await exchange.send(answer(told, "404 Not Found"))
        exchange.close()

    async with scripted(script) as server:
        config = Config(models={"m": ModelConfig(source=server.url)})
        registry = sources.registry(config)
        async with serving_models(config, registry) as app:
            statuses = []
            for name in ("old", "new", "new"):
                models[0] = name
                async with app.chat(model="m", stream=False) as response:
                    statuses.append(response.status)
                backend: Any = registry.get("m").pool.members[0].backend
                backend._asked_at = now_s - 60  # as if that were a while ago

    assert [200, 502, 200] == statuses
