"""
Metrics in Prometheus' text format.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Buckets(NamedTuple):
    """A histogram: the number of values up to each bound, and beyond the last one, and their sum."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Family(NamedTuple):
    """
    A family of metrics.

    Attributes:
        name: Its name; that of a counter ends in `_total`.
        labels: The names of its labels.
        rows: The values of the labels, and the number. They are read later, and may not change meanwhile.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    rows: Collection[tuple[Sequence[str], float | Buckets]]


def by_label(
    name: str,
    kind: Literal["counter", "gauge"],
    help: str,
    label: str,
    numbers: Mapping[str, float],
) -> Family:
    """Make a family with one label."""
    rows = [((value,), number) for value, number in numbers.items()]
    return Family(name, kind, help, (label,), rows)


def write(family: Family) -> Iterator[str]:
    """Write a family: its head, then each row."""
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for values, number in family.rows:
        escaped = (value.translate(_ESCAPES) for value in values)
        labels = [*zip(family.labels, escaped, strict=True)]
        if isinstance(number, Buckets):
            yield _histogram(family.name, labels, number)
        else:
            yield f"{family.name}{_join(labels)} {float(number)}\n"


def _histogram(name: str, labels: list[tuple[str, str]], histogram: Buckets) -> str:
    """Write a histogram, whose buckets differ in the label `le` only."""
    before, _, after = _join([*labels, ("le", "\n")]).partition(
        "\n"
    )  # no other label has a line end
    lines, total = [], 0
    bounds = (*map(str, histogram.bounds), "+Inf")
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        lines.append(f"{name}_bucket{before}{bound}{after} {total}.0\n")
    joined = _join(labels)
    lines.append(f"{name}_count{joined} {total}.0\n{name}_sum{joined} {histogram.sum}\n")
    return "".join(lines)


def _join(labels: list[tuple[str, str]]) -> str:
    """Write labels whose values are escaped, in the order of their names."""
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{value}"' for name, value in sorted(labels)]) + "}"
