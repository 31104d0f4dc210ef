"""Tests of unilect.constraints.regex."""

import re

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.constraints.regex import MAX_PATTERN, grammar_of, literal


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        ("", '""'),
        ("abc", '"abc"'),
        (r"\d{3}-\d{4}", r'([0-9]){3} "\x2D" ([0-9]){4}'),
        ("^(yes|no)$", '(("yes" | "no"))'),
        ("^a$|^bc$", '("a" | "bc")'),
        (r"a.b*?c+d?e{2,}f{1,3}", r'"a" [\x00-\x09\x0B-' + "\U0010ffff" + r'] ("b")* ("c")+ ("d")? ("e"){2,} ("f"){1,3}'),
        ("(?s).", r"[\x00-" + "\U0010ffff]"),
        ('[^"a]', r"[\x00-\x21\x23-\x60b-" + "\U0010ffff]"),
        (r"[\w-]", r"[0-9A-Z\x5Fa-z\x2D]"),
        ("é|[à-ü]😀", '("é" | [à-ü] "😀")'),
    ],
)  # fmt: skip
def test_grammars(pattern: str, grammar: str) -> None:
    """An expression becomes a grammar of the same texts."""
    assert f"root ::= {grammar}\n" == grammar_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "not a valid regular expression"),
        ("a" * (MAX_PATTERN + 1), f"{MAX_PATTERN + 1} characters; the maximum is {MAX_PATTERN}"),
        ("(" * 2000 + ")" * 2000, "not a valid regular expression"),
        ("(" * 70 + "a" + ")" * 70, "nested more than 64"),
        ("(?i)a", "flags"),
        ("(?=a)", "`assert`"),
        ("(?<!a)b", "`assert not`"),
        (r"(a)\1", "`groupref`"),
        (r"a\b", "`at`"),
        ("a$b", "`at`"),
        ("a*+", "`possessive repeat`"),
        ("[\ud800-\ud801]", "surrogate"),
        (f"a{{{2**33}}}", "not a valid regular expression"),
    ],
)
def test_what_has_no_grammar(pattern: str, why: str) -> None:
    """What is no expression, or has no place in a grammar, is refused by what it is."""
    with pytest.raises(ValueError, match=re.escape(why)):
        grammar_of(pattern)


def test_a_warning_stays_here() -> None:
    """An expression that another version of Python may read otherwise is read without a warning."""
    assert "root ::= [\\x5Ba]\n" == grammar_of("[[a]")


@given(st.text(max_size=30))
def test_any_text(text: str) -> None:
    """Any text is a grammar of itself, and any expression a grammar or an error that says why not."""
    written = literal(text)
    assert "\n" not in written
    signs = re.sub(r"\\x(..)|\\u(....)", lambda m: chr(int(m[1] or m[2], 16)), written[1:-1])
    assert text == signs
    try:
        assert grammar_of(text).startswith("root ::= ")
    except ValueError as error:
        assert str(error)
