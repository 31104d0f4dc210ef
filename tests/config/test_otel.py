"""Tests of unilect.config.otel."""

from pathlib import Path

import pytest

from unilect.config import otel
from unilect.config.load import load
from unilect.config.otel import OtelConfig, endpoint_of
from unilect.core.errors import ConfigError

TRACES, ALL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("endpoint", "environment", "expected"),
    [
        (None, {}, None),
        (None, {ALL: ""}, None),
        ("http://a:4318", {}, "http://a:4318/v1/traces"),
        ("http://a:4318/", {}, "http://a:4318/v1/traces"),
        ("http://a/otlp/v1/traces", {}, "http://a/otlp/v1/traces"),
        (None, {ALL: "http://b"}, "http://b/v1/traces"),
        (None, {ALL: "http://b", TRACES: "http://c/x"}, "http://c/x"),
        ("http://a", {ALL: "http://b", TRACES: "http://c/x"}, "http://a/v1/traces"),
        ("http://a", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {ALL: "http://b", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {ALL: "http://b", "OTEL_TRACES_EXPORTER": "otlp"}, "http://b/v1/traces"),
    ],
)
def test_endpoint(endpoint: str | None, environment: dict[str, str], expected: str | None) -> None:
    """The configuration names the collector, or else OpenTelemetry's variables do; they can also turn traces off."""
    assert expected == endpoint_of(OtelConfig(endpoint=endpoint), environment)


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "http://", "grpc://a:4317", "http://a:x", "http://[::1", "http://a:0"],
)
def test_wrong_endpoints(tmp_path: Path, endpoint: str) -> None:
    """What is no URL of a collector is told with its line and an example."""
    file = tmp_path / "x.toml"
    file.write_text(f'[otel]\nendpoint = "{endpoint}"\n')
    with pytest.raises(ConfigError, match=r"x.toml:2: otel.endpoint: .*http://collector:4318"):
        load(file, environment={})


def test_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the option is an error that says how to install it."""
    monkeypatch.setattr(otel, "is_installed", lambda: False)
    file = tmp_path / "x.toml"
    file.write_text('[otel]\nendpoint = "http://a:4318"\n')
    with pytest.raises(ConfigError, match=r"otel.endpoint: requires OpenTelemetry.*\[otel\]"):
        load(file, environment={})
