"""Tests of unilect.accounting.metrics."""

import pytest

from support.common.entries import meter_of
from support.common.samples import sample
from unilect.accounting.exposition import Buckets, Family, write
from unilect.accounting.metrics import Metrics
from unilect.core.events import Event, Extra, Finish, Opaque, Progress, TextDelta, Usage

LABELS = {"model": "m", "endpoint": "chat"}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """A metric's value; 0 where it was never touched."""
    return sample(metrics, f"unilect_{name}", labels) or 0.0


def queue(metrics: Metrics) -> tuple[float, float]:
    """Requests that wait, and that run."""
    return (
        value(metrics, "requests_waiting", model="m"),
        value(metrics, "requests_running", model="m"),
    )


def test_a_request() -> None:
    """A request waits, runs from its first token, and is counted with its tokens at its end."""
    metrics = Metrics()
    assert queue(metrics) == (0, 0)
    meter = meter_of(metrics)
    assert queue(metrics) == (1, 0)
    meter.see([Progress(1, 2)])
    assert queue(metrics) == (1, 0)
    meter.see([TextDelta("a")])
    assert queue(metrics) == (0, 1)
    meter.see([Finish("stop"), Usage(5, 3, 2)])
    assert queue(metrics) == (0, 1)
    seconds = meter.finish(200)

    assert queue(metrics) == (0, 0)
    assert Usage(5, 3, 2) == meter.usage
    assert seconds > 0
    assert value(metrics, "requests_total", **LABELS, status="200") == 1
    assert [5, 3, 2] == [
        value(metrics, "tokens_total", model="m", kind=kind)
        for kind in ("prompt", "completion", "cached")
    ]
    for name in (
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "request_duration_seconds",
    ):
        assert value(metrics, f"{name}_count", **LABELS) == 1


def test_the_first_token() -> None:
    """What a server says of itself is no token: the request waits on."""
    meter = meter_of(Metrics())
    meter.see([Opaque(Extra({"system_fingerprint": "b1", "service_tier": "default"}))])
    assert meter.first_token_s is None
    meter.see([Opaque(Extra({"else": 1}))])
    assert meter.first_token_s is not None


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], ""),
        ([[TextDelta("a")], [Usage(1, 1)]], ""),
        ([[TextDelta("a"), Finish("length"), Usage(1, 1)]], "length"),
        ([[TextDelta("a")], [Finish("tool_calls")], [Usage(1, 1)]], "tool_calls"),
        ([[Finish("stop", 0)], [TextDelta("a", 1)], [Finish("length", 1), Usage(0, 0)]], "length"),
    ],
)
def test_the_finish_reason(batches: list[list[Event]], expected: str) -> None:
    """The finish reason is that of the last choice that has ended, whether it comes alone or with the usage."""
    meter = meter_of(Metrics())
    for batch in batches:
        meter.see(batch)
    meter.finish(200)
    assert expected == meter.finish_reason


@pytest.mark.parametrize(
    ("batches", "firsts", "per_token"),
    [
        ([], 0, 0),
        ([[Progress(1, 2)]], 0, 0),
        ([[TextDelta("a")]], 1, 0),
        ([[TextDelta("a")], [Usage(1, 1)]], 1, 0),
        ([[TextDelta("a"), Finish("stop"), Usage(1, 9)]], 1, 1),
        ([[Progress(1, 1), TextDelta("a"), Finish("stop"), Usage(1, 1)]], 1, 1),
        ([[Progress(1, 2), Progress(2, 2)], [Progress(2, 2), TextDelta("a")], [Usage(1, 2)]], 1, 1),
    ],
)
def test_requests_that_end_early(batches: list[list[Event]], firsts: int, per_token: int) -> None:
    """A request that ends anywhere leaves no gauge behind and is counted once."""
    metrics = Metrics()
    meter = meter_of(metrics)
    for batch in batches:
        meter.see(batch)
    meter.finish(499)

    assert queue(metrics) == (0, 0)
    assert value(metrics, "requests_total", **LABELS, status="499") == 1
    assert value(metrics, "time_to_first_token_seconds_count", **LABELS) == firsts
    assert value(metrics, "time_per_output_token_seconds_count", **LABELS) == per_token


def test_the_pace_of_text_that_comes_in_the_end() -> None:
    """An answer whose first text comes with its end, as one that begins like a stop text, was made in the time until then."""
    metrics = Metrics()
    meter = meter_of(metrics)
    for batch in ([Finish("length")], [Usage(1, 3)]):
        meter.see(batch)
    meter.finish(200)

    assert metrics.tokens_per_s("m") == pytest.approx(3 / (meter.first_token_s or 0))


def test_what_was_used_so_far() -> None:
    """A request that is left is counted with what its events have told; one that ends, with what the backend says, if it does."""
    batches: list[list[Event]] = [[Progress(1, 5, 2)], [Progress(5, 5, 2), TextDelta("a")], [TextDelta("b", tokens=3)]]  # fmt: skip
    ends: list[tuple[list[list[Event]], Usage]] = [
        ([], Usage(5, 4, 2)),
        ([[Finish("stop"), Usage(5, 6, 3)]], Usage(5, 6, 3)),
        ([[Finish("stop"), Usage(0, 0)]], Usage(5, 4, 2)),
    ]
    for end, expected in ends:
        metrics = Metrics()
        meter = meter_of(metrics)
        for batch in batches + end:
            meter.see(batch)
        meter.finish(499)
        assert expected == meter.usage
        assert [expected.prompt_tokens, expected.completion_tokens, expected.cached_tokens] == [
            value(metrics, "tokens_total", model="m", kind=kind)
            for kind in ("prompt", "completion", "cached")
        ]


def test_two_servers_do_not_share() -> None:
    """Each server counts for itself."""
    one, other = Metrics(), Metrics()
    meter_of(one).finish(200)

    assert value(other, "requests_total", **LABELS, status="200") == 0


def test_queues() -> None:
    """The queue of each model is told as it is when somebody reads, its wait only where it is known."""
    metrics = Metrics()
    metrics.queues = lambda: {"m": (3, 4.5), "n": (0, None)}

    assert (3, 0) == (
        value(metrics, "queue_length", model="m"),
        value(metrics, "queue_length", model="n"),
    )
    assert 4.5 == value(metrics, "queue_wait_seconds", model="m")
    assert 'unilect_queue_wait_seconds{model="n"}' not in "".join(metrics.exposition())


def test_requests_go_on() -> None:
    """What is told begins in between and ends in between, and the text is whole all the same."""
    metrics = Metrics()
    meter_of(metrics).finish(200)
    pieces = metrics.exposition()
    text = next(pieces)
    for number in range(20):
        metrics.series(f"n{number}", "chat").statuses[500] += 1
        meter_of(metrics).finish(number)
        metrics.refuse("", f"{number}")
        text += next(pieces)
    text += "".join(pieces)
    assert text.count("# HELP ") == "".join(metrics.exposition()).count("# HELP ")


def test_a_histogram() -> None:
    """The buckets of a histogram are in the order of their bounds, and each has those before it."""
    rows = [(("chat", 'a"b'), Buckets((0.5, 1.0), (1, 1, 1), 3.25))]
    head, text = write(Family("x", "histogram", "Times.", ("endpoint", "model"), rows))
    assert "# HELP x Times.\n# TYPE x histogram\n" == head
    assert text.splitlines() == [
        'x_bucket{endpoint="chat",le="0.5",model="a\\"b"} 1.0',
        'x_bucket{endpoint="chat",le="1.0",model="a\\"b"} 2.0',
        'x_bucket{endpoint="chat",le="+Inf",model="a\\"b"} 3.0',
        'x_count{endpoint="chat",model="a\\"b"} 3.0',
        'x_sum{endpoint="chat",model="a\\"b"} 3.25',
    ]


def test_exposition() -> None:
    """Prometheus can read all metrics as text, and every one has a help text."""
    metrics = Metrics()
    meter_of(metrics).finish(200)
    text = "".join(metrics.exposition())

    assert 'unilect_requests_total{endpoint="chat",model="m",status="200"} 1.0' in text
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert f"# HELP {line.split()[2]} " in text
