"""The dashboard and the alert rules in deploy/: every expression is one, and names metrics and labels that a server exposes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.servers.deployed import DEPLOY, checked
from support.servers.serving import serve
from unilect.models.registry import Registry
from unilect.residency.residency import Residency
from unilect.server._connections import Connections, Limits
from unilect.server._state import metrics_of
from unilect.store.database import Database

#: What Prometheus itself says of each job, and puts on each sample.
OF_PROMETHEUS = {"up": set[str]()}
_METRIC = re.compile(r"\b(up|(?:unilect|process)_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\bby \(([^)]*)\)")


def _names(name: str, kind: str) -> list[str]:
    if kind == "counter":
        return [f"{name}_total"]
    if kind == "histogram":
        return [f"{name}_{end}" for end in ("bucket", "sum", "count")]
    return [name]


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The labels of each sample that a server may expose; the names are those of one that runs."""
    connections, database = Connections(Limits()), Database("sqlite://")
    metrics = metrics_of(
        Registry([], residency=Residency(2**30)), connections, {}, database, per_key=True
    )
    labels = {
        name: {*family.labels, *({"le"} if "_bucket" in name else ())}
        for family in metrics.families()
        for name in _names(family.name.removesuffix("_total"), family.kind)
    }
    with serve("m=echo:hi", env={"UNILECT_METRICS_PER_KEY": "true"}) as server:
        with urlopen(f"{server.root}/metrics", timeout=20) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
    running = {name for family in families for name in _names(family.name, family.type)}
    assert {*labels} == running
    every = OF_PROMETHEUS | {name: labels[name] for name in running}
    return {name: {*known, "job", "instance"} for name, known in every.items()}


def panels() -> Iterator[Any]:
    """The panels of the dashboard that show something."""
    dashboard = json.loads((DEPLOY / "grafana" / "unilect.json").read_text())
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


def of_dashboard() -> list[str]:
    """The expressions of the dashboard, without Grafana's variables."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [
        expression.replace("$__rate_interval", "5m")
        .replace("$job", "unilect")
        .replace("$instance", ".*")
        .replace("$model", ".*")
        for expression in found
    ]


def of_rules() -> list[str]:
    """The expressions of the alert rules."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "unilect.rules.yml").read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("expression", of_dashboard() + of_rules())
def test_an_expression(expression: str, exposed: dict[str, set[str]]) -> None:
    """An expression names metrics that there are, and labels that these have."""
    named = _METRIC.findall(expression)
    assert named
    for name, matchers in named:
        assert name in exposed
        assert {*_LABEL.findall(matchers)} <= exposed[name]
    for labels in _BY.findall(expression):
        for name, _ in named:
            assert {*labels.replace(" ", "").split(",")} <= exposed[name]


def test_a_metric_that_there_is_not(exposed: dict[str, set[str]]) -> None:
    """The check of the expressions sees a wrong name and a wrong label."""
    for wrong in ("unilect_nothing", 'unilect_connections{model="m"}', "sum by (key) (up)"):
        with pytest.raises(AssertionError):
            test_an_expression(wrong, exposed)


def test_what_the_dashboard_shows() -> None:
    """The dashboard has a panel for each thing that an operator asks for, none twice, and each panel has a place of its own."""
    titles = [panel["title"] for panel in panels()]
    wanted = (
        "Requests by model",
        "Errors by status",
        "Time to first token",
        "Time per output token",
        "Tokens per second",
        "Running and waiting requests",
        "Engine processes",
        "Connections",
    )
    assert {*wanted} <= {*titles}
    assert len(titles) == len({*titles})
    cells = [
        (place["x"] + x, place["y"] + y)
        for panel in panels()
        for place in [panel["gridPos"]]
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len({*cells})
    assert 24 > max(x for x, _ in cells)


def test_the_dashboard_in_prometheus(tmp_path: Path) -> None:
    """Prometheus can read every expression of the dashboard."""
    rules = [{"record": f"x:{n}", "expr": one} for n, one in enumerate(of_dashboard())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    assert f"{len(rules)} rules found" in checked("promtool", "check", "rules", file)


def test_the_rules() -> None:
    """Prometheus accepts the rules and the scrape configuration, and each alert fires when it should."""
    checked("promtool", "check", "rules", "prometheus/unilect.rules.yml")
    checked("promtool", "check", "config", "--syntax-only", "prometheus/prometheus.yml")
    checked("promtool", "test", "rules", Path(__file__).with_name("rules.test.yml"))


def test_every_alert_is_tested() -> None:
    """Each alert fires in a test of its own."""
    tests = yaml.safe_load(Path(__file__).with_name("rules.test.yml").read_text())["tests"]
    fired = {
        one["alertname"]
        for test in tests
        for one in test["alert_rule_test"]
        if one.get("exp_alerts")
    }
    rules = yaml.safe_load((DEPLOY / "prometheus" / "unilect.rules.yml").read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == fired
