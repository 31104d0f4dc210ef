"""The flags of `unilect bench`."""

from typing import Any

import click

from unilect.cli._options import FILE, Command, runs

MOST_LOADS = 100


class _Loads(click.ParamType[tuple[float, ...]]):
    """Positive numbers, separated by commas."""

    name = "A,B,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """Return the numbers of a text."""
        if isinstance(value, tuple):
            return value
        try:
            loads = tuple(float(one) for one in str(value).split(","))
        except ValueError:
            loads = ()
        if not 1 <= len(loads) <= MOST_LOADS or not all(0 < one <= 1e5 for one in loads):
            self.fail(f"{value!r}: expected numbers above 0, separated by commas, such as 1,2,4,8.")
        return loads


_positive = click.FloatRange(min=0, min_open=True, max=1e6)


@click.command(
    "bench",
    cls=Command,
    examples=(
        "unilect bench http://127.0.0.1:8000/v1",
        "unilect bench http://127.0.0.1:8000/v1 --rate 1,2,4,8 --html report.html",
        "unilect bench old=http://127.0.0.1:8000/v1 new=http://127.0.0.1:8001/v1 --concurrency 1,8",
    ),
)
@click.argument("servers", metavar="[NAME=]URL...", nargs=-1, required=True, help="One server, or two to compare.")  # fmt: skip
@click.option("--model", "models", metavar="NAME", multiple=True, help="Model name; twice for two servers [the first of each].")  # fmt: skip
@click.option("--api-key", "api_keys", metavar="KEY", multiple=True, envvar="UNILECT_API_KEY", show_envvar=True, help="API key of the first server; again for the second.")  # fmt: skip
@click.option("--rate", type=_Loads(), help="Requests a second, one step each; they come at random, and wait for none (open loop).")  # fmt: skip
@click.option("--concurrency", type=_Loads(), help="Requests at a time, one step each (closed loop) [1,2,4,8].")  # fmt: skip
@click.option("--seconds", type=_positive, default=10.0, show_default=True, help="Time of a step in which requests are sent.")  # fmt: skip
@click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), default=256, show_default=True, help="Size of the prompts, which are words that no cache has seen.")  # fmt: skip
@click.option("--output-tokens", type=click.IntRange(1, 1_000_000), default=64, show_default=True, help="Size of the answers.")  # fmt: skip
@click.option("--prompts", type=FILE, help='Prompts from a file instead, a line each: {"messages": [...]}.')  # fmt: skip
@click.option("--requests", type=click.IntRange(min=1), help="After so many in all, the run ends.")
@click.option("--timeout", type=_positive, default=120.0, show_default=True, help="Longest time of an answer, in seconds.")  # fmt: skip
@click.option("--ttft-ms", type=_positive, help="Bound of a good answer: time to first token.")
@click.option("--tpot-ms", type=_positive, help="Bound of a good answer: time per output token.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the times at which requests come.")  # fmt: skip
@click.option("--json", "json_file", type=FILE, help="File for the results as JSON.")
@click.option("--html", "html_file", type=FILE, help="File for a report with plots.")
@runs("bench.command", "bench")
def bench() -> None:
    """
    Measure the streams of any server at rising load.

    It sends streaming chat requests to one or two servers with OpenAI's API, and prints percentiles; Ctrl-C ends it with what there is. docs/bench.md
    """
