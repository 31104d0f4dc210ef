"""
Traces: one span for each request to a dialect, with OpenTelemetry's conventions for generative AI, and W3C's trace context from the
client to the upstreams.

Nothing of OpenTelemetry is imported before a server is to trace. A span tells which model was asked for what, and how it ended; never what
was asked or answered.

Sources: https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/gen-ai-spans.md,
https://opentelemetry.io/docs/specs/semconv/http/http-spans/, https://www.w3.org/TR/trace-context/
"""

import asyncio
import logging
import re
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from unilect.config.otel import OtelConfig, endpoint_of, is_installed
from unilect.core.events import Tally, Usage
from unilect.core.ranking import RerankRequest
from unilect.core.requests import Call, ChatRequest, CompletionRequest, EmbeddingRequest, Request
from unilect.runtime.context import Context
from unilect.runtime.extras import install

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("unilect")
CLOSE_S = 3.0  # how long the end of the server waits for the last spans
_PATH_CHARACTERS = 200
_HEADER = re.compile(r"[\x20-\x7e]{1,600}")
_OPERATIONS: dict[type[Request], str] = {
    ChatRequest: "chat",
    CompletionRequest: "text_completion",
    EmbeddingRequest: "embeddings",
    RerankRequest: "rerank",
}
#: What is told of a request's parameters: attribute -> field.
_PARAMETERS = {
    "gen_ai.request.max_tokens": "token_limit",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.choice.count": "n",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stream": "stream",
}


def tracing_of(config: OtelConfig, environment: Mapping[str, str]) -> "Tracing | None":
    """
    Make the tracer of a server's requests.

    Returns:
        None where nothing is to be traced, or where OpenTelemetry's variables name a collector and it is not installed.
    """
    endpoint = endpoint_of(config, environment)
    if endpoint is None:
        return None
    if not is_installed():
        log.warning(
            "OpenTelemetry's variables name a collector, but it is not installed, and nothing is traced; install it with `%s`.",
            install("otel"),
        )
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = environment.get("OTEL_SERVICE_NAME", "unilect")
    resource = Resource.create({"service.name": name, "service.version": version("unilect")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider)


class Tracing:
    """
    Traces the requests of a server: `begin` and `end` by the guard, and between them, as a `RequestRecorder`, what model was asked.

    Args:
        provider: Makes the spans, and sends them.
    """

    is_on = True

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # else each request with a header that is too long costs a line of the log, and each attempt to reach a collector that is away
        for noisy in ("opentelemetry.trace", "opentelemetry.exporter"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        self._provider = provider
        self._tracer = provider.get_tracer("unilect", version("unilect"))
        self._propagator = TraceContextTextMapPropagator()
        self._kind = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._in_context = trace.set_span_in_context

    def begin(self, context: Context, headers: Mapping[str, str], route: str) -> None:
        """
        Begin the span of a request.

        Args:
            headers: Its headers, by names in any case.
            route: The method and the path of its route.
        """
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        parent = self._propagator.extract(carrier) if carrier else None
        span = self._tracer.start_span(route, context=parent, kind=self._kind)
        told: dict[str, str] = {}
        self._propagator.inject(told, self._in_context(span))
        lines = (f"{k}: {v}\r\n" for k, v in told.items() if _HEADER.fullmatch(v))
        context.trace_headers = "".join(lines).encode()
        context.trace = Trace(span)

    async def open(self, context: Context, request: Request) -> "Trace | None":
        """Note that a model is asked for an answer; nothing is traced of what runs behind its request."""
        if isinstance(request, Call):
            return None
        found: Trace | None = context.trace
        if found is not None and found.span.is_recording():
            found.record_request(context, request)
        return found

    def end(self, context: Context, method: str, path: str, status: int, **known: Any) -> None:
        """
        End the span of a request.

        Args:
            status: What its client was told; 499 where it has left.
            known: Further attributes.
        """
        found: Trace | None = context.trace
        context.trace = None
        if found is None:
            return
        if found.span.is_recording():
            ended = max(status, found.status)
            found.span.set_attributes(
                {
                    "http.request.method": method,
                    # half a character would make a whole batch of spans impossible to encode
                    "url.path": path[:_PATH_CHARACTERS].encode(errors="replace").decode(),
                    "http.response.status_code": status,
                    "unilect.request_id": context.request_id,
                    "unilect.caller": context.caller,
                    **known,
                }
            )
            if context.meter is not None:
                found.record_answer(context)
            if ended >= 400:
                found.span.set_attribute("error.type", str(ended))
            if ended >= 500:
                found.span.set_status(self._failed)
        found.span.end()

    async def aclose(self) -> None:
        """Send what has not been sent, for `CLOSE_S` at most."""
        thread = threading.Thread(target=self._provider.shutdown, name="otel", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, CLOSE_S)


class Trace:
    """
    The span of one request, and its entry in its account.

    Attributes:
        span: It.
        status: How the answer ended, also where that was told in the last frame of a stream; 0 before that.
    """

    __slots__ = ("span", "status")

    def __init__(self, span: "Span") -> None:
        self.span = span
        self.status = 0

    def record_request(self, context: Context, request: Request) -> None:
        """Take note of what a model is asked."""
        operation = _OPERATIONS.get(type(request), context.endpoint)
        self.span.update_name(f"{operation} {context.model}")
        known = {name: getattr(request, field, None) for name, field in _PARAMETERS.items()}
        self.span.set_attributes(
            {name: value for name, value in known.items() if value is not None}
        )
        self.span.set_attribute("gen_ai.operation.name", operation)

    def record_answer(self, context: Context) -> None:
        """Take note of what a model has answered with."""
        meter = context.meter
        assert meter is not None
        usage, first_s = meter.usage, meter.first_token_s
        known: dict[str, Any] = {
            "gen_ai.provider.name": "unilect",
            "gen_ai.request.model": context.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
        if context.leased_at is not None:
            known["gen_ai.response.model"] = context.answering
        if usage.cached_tokens is not None:
            known["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        if meter.finish_reason:
            known["gen_ai.response.finish_reasons"] = [meter.finish_reason]
        if first_s is not None:
            known["gen_ai.response.time_to_first_chunk"] = first_s
        self.span.set_attributes(known)

    def note_usage(self, usage: Tally) -> None:
        """Do nothing: the meter counts."""

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """Note how the answer has ended."""
        self.status = status
