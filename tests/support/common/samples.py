"""Samples of a server's metrics, as Prometheus reads them."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from unilect.accounting.metrics import Metrics


def sample(metrics: Metrics, name: str, labels: Mapping[str, str]) -> float | None:
    """The value of a metric with these labels; None where there is none."""
    for family in text_string_to_metric_families("".join(metrics.exposition())):
        for one in family.samples:
            if (one.name, one.labels) == (name, labels):
                return float(one.value)
    return None
