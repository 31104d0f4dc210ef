"""The report of a run: one HTML file without script and without a request to anywhere; whatever a server said is text in it."""

from collections.abc import Callable, Iterable, Iterator
from html import escape

from unilect.cli._screen import visible
from unilect.cli.bench.plot import Line, draw
from unilect.cli.bench.results import Results, Table, to_count, to_text
from unilect.cli.bench.stats import Step

_COLOURS = ("a", "b")
_STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #16202c; --soft: #5c6b7c; --line: #e3e7ec; --a: #2563eb; --b: #ea580c; --warn: #b45309 }
@media (prefers-color-scheme: dark) {
  :root { --back: #0e1319; --card: #171e27; --text: #e6ebf1; --soft: #93a1b1; --line: #2a3440; --a: #6ea8fe; --b: #fb923c; --warn: #fbbf24 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums }
main { max-width: 1180px; margin: auto; padding: 40px 24px 56px }
h1 { font-size: 28px; letter-spacing: -.02em; margin: 0 0 4px }
h2 { font-size: 17px; margin: 36px 0 12px }
h3 { font-size: 14px; margin: 0 }
p { margin: 0; color: var(--soft) }
.a { --own: var(--a) } .b { --own: var(--b) } .ideal { --own: var(--soft) }
.cards, .plots { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)) }
.cards { margin-top: 24px }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px; overflow-wrap: anywhere }
.server { border-top: 3px solid var(--own) }
.server h3 { font-size: 17px; color: var(--own) }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 14px 24px; margin: 16px 0 0 }
.facts dd { font-size: 24px; font-weight: 650; letter-spacing: -.01em; margin: 0; line-height: 1.2 }
.facts dt { color: var(--soft); font-size: 13px }
svg { display: block; width: 100%; margin-top: 10px; overflow: visible }
svg text { font-size: 12px; fill: var(--soft) }
.y { text-anchor: end } .x, .none { text-anchor: middle }
.grid { stroke: var(--line) }
.line, .dashed { fill: none; stroke: var(--own); stroke-width: 2.5; stroke-linejoin: round }
.dashed { stroke-width: 1.5; stroke-dasharray: 5 4 }
.dot { fill: var(--own) }
.area { fill: var(--own); opacity: .1 }
.card.scroll { overflow-x: auto; padding: 6px 0 }
table { border-collapse: collapse; width: 100%; font-size: 13.5px }
th { font-weight: 600; color: var(--soft) }
th, td { padding: 7px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 }
th:first-child, td:first-child { text-align: left; padding-left: 20px }
td i { font-style: normal; color: var(--soft) }
.name::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%; background: var(--own); margin-right: 8px }
p .name { margin-left: 14px; white-space: nowrap }
.notes { margin: 0; padding-left: 18px; overflow-wrap: anywhere } .notes li { margin: 4px 0 }
.warn { border-left: 3px solid var(--warn) }
.settings { display: grid; grid-template-columns: max-content 1fr; gap: 4px 24px; margin: 0; font-size: 13.5px }
.settings dt { color: var(--soft) } .settings dd { margin: 0; overflow-wrap: anywhere }
"""


def to_html(results: Results) -> str:
    """Return the report."""
    title = _safe(f"Load test: {' and '.join(target.name for target in results.targets)}")
    settings = results.settings
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style><main><h1>{title}</h1>",
        f"<p>{_safe(settings['load'])}, {_safe(settings['step'])} each. Streams of chat completions.</p>",
        f'<div class="cards">{"".join(_card(results, at) for at in range(len(results.targets)))}</div>',
        f'<h2>Over the load</h2><div class="plots">{"".join(_plots(results))}</div>',
        *(_table(results, table) for table in results.tables()),
    ]  # fmt: skip
    for name, lines in (("Failures", results.failures()), ("Notes", results.notes())):
        listed = "".join(f"<li>{_safe(line)}</li>" for line in lines)
        parts.append(f'<h2>{name}</h2><div class="card warn"><ul class="notes">{listed}</ul></div>' if lines else "")  # fmt: skip
    shown = (settings | results.versions).items()
    listed = "".join(f"<dt>{_safe(name)}</dt><dd>{_safe(value)}</dd>" for name, value in shown)
    parts.append(f'<h2>Settings</h2><div class="card"><dl class="settings">{listed}</dl></div></main></html>')  # fmt: skip
    return "\n".join(parts)


def _safe(text: str) -> str:
    """Return a text that no browser and no reader obeys."""
    return escape(visible(text))


def _card(results: Results, at: int) -> str:
    """Return the card of a server: its name, its model and its best numbers."""
    target, unit = results.targets[at], results.plan.unit
    steps, facts = results.of(target), dict[str, str]()
    if whole := [step for step in steps if step.completed]:
        best, least = max(whole, key=lambda step: step.tokens_s), whole[0]
        facts[f"tokens/s, most ({best.load:g} {unit})"] = to_count(best.tokens_s)
        for name in ("first token", "per token"):
            if values := least.times_s.get(name):
                facts[f"{name}, median ({least.load:g} {unit})"] = to_text(values.p50)
    failed = sum(step.failed for step in steps)
    facts[f"requests, {failed:,} failed"] = f"{sum(step.requests for step in steps):,}"
    listed = "".join(f"<div><dd>{_safe(fact)}</dd><dt>{_safe(name)}</dt></div>" for name, fact in facts.items())  # fmt: skip
    about = " · ".join(filter(None, (target.model, target.software)))
    return (
        f'<div class="card server {_COLOURS[at]}"><h3>{_safe(target.name)}</h3>'
        f'<p>{_safe(about)}<br>{_safe(target.url)}</p><dl class="facts">{listed}</dl></div>'
    )


def _plots(results: Results) -> Iterator[str]:
    """Yield the plots, each in a card."""
    servers = [*zip(results.targets, _COLOURS, strict=False)]
    names = "".join(f' <span class="name {colour}">{_safe(target.name)}</span>' for target, colour in servers)  # fmt: skip
    unit = "requests a second, asked for" if results.plan.mode == "rate" else "requests at a time"

    def plot(title: str, about: str, lines: list[Line], text: Callable[[float], str]) -> str:
        drawn = draw(title, unit, lines, text)
        return f'<div class="card"><h3>{title}</h3><p>{about}{names}</p>{drawn}</div>'

    def of_time(title: str, name: str) -> str:
        lines = [line for target, colour in servers for line in _spread(results.of(target), target.name, name, colour)]  # fmt: skip
        return plot(title, "Solid: median. Dashed: p99.", lines, to_text)

    def of_rate(title: str, about: str, value: Callable[[Step], float], more: list[Line]) -> str:
        lines = [Line(visible(target.name), colour, [(step.load, value(step)) for step in results.of(target)]) for target, colour in servers]  # fmt: skip
        return plot(title, about, more + lines, to_count)

    yield of_time("Time to first token", "first token")
    yield of_time("Time per output token", "per token")
    yield of_rate("Throughput", "Output tokens a second.", lambda step: step.tokens_s, [])
    if results.plan.mode == "rate":
        loads = sorted(results.plan.loads)
        asked = Line("asked for", "ideal", [*zip(loads, loads, strict=True)], dashed=True)
        about = "A second. Dashed: as many as were asked for."
        yield of_rate("Requests answered", about, lambda step: step.completed_s, [asked])
    else:
        yield of_time("Time of a whole answer", "whole")


def _spread(steps: Iterable[Step], server: str, name: str, colour: str) -> list[Line]:
    """Return a line of p99 with the area down to the medians, and one of medians."""
    found = [(step.load, step.times_s[name]) for step in steps if name in step.times_s]
    middle = [(load, values.p50) for load, values in found]
    high = [(load, values.p99) for load, values in found]
    shown = visible(server)
    return [Line(f"{shown} p99", colour, high, dashed=True, base=middle), Line(f"{shown} p50", colour, middle)]  # fmt: skip


def _table(results: Results, table: Table) -> str:
    """Return a table; names of servers have their colours."""
    names = [target.name for target in results.targets]
    colours = dict(zip(names, _COLOURS, strict=False))
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in table.head)
    rows = ""
    for first, *rest in table.rows:
        name = f'<span class="name {colours[first]}">{_safe(first)}</span>' if first in colours else _safe(first)  # fmt: skip
        cells = "".join(f"<td>{_safe(cell)}</td>" for cell in rest)
        rows += f"<tr><td>{name}</td>{cells}</tr>"
    return f'<h2>{_safe(table.title)}</h2><div class="card scroll"><table><tr>{head}</tr>{rows}</table></div>'
