"""Line plots as SVG, without script: the colours are the style sheet's, and a value is shown where the pointer rests."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 44
_MOST_LABELS = 12  # below the horizontal axis
_WIDE = 20  # a ratio above which a scale is logarithmic

Point = tuple[float, float]


class Line(NamedTuple):
    """
    A line of a plot.

    Attributes:
        name: Its name, where the pointer rests.
        colour: The class of the style sheet.
        points: In ascending order of x.
        dashed: It is drawn thin and dashed.
        base: The points below it, where the area between is filled.
    """

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False
    base: Sequence[Point] = ()


class Scale(NamedTuple):
    """The way from values, from `low` to `high`, to places, from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        """Return the place of a value; those outside are at the edge."""
        value = min(max(value, self.low), self.high)
        if self.low == self.high:
            return (self.start + self.end) / 2
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def value_scale(values: Sequence[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """Return the scale of values from 0 up, and its ticks; logarithmic where the values are far apart."""
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=1.0), max(positive, default=1.0)
    if len(positive) == len(values) and high / low > _WIDE:
        ticks = [base * 10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for base in (1, 2, 5)]  # fmt: skip
        below = max(tick for tick in ticks if tick <= low * 1.0001)
        above = min((tick for tick in ticks if tick >= high * 0.9999), default=high)
        ticks = [tick for tick in ticks if below <= tick <= above]
        return Scale(below, above, start, end, True), ticks[:: 1 + len(ticks) // 8]
    step = 10.0 ** math.floor(math.log10(high))
    step = next(part for part in (step / 5, step / 2, step, step * 2) if high / part <= 5.5)
    count = math.ceil(high / step * 0.9999)
    return Scale(0.0, count * step, start, end, False), [step * number for number in range(count + 1)]  # fmt: skip


def draw(title: str, x_title: str, lines: Sequence[Line], text: Callable[[float], str]) -> str:
    """
    Return a plot as an SVG element.

    Args:
        title: For who cannot see it.
        x_title: The name of the horizontal axis.
        text: The text of a value.
    """
    lines = [line for line in lines if line.points]
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
    if not lines:
        return f'{head}<text class="none" x="{_WIDTH / 2}" y="{_HEIGHT / 2}">no data</text></svg>'
    loads = sorted({x for line in lines for x, _ in line.points})
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    far = loads[-1] / loads[0] >= 4
    across = Scale(loads[0], loads[-1], _LEFT + 12, right - 12, far)
    up, ticks = value_scale([y for line in lines for _, y in line.points], bottom, _TOP)
    parts = [head]
    for tick in ticks:
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 8}" y="{y + 4:.1f}">{escape(text(tick))}</text>')
    for load in loads[:: 1 + len(loads) // _MOST_LABELS]:
        parts.append(f'<text class="x" x="{across.at(load):.1f}" y="{bottom + 18}">{load:g}</text>')
    parts.append(f'<text class="x" x="{(_LEFT + right) / 2}" y="{bottom + 38}">{escape(x_title)}</text>')  # fmt: skip
    for line in lines:
        parts += _draw_line(line, across, up, text)
    return "".join([*parts, "</svg>"])


def _draw_line(line: Line, across: Scale, up: Scale, text: Callable[[float], str]) -> list[str]:
    """Return the elements of a line: its area, itself and its points."""
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = []
    if line.base:
        below = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in reversed(line.base))
        parts.append(f'<polygon class="area {line.colour}" points="{path} {below}"/>')
    kind = "dashed" if line.dashed else "line"
    parts.append(f'<polyline class="{kind} {line.colour}" points="{path}"/>')
    for (x, y), (load, value) in zip(places, line.points, strict=True):
        told = escape(f"{line.name}, {load:g}: {text(value)}")
        size = 2.5 if line.dashed else 4
        parts.append(f'<circle class="dot {line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"><title>{told}</title></circle>')  # fmt: skip
    return parts
