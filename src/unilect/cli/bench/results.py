"""The results of a run, for the terminal, for JSON and for the report: what they are called, compared and warned of is decided here."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from unilect.cli.bench.load import Plan
from unilect.cli.bench.stats import TIMES, Quantiles, Step
from unilect.cli.bench.target import Target

_MIN_FOR_P99 = 100  # the 99th percentile of fewer values is nearly their largest
_LAG_S = 0.02  # that the client may add to a time before it is said
_BUSY = 0.9  # of a core
_MUCH_CACHED = 0.1  # of the prompts' tokens
_COMPARED = ("first token", "per token", "whole")
_FAR = 0.1  # of a size, from the one that was asked for


class Table(NamedTuple):
    """A table of texts with its title. The cells of the first column, which are names of servers or loads, begin on the left."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Results(NamedTuple):
    """
    The results of a run.

    Attributes:
        steps: In the order in which they were run.
        ended: The reason for an early end; empty for none.
        versions: What has measured.
        began: The time in UTC, as text.
    """

    plan: Plan
    targets: Sequence[Target]
    steps: Sequence[Step]
    ended: str
    versions: dict[str, str]
    began: str

    def of(self, target: Target) -> list[Step]:
        """Return the steps of a server, by load."""
        return sorted((step for step in self.steps if step.server == target.name), key=lambda step: step.load)  # fmt: skip

    @property
    def ordered(self) -> list[Step]:
        """The steps by load, and then in the order of the servers."""
        steps = [step for target in self.targets for step in self.of(target)]
        return sorted(steps, key=lambda step: step.load)

    @property
    def settings(self) -> dict[str, str]:
        """The settings, in words."""
        plan, bounds = self.plan, self.plan.bounds  # of the first two of TIMES
        loads = ", ".join(f"{load:g}" for load in plan.loads)
        kind = "open loop, Poisson arrivals" if plan.mode == "rate" else "closed loop"
        shown = {
            "load": f"{loads} {plan.unit} ({kind})",
            "step": f"{plan.seconds:g} s",
            "prompts": f"{len(plan.conversations)} from a file" if plan.conversations else f"{plan.prompt_tokens} tokens",
            "answers": f"{'at most ' if plan.conversations else ''}{plan.output_tokens} tokens",
            "good answers": ", ".join(f"{name} within {to_text(bound)}" for name, bound in zip(TIMES, bounds, strict=False) if bound),
            "timeout": f"{plan.timeout_s:g} s",
            "seed": str(plan.seed),
            "began": self.began,
        }  # fmt: skip
        return {name: text for name, text in shown.items() if text}

    def tables(self) -> Iterator[Table]:
        """Yield the tables: what was done, how long it took, and the ratios of two servers."""
        unit, steps = self.plan.unit, self.ordered
        head = ["server", unit, "requests", "failed", "sent/s", "answered/s", "tokens/s", "each"]
        good = ["good/s", "good"] if any(self.plan.bounds) else []
        yield Table("Every step", [*head, *good], [_row(step) for step in steps])
        rows = [[step.server, f"{step.load:g}", *(_percentiles(step.times_s.get(name)) for name in TIMES[:-1])] for step in steps]  # fmt: skip
        yield Table("Milliseconds: p50 / p90 / p95 / p99", ["server", unit, *TIMES[:-1]], rows)
        if len(self.targets) > 1:
            first, second = (target.name for target in self.targets)
            yield Table(f"{second} by {first}", [unit, "", first, second, "ratio"], list(self._ratios()))  # fmt: skip

    def _ratios(self) -> Iterator[list[str]]:
        """Yield a row for each measure of each load that both servers have."""
        ours, theirs = ({step.load: step for step in self.of(target)} for target in self.targets)
        for load in (load for load in ours if load in theirs):
            a, b = ours[load], theirs[load]
            for name in (name for name in _COMPARED if name in a.times_s and name in b.times_s):
                for at in ("p50", "p99"):
                    pair = getattr(a.times_s[name], at), getattr(b.times_s[name], at)
                    yield [f"{load:g}", f"{name}, {at}", *map(to_text, pair), _ratio(*pair)]
            pair = a.tokens_s, b.tokens_s
            yield [f"{load:g}", "tokens/s", *map(to_count, pair), _ratio(*pair)]

    def failures(self) -> list[str]:
        """Return a sentence for each kind of failure of each step."""
        return [f"{self._place(step)}: {one.count} x {one.kind}: {one.example}" for step in self.ordered for one in step.failures]  # fmt: skip

    def notes(self) -> list[str]:
        """Return the sentences that a reader of the numbers must know."""
        notes = [f"ended early: {self.ended}"] if self.ended else []
        for target in self.targets:
            told = [*target.notes, *self._doubts([step for step in self.of(target) if step.completed])]  # fmt: skip
            notes += [f"{target.name}: {note}" for note in told]
        for step in self.ordered:
            late = step.times_s["lateness"].p99 if step.completed else 0.0
            if max(late, step.lag_s) > _LAG_S or step.cpu > _BUSY:
                notes.append(
                    f"{self._place(step)}: the client was a bottleneck: requests were sent {to_text(late)} late and its event loop lagged "
                    f"{to_text(step.lag_s)} (p99), it used {step.cpu:.0%} of a core; times may be so much too long"
                )
        if any(step.completed < _MIN_FOR_P99 for step in self.steps):
            notes.append(f"the p99 of fewer than {_MIN_FOR_P99} requests is nearly the slowest of them; longer steps (--seconds) tell more")  # fmt: skip
        return notes

    def _doubts(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield what a server did otherwise than it was asked."""
        for what in ("prompt_tokens", "output_tokens") if not self.plan.conversations else ():
            asked = getattr(self.plan, what)
            mean = sum(getattr(step, what) for step in steps) / max(1, len(steps))
            if mean and abs(mean / asked - 1) > _FAR:
                name = "prompts" if what == "prompt_tokens" else "answers"
                yield f"its {name} have {mean:.0f} tokens on average, and not {asked}"
        if (cached := max((step.cached_share for step in steps), default=0.0)) > _MUCH_CACHED:
            yield f"up to {cached:.0%} of the prompts' tokens of a step were in its cache"
        if any(step.counted_share < 1 for step in steps):
            yield "it does not count the tokens of every answer; the pieces of the stream are counted instead"  # fmt: skip

    def _place(self, step: Step) -> str:
        return f"{step.server}, {step.load:g} {self.plan.unit}"

    def to_dict(self) -> dict[str, Any]:
        """Return the results for JSON; times are in seconds."""
        return {
            "settings": self.settings,
            "versions": self.versions,
            "servers": [{"name": one.name, "url": one.url, "model": one.model, "software": one.software} for one in self.targets],
            "steps": msgspec.to_builtins(self.steps),
            "ended_early": self.ended or None,
            "notes": self.notes(),
        }  # fmt: skip


def _row(step: Step) -> list[str]:
    each = step.times_s.get("per token")
    row = [step.server, f"{step.load:g}", str(step.requests), str(step.failed)]
    row += [f"{step.sent_s:.2f}", f"{step.completed_s:.2f}", to_count(step.tokens_s)]
    row.append(to_count(1 / each.p50) if each and each.p50 else "-")
    if step.good_share is not None:
        row += [f"{step.good_share * step.sent_s:.2f}", f"{step.good_share:.0%}"]
    return row


def _ratio(first: float, second: float) -> str:
    return f"{second / first:.2f} x" if first else "-"


def _percentiles(values: Quantiles | None) -> str:
    if values is None:
        return "-"
    return " / ".join(to_count(one * 1000) for one in (values.p50, values.p90, values.p95, values.p99))  # fmt: skip


def to_text(seconds: float) -> str:
    """Return a time with its unit."""
    if not seconds:
        return "0"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{to_count(seconds * 1000)} ms" if seconds < 1 else f"{to_count(seconds)} s"


def to_count(value: float) -> str:
    """Return a number of at least three digits' precision."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
