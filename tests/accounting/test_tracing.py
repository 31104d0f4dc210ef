"""Tests of unilect.accounting.tracing: spans of real requests, exported in memory, and to a collector on loopback."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from support.backends.loopback import free_port, served
from support.backends.scripted import HELLO, Exchange, answer, says, scripted, stream_of
from support.servers.appserver import App, serving, upstream
from unilect.accounting import tracing
from unilect.accounting.tracing import Tracing, tracing_of
from unilect.config.otel import OtelConfig
from unilect.config.server import Config, ModelConfig
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server.listener import Listener
from unilect.testing.echo import Echo, Options

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


class Spans:
    """What was traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """All spans that have ended."""
        return self._exporter.get_finished_spans()

    @property
    def only(self) -> ReadableSpan:
        """The only one."""
        (span,) = self.all
        return span

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the only one."""
        return dict(self.only.attributes or {})


async def asked(app: App, headers: Mapping[str, str] | None = None, **body: Any) -> int:
    """The status of a chat, read to its end."""
    body = {"messages": [{"role": "user", "content": "SECRET PROMPT"}], "stream": True} | body
    url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
    async with app.session.post(url, json=body, headers=headers) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat(stream: bool) -> None:
    """A chat is one server span with the names of OpenTelemetry's conventions, and without a word of prompt or answer."""
    spans = Spans()
    async with serving(Echo(Options(text="SECRET ANSWER")), tracing=spans.tracing) as app:
        assert 200 == await asked(app, stream=stream, max_tokens=50, temperature=0.5)
        port = app.port

    span, known = spans.only, spans.attributes
    assert ("chat m", SpanKind.SERVER, None) == (span.name, span.kind, span.parent)
    assert StatusCode.UNSET == span.status.status_code
    assert known.pop("unilect.request_id").startswith("req_")
    assert 0 <= known.pop("gen_ai.response.time_to_first_chunk") < 20
    assert known.pop("gen_ai.usage.input_tokens") > 0
    assert known.pop("gen_ai.usage.output_tokens") > 0
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "unilect",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": stream,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
        "server.address": "127.0.0.1",
        "server.port": port,
        "unilect.caller": "anonymous",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
    } == known
    assert "SECRET" not in span.to_json()


async def test_the_trace_goes_on() -> None:
    """The span belongs to the client's trace, and the upstream gets the same trace, with the span as its parent."""
    spans, heads = Spans(), list[bytes]()

    async def script(exchange: Exchange) -> None:
        heads.append(exchange.head)
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        async with serving(upstream(server.url), tracing=spans.tracing) as app:
            headers = {"Traceparent": TRACEPARENT, "Tracestate": "vendor=value"}
            assert 200 == await asked(app, headers)

    span = spans.only
    assert span.parent is not None
    assert (int(TRACE_ID, 16), int(PARENT_ID, 16)) == (span.parent.trace_id, span.parent.span_id)
    sent = heads[-1].decode().lower()
    assert f"\r\ntraceparent: 00-{TRACE_ID}-{span.context.span_id:016x}-01\r\n" in sent
    assert "\r\ntracestate: vendor=value\r\n" in sent


async def test_nothing_is_passed_on_without_tracing() -> None:
    """A server that traces nothing sends no trace context of its clients to upstreams."""
    heads = list[bytes]()

    async def script(exchange: Exchange) -> None:
        heads.append(exchange.head)
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        async with serving(upstream(server.url)) as app:
            assert 200 == await asked(app, {"traceparent": TRACEPARENT})
    assert b"traceparent" not in heads[-1].lower()


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "x" * 4000},
        {"traceparent": f"00-{'0' * 32}-{PARENT_ID}-01"},
        {"traceparent": f"ff-{TRACE_ID}-{PARENT_ID}-01"},
        {"traceparent": TRACEPARENT.upper().replace("F", "G")},
        {"traceparent": TRACEPARENT, "tracestate": "x" * 5000},
        {"traceparent": TRACEPARENT, "tracestate": "a=\xe9,b=c"},
        {"tracestate": "a=b"},
    ],
)
async def test_wrong_trace_contexts(headers: dict[str, str]) -> None:
    """What is no trace context changes no answer, is not passed on, and costs no line of the log."""
    spans, heads = Spans(), list[bytes]()

    async def script(exchange: Exchange) -> None:
        heads.append(exchange.head)
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        async with serving(upstream(server.url), tracing=spans.tracing) as app:
            assert 200 == await asked(app, headers)

    assert heads[-1].isascii()
    assert not any(made_up in heads[-1] for made_up in (b"xxx", b"a=b", b"GGG"))
    if "tracestate" not in headers:
        assert spans.only.parent is None


async def test_a_fallback() -> None:
    """The span names the model that was asked for, and the one that answered."""
    spans = Spans()
    async with scripted(says(answer(b"{}", "503 Busy"))) as bad:
        async with serving(
            upstream(bad.url), fallback=[PooledBackend(Echo())], tracing=spans.tracing
        ) as app:
            assert 200 == await asked(app)
    known = spans.attributes
    assert ("m", "other") == (known["gen_ai.request.model"], known["gen_ai.response.model"])


async def test_errors() -> None:
    """An error before the answer is in the span, with its status as its type; only one of the server's marks it as failed."""
    spans = Spans()
    async with serving(
        Echo(Options(failing_answers=9)), Config(api_keys=["sk-right"]), tracing=spans.tracing
    ) as app:
        assert 401 == await asked(app, {"Authorization": "Bearer sk-wrong"})
        right = {"Authorization": "Bearer sk-right"}
        assert 404 == await asked(app, right, model="nobody")
        assert 502 == await asked(app, right, stream=False)

    refused, unknown, failed = spans.all
    for span, status, failure in (
        (refused, 401, False),
        (unknown, 404, False),
        (failed, 502, True),
    ):
        known = span.attributes or {}
        assert (status, str(status)) == (known["http.response.status_code"], known["error.type"])
        assert failure is (StatusCode.ERROR == span.status.status_code)
    assert "POST /v1/chat/completions" == refused.name == unknown.name
    assert "nobody" not in unknown.to_json()
    assert "chat m" == failed.name


async def test_a_stream_that_breaks() -> None:
    """A stream that ends with an error has status 200 as its client has it, and is marked as failed."""
    spans = Spans()
    echo = Echo(Options(text="abcdef", breaks_after=3, failing_answers=1))
    async with serving(echo, tracing=spans.tracing) as app:
        assert 200 == await asked(app)
    known = spans.attributes
    assert (200, "502") == (known["http.response.status_code"], known["error.type"])
    assert 3 == known["gen_ai.usage.output_tokens"]
    assert StatusCode.ERROR == spans.only.status.status_code


async def test_a_client_that_leaves() -> None:
    """A client that leaves ends its span, with 499."""
    spans = Spans()
    async with serving(
        Echo(Options(text="x" * 200, tokens_per_s=20)), tracing=spans.tracing
    ) as app:
        async with app.chat() as response:
            await response.content.readline()
        async with asyncio.timeout(20):
            while not spans.all:
                await asyncio.sleep(0.01)
    assert "499" == spans.attributes["error.type"]


async def test_what_is_not_traced() -> None:
    """Health checks, metrics, and what belongs to no dialect have no spans, whoever asks how often."""
    spans = Spans()
    async with serving(Echo(), tracing=spans.tracing) as app:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/nothing"):
            await app.get(path)
        assert () == spans.all
        await app.get("/v1/models")
    assert "GET /v1/models" == spans.only.name
    assert not any(name.startswith("gen_ai") for name in spans.attributes)


async def test_an_embedding() -> None:
    """Another endpoint is another operation."""
    spans = Spans()
    async with serving(Echo(), tracing=spans.tracing) as app:
        async with app.post("/v1/embeddings", input="SECRET") as response:
            assert 400 == response.status
        async with app.post("/v1/completions", prompt="SECRET") as response:
            assert 200 == response.status
    assert ["embeddings m", "text_completion m"] == [span.name for span in spans.all]


async def test_a_path_that_is_no_text() -> None:
    """Bytes in a path that are no text do not keep spans from being sent."""
    spans = Spans()
    async with serving(Echo(), tracing=spans.tracing) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(
            b"GET /v1/models/\xff\xed\xa0\x80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        await reader.read()
        writer.close()
    for span in spans.all:
        for value in (span.attributes or {}).values():
            str(value).encode()


def test_off_costs_no_import() -> None:
    """A server that traces nothing imports nothing of OpenTelemetry."""
    script = (
        "import sys\nfrom unilect.config.server import Config\nfrom unilect.models.registry import Registry\n"
        "from unilect.server.listener import Listener\nListener(Config(), Registry([]))\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where OpenTelemetry's variables ask for what is not installed the log says so, and the server starts without."""
    monkeypatch.setattr(tracing, "is_installed", lambda: False)
    assert None is tracing_of(OtelConfig(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"})
    assert "not installed" in caplog.text
    assert None is tracing_of(OtelConfig(), {})


@asynccontextmanager
async def listening(endpoint: str) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A server that sends its spans to a collector, and a client; the server stops with the block."""
    config = Config(
        port=0,
        models={"m": ModelConfig(source="echo:hello")},
        store=StoreConfig(url="sqlite://"),
        otel=OtelConfig(endpoint=endpoint),
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        (url,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield url, client
    finally:
        await listener.aclose()
        await registry.aclose()


async def test_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector gets the spans by OTLP over HTTP, the last of them when the server stops."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    got: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        assert "application/x-protobuf" == request.content_type
        got.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    with served(web.post("/v1/traces", collect)) as port:
        async with listening(f"http://127.0.0.1:{port}") as (url, client):
            for _ in range(3):
                body = {"model": "m", "messages": [{"role": "user", "content": "SECRET"}]}
                headers = {"traceparent": TRACEPARENT}
                async with client.post(
                    f"{url}/v1/chat/completions", json=body, headers=headers
                ) as response:
                    assert 200 == response.status

    found = [
        (dict((a.key, a.value.string_value) for a in resource.resource.attributes), span)
        for request in got
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert 3 == len(found)
    for resource, span in found:
        assert ("unilect", "test") == (
            resource["service.name"],
            resource["deployment.environment.name"],
        )
        assert ("chat m", bytes.fromhex(TRACE_ID)) == (span.name, span.trace_id)
        assert span.start_time_unix_nano < span.end_time_unix_nano
        reasons = {a.key: a.value for a in span.attributes}["gen_ai.response.finish_reasons"]
        assert ["stop"] == [one.string_value for one in reasons.array_value.values]
    assert all(b"SECRET" not in request.SerializeToString() for request in got)


async def test_a_collector_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is away, or answers nothing, delays neither a request nor the end of the server for long."""
    monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (free_port(), silent.getsockname()[1]):
            async with asyncio.timeout(20):
                async with listening(f"http://127.0.0.1:{port}") as (url, client):
                    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
                    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
                        assert 200 == response.status
