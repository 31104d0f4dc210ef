"""
A parser of GBNF, llama.cpp's grammar language, in linear time and without recursion: grammars that would crash llama.cpp's own parser are refused.

llama.cpp expands a rule's alternatives into stacks, one for each way to reach the next character. Its check for left recursion
misses rules that are empty through another rule, and it limits neither stacks nor expanded elements: a grammar of some
bytes can use all memory. This parser counts both, without expanding.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md, src/llama-grammar.cpp
"""

import re
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn

from msgspec import Struct

from unilect.constraints import ConstraintError

MAX_BYTES = 64 * 1024
MAX_RULES = 5000
MAX_SYMBOLS = 30_000
MAX_DEPTH = 64
MAX_ALTERNATES = 10_000
MAX_REPEAT = 2000  # llama.cpp's own; a larger upper bound is none there
MAX_PRODUCT = 100_000
MAX_ELEMENTS = 200_000
MAX_STACKS = 50_000
_LAST_CODE_POINT = 0x10FFFF
_MOST_TOKENS = 2**31
_SHOWN = 30
_SHOWN_RULES = 6

_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_REPEAT = re.compile(r"\{[ \t]*([0-9]{1,20})[ \t]*(?:(,)[ \t]*([0-9]{0,20})[ \t]*)?\}")
_TOKEN = re.compile(r"!?<(?:\[([0-9]{1,20})\]|[^\[>\0][^>\0]*)>")
_CHARACTER = re.compile(
    r"""\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([trn\\"\[\]-])|([^\\])""",
    re.DOTALL,
)
_STAND_IN = "<[5]>"  # a token that is in every vocabulary
_ESCAPED = {"t": 9, "r": 13, "n": 10}
_LINE = re.compile(r"\r\n?|\n")
#: A word of a grammar: a literal, a class, a comment, a token, a number of repetitions, or the name of a rule.
WORD = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*|(?P<token>!?<[^>]*>)|\{[^}]*\}|(?P<name>[A-Za-z0-9-]+)',
    re.DOTALL,
)
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Item(Struct):
    """
    One symbol of a rule.

    Attributes:
        rule: The rule or group that it refers to, or None for characters and tokens.
        size: The number of llama.cpp's elements for it.
        least, most: Its repetitions; None: unlimited.
        product: The product of the nested repetitions around the innermost symbol.
    """

    rule: int | None
    size: int
    least: int = 1
    most: int | None = 1
    product: int = 1


class Rule(Struct):
    """
    A rule, or a group inside one.

    Attributes:
        name: Its name; of a group the name of the rule around it.
        line: The line on which it begins.
        alternates: Sequences of items; None for a rule that is referenced but not defined.
    """

    name: str
    line: int
    alternates: list[list[Item]] | None = None


def analyse(text: str, most_bytes: int = MAX_BYTES) -> list[Rule]:
    """
    Parse a grammar; returns its rules and groups.

    Raises:
        ConstraintError: llama.cpp cannot run it, or only with too much memory; the message has the reason and the line.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > most_bytes:
        raise ConstraintError(f"it has {size} bytes; the maximum is {most_bytes}. Shorten it.")
    if "\0" in text:
        raise ConstraintError("it has a NUL character. Remove it.")
    rules = _Parser(text).parse()
    _check_stacks(rules, _left_corners(rules, _nullable(rules)))
    return rules


def without_tokens(text: str) -> str:
    """Replace each token of an analysed grammar by one that is in every vocabulary."""
    return WORD.sub(lambda found: _STAND_IN if found["token"] else found[0], text)


class _Group(Struct):
    """A rule or group that is being parsed."""

    rule: int
    alternates: list[list[Item]]

    def item(self) -> Item:
        """Return the whole group as a symbol of the rule around it."""
        products = [item.product for items in self.alternates for item in items]
        return Item(self.rule, 1, product=max(products, default=1))


class _Parser:
    """Parses a grammar in one pass."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._rules: list[Rule] = []
        self._by_name: dict[str, int] = {}
        self._symbols = self._alternates = self._elements = 0
        self._last: Item | None = None  # what a repetition repeats

    def parse(self) -> list[Rule]:
        """Return all rules and groups."""
        self._skip(lines=True)
        while self._at < len(self._text):
            self._rule()
        for rule in self._rules:
            if rule.alternates is None:
                raise ConstraintError(
                    f"line {rule.line}: the rule `{rule.name[:_SHOWN]}` is not defined. Define it with `::=`."
                )
        if "root" not in self._by_name:
            raise ConstraintError("it has no rule `root`. Define it.")
        return self._rules

    def _rule(self) -> None:
        number = self._index_of(self._match(_NAME, "the name of a rule was expected")[0])
        self._skip()
        if not self._text.startswith("::=", self._at):
            self._fail("`::=` was expected after the name of a rule")
        self._at += 3
        self._skip(lines=True)
        self._rules[number].alternates = self._alternatives(number)
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            self._fail("a symbol or the end of the line was expected")
        self._skip(lines=True)

    def _alternatives(self, number: int) -> list[list[Item]]:
        """Return the alternates of a rule, with all groups inside it."""
        groups, self._last = [_Group(number, [[]])], None
        while self._at < len(self._text):
            sign, lines = self._text[self._at], False
            if sign == "(":
                self._at += 1
                groups.append(self._group(groups))
                lines = True
            elif sign == ")" and len(groups) > 1:
                self._at += 1
                group = groups.pop()
                self._rules[group.rule].alternates = group.alternates
                self._add(groups[-1], group.item())
            elif sign == "|":
                self._at += 1
                groups[-1].alternates.append([])
                self._alternates, self._last, lines = self._alternates + 1, None, True
            elif sign in "*+?{":
                self._repeat(sign)
            elif not self._symbol(sign, groups[-1]):
                break
            self._skip(lines=lines or len(groups) > 1)
            self._check_counts()
        if len(groups) > 1:
            self._fail("a group is not closed; `)` was expected")
        return groups[0].alternates

    def _group(self, groups: list[_Group]) -> _Group:
        if len(groups) > MAX_DEPTH:
            self._fail(f"groups are nested more than {MAX_DEPTH} levels deep; flatten them")
        self._last = None
        self._alternates += 1
        self._rules.append(Rule(self._rules[groups[0].rule].name, self._here()))
        return _Group(len(self._rules) - 1, [[]])

    def _symbol(self, sign: str, group: _Group) -> bool:
        """Parse one symbol; False if none begins."""
        if sign in '"[':
            self._at += 1
            size = self._class() if sign == "[" else self._literal()
            self._last = None
            if size:  # nothing, which cannot be repeated either
                self._add(group, Item(None, size))
        elif sign in "<!":
            self._token()
            self._add(group, Item(None, 1))
        elif sign == ".":
            self._at += 1
            self._add(group, Item(None, 1))
        elif _NAME.match(sign):
            self._add(group, Item(self._index_of(self._match(_NAME, "a rule was expected")[0]), 1))
        else:
            return False
        return True

    def _add(self, group: _Group, item: Item) -> None:
        group.alternates[-1].append(item)
        self._last = item
        self._symbols += 1
        self._elements += item.size

    def _literal(self) -> int:
        size = 0
        while not self._text.startswith('"', self._at):
            self._character("a literal is not closed")
            size += 1
        self._at += 1
        return size

    def _class(self) -> int:
        """Return the elements of a character class."""
        self._at += self._text.startswith("^", self._at)
        size = 0
        while not self._text.startswith("]", self._at):
            first = self._character("a character class is not closed")
            size += 1
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character("a character class is not closed")
                size += 1
                if last < first:
                    self._fail(
                        f"a range of characters is reversed: U+{first:04X} is after U+{last:04X}; reverse it"
                    )
        if not size:
            self._fail("a character class is empty; add the characters that it allows")
        self._at += 1
        return size

    def _character(self, unclosed: str) -> int:
        if self._at >= len(self._text):
            self._fail(unclosed)
        found = self._match(
            _CHARACTER,
            'an invalid escape; valid are \\x, \\u, \\U, \\t, \\r, \\n, \\\\, \\", \\[, \\], \\-',
        )
        if found.lastindex and found.lastindex <= 3:
            point = int(found[found.lastindex], 16)
            if point > _LAST_CODE_POINT:
                self._fail(f"a code point is {point:X}; the last one is {_LAST_CODE_POINT:X}")
            return point
        return _ESCAPED.get(found[4] or "") or ord(found[4] or found[5])

    def _token(self) -> None:
        found = self._match(_TOKEN, "a token was expected: `<[id]>` or `<text>`")
        if found[1] is not None and (token := int(found[1])) >= _MOST_TOKENS:
            self._fail(f"the token id {token} is too large for any model")

    def _repeat(self, sign: str) -> None:
        item = self._last
        if item is None or item.most == 0:
            self._fail(f"`{sign}` has no symbol before it to repeat")
        if sign == "{":
            least, most = self._times()
        else:
            self._at += 1
            least, most = _TIMES[sign]
        if least > MAX_REPEAT:
            self._fail(f"a symbol is repeated {least} times; the maximum is {MAX_REPEAT}")
        if most is not None and most < least:
            self._fail(
                f"a repetition is reversed: {{{least},{most}}}; the larger number must be last"
            )
        if most is not None and most > MAX_REPEAT:
            most = None
        rules = 1 if most is None else most - least
        self._elements += least * item.size + rules * (item.size + 3)
        item.size = least * item.size + (rules > 0)
        item.product *= max(least, most or 1, 1)
        if item.product > MAX_PRODUCT:
            self._fail(
                f"nested repetitions multiply one symbol by {item.product}; the maximum is {MAX_PRODUCT}"
            )
        item.least *= least
        item.most = None if item.most is None or most is None else item.most * most
        if item.most == 0:
            self._last = None

    def _times(self) -> tuple[int, int | None]:
        found = self._match(_REPEAT, "a repetition was expected: `{m}`, `{m,}` or `{m,n}`")
        least = int(found[1])
        if found[2] is None:
            return least, least
        return least, int(found[3]) if found[3] else None

    def _check_counts(self) -> None:
        for counted, limit, what in (
            (len(self._rules), MAX_RULES, "rules and groups"),
            (self._symbols, MAX_SYMBOLS, "symbols"),
            (self._alternates, MAX_ALTERNATES, "alternatives"),
            (self._elements, MAX_ELEMENTS, "elements, its repetitions written out"),
        ):
            if counted > limit:
                self._fail(f"it has more than {limit} {what}; make it smaller")

    def _match(self, form: re.Pattern[str], expected: str) -> re.Match[str]:
        """Take what has a form from the text; fail with these words where it has not."""
        found = form.match(self._text, self._at)
        if found is None:
            self._fail(expected)
        self._at = found.end()
        return found

    def _index_of(self, name: str) -> int:
        """Return the index of a rule, which may not be defined yet."""
        if name not in self._by_name:
            self._by_name[name] = len(self._rules)
            self._rules.append(Rule(name, self._here()))
        return self._by_name[name]

    def _skip(self, lines: bool = False) -> None:
        self._match(_BLANKS_AND_LINES if lines else _BLANKS, "")  # they may be empty

    def _here(self) -> int:
        """Return the current line number; each character is counted once."""
        self._line += len(_LINE.findall(self._text, self._counted, self._at))
        self._counted = max(self._counted, self._at)
        return self._line

    def _fail(self, what: str) -> NoReturn:
        raise ConstraintError(f"line {self._here()}: {what}.")


def _nullable(rules: list[Rule]) -> list[bool]:
    """Find for each rule if it may be empty: each occurrence of a rule is visited once, when the rule was found to be possibly empty."""
    waiting: list[int] = []  # per alternate: symbols that are not known to be empty
    owner: list[int] = []
    occurrences: list[list[int]] = [[] for _ in rules]
    empty = [False] * len(rules)
    found: list[int] = []
    for number, rule in enumerate(rules):
        for items in rule.alternates or ():
            needed = 0
            for item in items:
                if item.least > 0:
                    needed += 1
                    if item.rule is not None:
                        occurrences[item.rule].append(len(owner))
            owner.append(number)
            waiting.append(needed)
            if not needed and not empty[number]:
                empty[number] = True
                found.append(number)
    while found:
        for place in occurrences[found.pop()]:
            waiting[place] -= 1
            if not waiting[place] and not empty[owner[place]]:
                empty[owner[place]] = True
                found.append(owner[place])
    return empty


def _left_corners(rules: list[Rule], nullable: list[bool]) -> list[list[tuple[int | None, int]]]:
    """Find for each rule the symbols with which it may begin, with the number of places for each."""
    corners: list[list[tuple[int | None, int]]] = []
    for rule in rules:
        begin: list[tuple[int | None, int]] = []
        for items in rule.alternates or ():
            for item in items:
                if item.most == 0:
                    continue
                inside = item.rule is not None and nullable[item.rule]
                begin.append((item.rule, (item.most or item.least + 1) if inside else 1))
                if item.least > 0 and not inside:
                    break
        corners.append(begin)
    return corners


def _check_stacks(rules: list[Rule], corners: list[list[tuple[int | None, int]]]) -> None:
    """
    Count the stacks at the beginning of each rule, after those of the rules that it begins with.

    Raises:
        ConstraintError: A rule is left-recursive, or has too many stacks.
    """
    begins_with = {
        number: {below for below, _ in begin if below is not None}
        for number, begin in enumerate(corners)
    }
    try:
        order = list(TopologicalSorter(begins_with).static_order())
    except CycleError as error:
        raise _left_recursion(rules, error.args[1][::-1]) from error
    stacks = [1] * len(rules)
    for number in order:
        rule = rules[number]
        count = sum(
            times * (1 if below is None else stacks[below]) for below, times in corners[number]
        )
        if count > MAX_STACKS:
            raise ConstraintError(
                f"line {rule.line}: the rule `{rule.name[:_SHOWN]}` can begin in more than "
                f"{MAX_STACKS} ways. Use fewer alternatives and optional symbols that begin alike."
            )
        stacks[number] = max(1, count)


def _left_recursion(rules: list[Rule], cycle: list[int]) -> ConstraintError:
    names = list(dict.fromkeys(rules[number].name[:_SHOWN] for number in cycle))
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN_RULES])
    return ConstraintError(
        f"line {rules[cycle[0]].line}: left recursion: {shown} can begin with itself, possibly after an "
        "empty symbol. Write the repetition with `*` or `+`, or after a character."
    )
