"""plot.py: scales, and elements that an XML parser reads."""

from xml.etree import ElementTree

import pytest

from unilect.cli.bench.plot import Line, Scale, draw, value_scale


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, 3.0],
        [0.0],
        [0.021, 0.04],
        [0.001, 9.99],
        [1e-9, 1e9],
        [99.9, 100.1],
        [1e12],
    ],
)
def test_scales(values: list[float]) -> None:
    """All values lie within the ticks, which ascend, are few, and are far from each other."""
    scale, ticks = value_scale(values, 200, 0)

    assert scale.low <= min(values)
    assert scale.high >= max(values)
    assert 2 <= len(ticks) <= 12
    assert sorted(set(ticks)) == ticks
    assert all(0 <= scale.at(value) <= 200 for value in [*values, *ticks])


def test_places() -> None:
    """A scale is linear or logarithmic, and keeps what lies outside at its edge."""
    assert [50, 0, 100] == [Scale(0, 10, 0, 100, False).at(value) for value in (5, -1, 11)]
    assert Scale(1, 100, 0, 100, True).at(10) == pytest.approx(50)
    assert Scale(3, 3, 0, 100, False).at(3) == 50


def test_hostile_names() -> None:
    """A name is text, wherever it stands."""
    name = "</title></svg><script>alert(1)</script>\"'&"
    drawn = ElementTree.fromstring(draw(name, name, [Line(name, "a", [(1, 2), (8, 3)], base=[(1, 1), (8, 1)])], str))  # fmt: skip

    assert drawn.get("aria-label") == name
    assert {"svg", "line", "text", "polygon", "polyline", "circle", "title"} == {one.tag for one in drawn.iter()}  # fmt: skip
    assert f"{name}, 8: 3" in [one.text for one in drawn.iter("title")]


def test_nothing_to_draw() -> None:
    """A plot without a point says so."""
    assert "no data" in draw("x", "y", [Line("a", "a", [])], str)
