"""
The settings of tracing: the table `[otel]` of a configuration, and what OpenTelemetry's own variables say.

Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from unilect.config.option import Table, option
from unilect.runtime import extras
from unilect.runtime.redact import redact

_PATH = "/v1/traces"
#: The variables that name a collector: the address of its traces, or that of the collector.
TRACES_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def is_installed() -> bool:
    """Return True if the extra is installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _check_endpoint(text: str) -> str:
    """Return why spans cannot be sent to an endpoint; empty where they can. Nothing is opened."""
    try:
        url = urlsplit(text)
        fine = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        fine = False
    if not fine:
        return f"`{redact(text[:200])}` is not the URL of a collector; expected one such as http://collector:4318."
    if not is_installed():
        return f"requires OpenTelemetry, which is not installed; install it with `{extras.install('otel')}`."
    return ""


class OtelConfig(Table, frozen=True, kw_only=True):
    """The collector of spans: the table `[otel]`."""

    endpoint: str | None = option(
        None,
        "Send a span for each request to this OpenTelemetry collector, by OTLP over HTTP, such as `http://collector:4318` "
        "(requires the extra *otel*). Spans hold no prompts and no answers. Default: the address in "
        "`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`; without one nothing is traced.",
        check=_check_endpoint,
        example="http://collector:4318",
    )


def endpoint_of(config: OtelConfig, environment: Mapping[str, str]) -> str | None:
    """Return the URL that spans are sent to; None where nothing is traced."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "otlp":
        return None
    if config.endpoint is None and (whole := environment.get(TRACES_VARIABLE)):
        return whole
    base = config.endpoint or environment.get(VARIABLE) or ""
    if base.endswith(_PATH):
        return base
    return f"{base.rstrip('/')}{_PATH}" if base else None
