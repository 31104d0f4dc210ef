"""Plots of time series: their scales, what they show and say, and that they go on in the same elements."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Page

SCALES = 'async ([name, ...values]) => (await import("/page/plot_scales.js"))[name](...values)'
MAKE = """async ({ points, ...options }) => {
  const { Plot } = await import("/page/plot.js");
  const element = document.createElement("div");
  element.style.width = "640px";
  document.body.append(element);
  window.plot = new Plot(element, { title: "Tokens", format: (value) => `${value}/s`, ...options });
  window.show = (from, points) => {
    const times = Array.from({ length: points }, (_, index) => from + index);
    plot.draw(times, [
      { name: "prompt", values: times.map((time) => (time % 10 === 3 ? null : time % 50)) },
      { name: "answer", values: times.map((time) => 2 * (time % 50)) },
    ]);
  };
  show(1000, points);
}"""


@pytest.mark.parametrize(
    ("low", "high", "most", "marks"),
    [
        (0, 1, 4, [0, 0.5, 1]),
        (0, 98, 4, [0, 50, 100]),
        (0, 0.003, 4, [0, 0.001, 0.002, 0.003]),
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (-3, 7, 4, [-5, 0, 5, 10]),
        (0, 1e9, 4, [0, 5e8, 1e9]),
        (5, 5, 4, None),
    ],
)
async def test_ticks(
    page: "Page", low: float, high: float, most: int, marks: list[float] | None
) -> None:
    """Marks are round numbers that hold all values."""
    found = await page.evaluate(SCALES, ["ticks", low, high, most])

    assert found[0] <= low
    assert found[-1] >= high
    assert marks in (None, found)


async def test_paths(page: "Page") -> None:
    """A line has a gap where there is no value, and an area ends on its floor."""
    places, heights = [0, 1, 2, 3], [5, None, 6.04, 7]

    assert "M0 5h0.1M2 6L3 7" == await page.evaluate(SCALES, ["path", places, heights])
    assert "M0 5h0.1L0 9L0 9ZM2 6L3 7L3 9L2 9Z" == await page.evaluate(
        SCALES, ["path", places, heights, 9]
    )


@pytest.mark.parametrize(("time", "place"), [(0, 0), (10, 0), (14, 0), (16, 1), (29, 2), (99, 2)])
async def test_nearest(page: "Page", time: int, place: int) -> None:
    """A pointer between two times reads the one that is nearer."""
    assert place == await page.evaluate(SCALES, ["nearest", [10, 20, 30], time])


async def test_said(page: "Page") -> None:
    """The legend says the newest values, and those that the pointer or a key has gone to, with a word where there is none."""
    await page.evaluate(MAKE, {"points": 60})
    values, plot = page.locator("output"), page.get_by_role("slider", name="Tokens: time")

    assert ["9/s", "18/s"] == await values.all_text_contents()
    await plot.focus()
    for _ in range(6):
        await page.keyboard.press("ArrowLeft")
    assert ["none", "6/s"] == await values.all_text_contents()
    assert (await plot.get_attribute("aria-valuetext") or "").endswith("prompt none, answer 6/s")
    await page.keyboard.press("Home")
    assert ["0/s", "0/s"] == await values.all_text_contents()
    await page.keyboard.press("Escape")
    assert ["9/s", "18/s"] == await values.all_text_contents()
    box = await plot.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 53, box["y"] + 50)
    assert ["0/s", "0/s"] == await values.all_text_contents()


async def test_moves(page: "Page") -> None:
    """A plot that goes on stays in the elements that it has."""
    await page.evaluate(MAKE, {"points": 360, "area": True})
    added = await page.evaluate(
        """() => {
          const seen = new MutationObserver(() => {});
          seen.observe(document.body, { childList: true, subtree: true });
          for (let second = 0; second < 50; second += 1) show(1000 + second, 360);
          return seen.takeRecords().flatMap((record) => [...record.addedNodes]).filter((node) => node.nodeType === 1 && node.closest(".plot-lines, .plot-cursor, .plot-legend")).length;
        }"""
    )

    assert 0 == added
    assert 4 == await page.locator(".plot-lines path").count()


@pytest.mark.parametrize("values", [[], [None], [0], [0, 0], [1e300, 1e-300]])
async def test_few(page: "Page", values: list[float | None]) -> None:
    """No values, one, none but zeros, and the largest make no broken path."""
    await page.evaluate(MAKE, {"points": 0})
    await page.evaluate(
        "(values) => plot.draw(values.map((_, index) => index), [{ name: 'x', values }])", values
    )
    paths = await page.locator(".plot-svg").evaluate("(one) => one.outerHTML")

    assert "NaN" not in paths
    assert "Infinity" not in paths
