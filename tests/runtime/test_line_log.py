"""Tests of unilect.runtime.line_log: what is kept of an engine's lines, and who hears of them."""

from unilect.runtime.line_log import MOST_BYTES, Line, LineLog


def test_the_last_lines_are_kept() -> None:
    """The oldest lines go, so that all take no more than their bound, and a reader that comes late gets those that are left."""
    log = LineLog()
    for number in range(3000):
        log.append(Line(0.0, 1, f"{number} {'x' * 100}"))
    kept = log.since(0)

    assert MOST_BYTES // 400 < len(kept) < MOST_BYTES // 300
    assert "2999" == kept[-1].text.split()[0]
    assert [kept[-1]] == log.since(2999)
    assert [] == log.since(3000)


def test_a_long_line_is_cut() -> None:
    """A line without an end takes no place from the others."""
    log = LineLog()
    log.append(Line(0.0, 1, "before"))
    log.append(Line(0.0, 1, "x" * 1_000_000))

    assert ["before", 2001] == [log.since(0)[0].text, len(log.since(1)[0].text)]


def test_watchers() -> None:
    """Who watches is told of each line once it is there."""
    log, seen = LineLog(), list[int]()

    def watch() -> None:
        seen.append(log.count)

    log.watchers.add(watch)
    log.append(Line(0.0, 1, "a"))
    log.watchers.discard(watch)
    log.append(Line(0.0, 1, "b"))

    assert [1] == seen
