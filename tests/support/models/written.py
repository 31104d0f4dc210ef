"""Texts that a GBNF grammar allows, made by chance: what an engine could write with it."""

import math
import random
import re
from typing import Any

_SYMBOL = re.compile(
    r'\s*(?:"((?:\\.|[^"\\])*)"|\[((?:\\.|[^\]\\])*)\]|([a-zA-Z][a-zA-Z0-9-]*)|([()|])|([*+?]|\{\d+(?:,\d*)?\}))',
    re.DOTALL,
)
_SIGN = re.compile(r"\\x(..)|\\u(....)|\\([nrt])|\\(.)|(.)", re.DOTALL)
_LAST = 0x10FFFF
_DEEP = 12


class Writer:
    """
    Makes texts.

    Args:
        grammar: Of rules on one line each, without comments and tokens.
        dice: What chooses.
    """

    def __init__(self, grammar: str, dice: random.Random) -> None:
        rules = (line.split(" ::= ", 1) for line in grammar.split("\n") if line)
        self._rules = {name: _Parser(rule).alternatives() for name, rule in rules}
        self._dice = dice
        self._costs = dict.fromkeys(self._rules, math.inf)
        for _ in self._rules:  # each of which is as far from an end as it is from the next rule
            self._costs |= {name: 1 + self._least(rule) for name, rule in self._rules.items()}

    def text(self) -> str:
        """One of the texts."""
        return self._of(self._rules["root"], 0)

    def _of(self, alternatives: list[Any], depth: int) -> str:
        chosen = self._dice.choice(alternatives)
        if depth > _DEEP:  # the shortest way out
            chosen = min(alternatives, key=self._cost)
        return "".join(self._item(item, depth) for item in chosen)

    def _least(self, alternatives: list[Any]) -> float:
        return min(map(self._cost, alternatives))

    def _cost(self, items: list[Any]) -> float:
        """The fewest rules that it takes to write these items."""
        cost = 0.0
        for kind, value, least, _ in items:
            if least and kind in ("rule", "group"):
                cost += least * (self._costs[value] if kind == "rule" else self._least(value))
        return cost

    def _item(self, item: Any, depth: int) -> str:
        kind, value, least, most = item
        count = least if depth > _DEEP else self._dice.randint(least, least + 3 if most is None else most)  # fmt: skip
        if kind == "text":
            return str(value) * count
        if kind == "class":
            return "".join(self._sign(value) for _ in range(count))
        inner = self._rules[value] if kind == "rule" else value
        return "".join(self._of(inner, depth + 1) for _ in range(count))

    def _sign(self, ranges: list[tuple[int, int]]) -> str:
        low, high = self._dice.choice(ranges)
        # both ends, and what is between
        return chr(self._dice.choice([low, high, self._dice.randint(low, high)]))


class _Parser:
    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._at = 0

    def alternatives(self) -> list[Any]:
        """The choices up to the end of a group or of the rule."""
        found: list[Any] = [[]]
        while self._at < len(self._rule.rstrip()):
            symbol = _SYMBOL.match(self._rule, self._at)
            assert symbol is not None, self._rule[self._at :]
            self._at = symbol.end()
            text, members, name, sign, times = symbol.groups()
            if sign == ")":
                break
            if sign == "|":
                found.append([])
            elif sign == "(":
                found[-1].append(("group", self.alternatives(), 1, 1))
            elif times:
                found[-1][-1] = (*found[-1][-1][:2], *_counts(times))
            elif text is not None:
                found[-1].append(("text", "".join(map(chr, _signs(text))), 1, 1))
            elif members is not None:
                found[-1].append(("class", _ranges(members), 1, 1))
            else:
                found[-1].append(("rule", name, 1, 1))
        return found


def _counts(times: str) -> tuple[int, int | None]:
    if times in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[times]
    least, comma, most = times[1:-1].partition(",")
    if not comma:
        return int(least), int(least)
    return int(least), int(most) if most else None


def _signs(text: str) -> list[int]:
    found = []
    for code, wide, short, escaped, plain in _SIGN.findall(text):
        if code or wide:
            found.append(int(code or wide, 16))
        else:
            found.append(ord({"n": "\n", "r": "\r", "t": "\t"}.get(short) or escaped or plain))
    return found


def _ranges(members: str) -> list[tuple[int, int]]:
    negated = members.startswith("^")
    ranges, body = [], members[negated:]
    at = 0
    while at < len(body):
        found = _SIGN.match(body, at)
        assert found is not None
        [low] = _signs(found[0])
        at, high = found.end(), low
        if body.startswith("-", at) and at + 1 < len(body):
            found = _SIGN.match(body, at + 1)
            assert found is not None
            [high], at = _signs(found[0]), found.end()
        ranges.append((low, high))
    if not negated:
        return ranges
    left, begin = [], 0
    for low, high in sorted([*ranges, (0xD800, 0xDFFF)]):
        if low > begin:
            left.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*left, (begin, _LAST)]
