"""What the operator's views compute: speeds and means of counters, CSV, and the words of loads and of what fits."""

import csv
import io
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Page

CALL = (
    "async ([file, name, ...values]) => (await import(`/page/${file}.js`))[name](...values) ?? null"
)
_NASTY = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
_PLAIN = ['say "hi"', "a,b", "two\nlines", "two\r\nlines", "a=1", "ключ", ""]


@pytest.mark.parametrize(
    ("one", "other", "speed", "mean"),
    [
        ({"at": 10, "requests": 1, "sum": 2}, {"at": 12, "requests": 5, "sum": 10}, 2, 2),
        ({"at": 10, "requests": 5, "sum": 2}, {"at": 12, "requests": 5, "sum": 2}, 0, None),
        ({"at": 10, "requests": 5, "sum": 9}, {"at": 12, "requests": 1, "sum": 1}, None, None),
        ({"at": 10, "requests": 1, "sum": 2}, {"at": 10, "requests": 5, "sum": 2}, None, None),
    ],
    ids=["it grew", "nothing came", "it was begun anew", "no time"],
)
async def test_growth(
    page: "Page", one: Any, other: Any, speed: float | None, mean: float | None
) -> None:
    """A counter's speed and mean are those between two samples; where they are not known they are nothing."""
    growth = await page.evaluate(CALL, ["plots", "growth", one, other, "requests"])
    of_sum = await page.evaluate(CALL, ["plots", "meanGrowth", one, other, "sum", "requests"])

    assert (speed, mean) == (growth, of_sum)


@pytest.mark.parametrize("text", [*_NASTY, *_PLAIN])
async def test_csv(page: "Page", text: str) -> None:
    """A text stays itself in CSV as others read it, but one that a spreadsheet would take for a formula, which is marked as text."""
    sums = {"requests": 3, "prompt_tokens": 10, "completion_tokens": -5, "cost": 0.25}
    rows = [{"key": text, "day": "2026-11-27", **sums}, {"key": None, "day": "x", **sums}]
    made = await page.evaluate(CALL, ["usage", "asCsv", ["key", "day"], rows])
    head, first, second = csv.reader(io.StringIO(made, newline=""), strict=True)

    assert ["key", "day", *sums] == head
    assert [f"'{text}" if text in _NASTY else text, "2026-11-27", "3", "10", "-5", "0.25"] == first
    assert ["", "x"] == second[:2]


@pytest.mark.parametrize(
    ("loading", "left_s", "told"),
    [
        ({"step": "loading", "part": 0.424, "size_bytes": None}, 3, "loading: 42 %, about 3.0 s left"),
        ({"step": "loading", "part": 1, "size_bytes": None}, None, "loading: all read"),
        ({"step": "loading", "part": None, "size_bytes": None}, 0.1, "loading: takes longer than expected"),
        ({"step": "downloading", "part": 0.5, "size_bytes": 4.2e9}, None, "downloading: 50 % of 4.2 GB"),
        ({"step": "loading", "part": None, "size_bytes": None}, None, "loading"),
        (None, 70, "waiting for memory: about 70 s left"),
    ],
)  # fmt: skip
async def test_loads(page: "Page", loading: Any, left_s: float | None, told: str) -> None:
    """A load is told with its step, its part and the seconds that are left, as far as they are known."""
    model = {"loading": loading, "load_left_s": left_s, "heardAt": 0}

    assert told == await page.evaluate(CALL, ["models", "loadText", model])


@pytest.mark.parametrize(
    ("fit", "evicts", "need", "told"),
    [
        ("now", [], 2e9, "It needs 2.0 GB, 3.0 GB are free."),
        ("now", [], 2.7e9, "It needs 2.7 GB, 3.0 GB are free, and 2.5 GB on the machine."),
        ("evicts", ["a", "b"], 3.5e9, "It needs 3.5 GB, 3.0 GB are free, and 2.5 GB on the machine: a, b would leave for it."),
        ("evicts", list("abcdefg"), 2e9, "It needs 2.0 GB, 3.0 GB are free: a, b, c, d, e and 2 more would leave for it."),
        ("waits", [], 2e9, "It needs 2.0 GB, 3.0 GB are free, and no model can leave now."),
        ("never", [], 9e9, "It needs 9.0 GB; all models together may take 4.0 GB."),
        ("now", [], 0, "What it takes is known after its first load."),
    ],
)  # fmt: skip
async def test_fits(page: "Page", fit: str, evicts: list[str], need: float, told: str) -> None:
    """Whether a model fits is told in numbers, with those that would leave for it."""
    model = {"fit": fit, "evicts": evicts, "memory_need_bytes": need}
    said = await page.evaluate(
        """async ([model, sample]) => {
          (await import("/page/feed.js")).memoryBudget.value = 4e9;
          return (await import("/page/models.js")).fitText(model, sample);
        }""",
        [model, {"memory": 1e9, "memory_free": 2.5e9}],
    )

    assert told == said


async def test_who_is_shown_first(page: "Page") -> None:
    """Of more models than are shown those come first that something happens to; of few the order stays."""
    idle = {"aliases": ["X"], "state": "ready", "requests": 0, "queued": 0, "waits_for": None, "reason": None}  # fmt: skip
    all = [{**idle, "name": f"m{number}"} for number in range(60)] + [{**idle, "name": "busy", "requests": 1}]  # fmt: skip
    found = await page.evaluate(CALL, ["models", "choose", all, ""])
    few = await page.evaluate(CALL, ["models", "choose", all[50:], "x"])

    assert ["busy", "m0", "m1"] == [one["name"] for one in found[:3]]
    assert [f"m{number}" for number in range(50, 60)] + ["busy"] == [one["name"] for one in few]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "5.0 tokens/s, first after 1.00 s, 1,234 of 4,096 tokens"),
        ({"thoughtsEnded": 3, "thoughtsTokens": 20}, "10.0 tokens/s, first after 1.00 s, 1,234 of 4,096 tokens"),
        ({"thoughtsEnded": 3}, "10.0 tokens/s, first after 1.00 s, 1,234 of 4,096 tokens"),
    ],
    ids=["in one piece", "both parts", "thoughts of unknown length"],
)  # fmt: skip
async def test_speed(page: "Page", more: Any, told: str) -> None:
    """The speed of an answer is that of all that the model wrote, also where its thoughts were ended on the way."""
    message = {"seconds": 5, "firstToken": 1, "finish": "stop", "usage": {"completion_tokens": 21, "total_tokens": 1234}}  # fmt: skip

    assert told == await page.evaluate(CALL, ["message", "describeSpeed", message | more, 4096])
