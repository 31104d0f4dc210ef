"""Tests of unilect.constraints.gbnf."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unilect.constraints import ConstraintError
from unilect.constraints.gbnf import MAX_BYTES, analyse, without_tokens

CHAIN = "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}" for i in range(4000)) + '\na4000 ::= "x"'
DOUBLING = "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)) + '\na40 ::= "x"?'  # fmt: skip
JSON = r"""
root   ::= object # a comment with "quotes" and (
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ('root ::= "a"{5,2}', "line 1: a repetition is reversed"),
        ('root ::= e root "a" | "b"\ne ::= "x"?', "left recursion: `root`"),
        ('root ::= root "a" | "b"', "left recursion: `root`"),
        ('root ::= b "x" | "y"\nb ::= c? root\nc ::= "c"', "left recursion: `root`, `b`"),
        ('root ::= ("x"? root) "a" | "b"', "left recursion"),
        (DOUBLING, "can begin in more than 50000 ways"),
        ("root ::= # x\r" + "(" * 32000 + '"a"' + ")" * 32000, "line 2: groups are nested more than 64"),
        ("[" * 65000, "line 1: the name of a rule was expected"),
        ("root ::= " + "[" * 65000, "a character class is not closed"),
        ("root ::= [z-a]", "a range of characters is reversed: U+007A is after U+0061"),
        (r'root ::= "\UFFFFFFFF"', "a code point is FFFFFFFF"),
        (r'root ::= "\q"', "an invalid escape"),
        ("root ::= <[99999999999]>", "the token id 99999999999"),
        ("root ::= <", "a token was expected"),
        ("root ::= []", "a character class is empty"),
        ('root ::= "a', "a literal is not closed"),
        ('root ::= ("a"', "a group is not closed"),
        ('root ::= "a")', "the end of the line was expected"),
        ("root ::= *", "no symbol before it to repeat"),
        ('root ::= ""*', "no symbol before it to repeat"),
        ('root ::= "a"{x}', "a repetition was expected"),
        ('root ::= "a"{1000000}', "a symbol is repeated 1000000 times"),
        ('root ::= (("a"{2000}){2000}){2}', "nested repetitions"),
        ('root ::= "' + "a" * 50000 + '"{1999}', "more than 200000 elements"),
        ("root ::= " + "|" * 65000, "more than 10000 alternatives"),
        ("root ::= " + ". " * 32000, "more than 30000 symbols"),
        ("\n".join(f"r{i} ::= ." for i in range(5100)), "more than 5000 rules"),
        ("root ::= x y\nx ::= .", "line 1: the rule `y` is not defined"),
        ("x ::= .", "it has no rule `root`"),
        ("", "it has no rule `root`"),
        ("root = x", "line 1: `::=` was expected"),
        ('\r\nroot ::= "a" \\', "line 2: a symbol or the end of the line was expected"),
        ('root ::= "a\0"', "a NUL character"),
        ("#" * (MAX_BYTES + 1), f"the maximum is {MAX_BYTES}"),
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_what_is_refused(grammar: str, told: str) -> None:
    """What llama.cpp cannot read, or not survive, is refused with the line where it stands."""
    with pytest.raises(ConstraintError) as caught:
        analyse(grammar)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "yes" | "no"',
        JSON,
        CHAIN,
        'root ::= ("a"?)*',
        'root ::= ("a"?){50} "b"',
        'root ::= "a"{2000} | "b"{0,5000} | "c"{3,}',
        "root ::= [^\\]-] [a-] .{2} # end",
        'root ::= <[12]> <think> !<[3]> "<x>"',
        'root ::= a |\n  b\na ::= "a"\nb ::= (\n"b"\r\n) ',
        'root ::= ""',
        'root ::= "a"{0} "b"',
        "root ::= " + "(" * 60 + '"a"' + ")" * 60,
    ],
    ids=lambda text: text[:24],
)
def test_what_is_followed(grammar: str) -> None:
    """What llama.cpp reads, and its stacks survive, passes."""
    assert analyse(grammar)


def test_tokens() -> None:
    """Token ids and names of tokens are read, and a stand-in can take the place of both."""
    grammar = 'root ::= "<[7]>" [<] <[12]> !<[3]> # <[4]>'

    assert len(analyse(grammar)) == len(analyse("root ::= <think>")) == 1
    assert 'root ::= "<[7]>" [<] <[5]> <[5]> # <[4]>' == without_tokens(grammar)


PIECES = st.sampled_from(
    ["root", "a", "::=", "|", "(", ")", "*", "+", "?", "{2}", "{1,3}", "{3,1}", "{", '"a"', '"', "[a-z]", "[", "]", "\\", "\n", "\r",
     "#", " ", "<[1]>", "<a>", "<", "!", ".", "-", "^", "\\x41", "ü", "\0"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=60).map("".join), st.lists(PIECES, max_size=60).map(" ".join).map("root ::= ".__add__)))  # fmt: skip
@example("root ::= \ud800")
def test_any_text(text: str) -> None:
    """Whatever the text is, it is read or refused in words of one line."""
    try:
        analyse(text)
    except ConstraintError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "sign",
    ["[", "]", "(", ")", "{", '"', '""', "\\", "#", "\n", "\r", "|", "?", '"a"?', "{1}", "<", "<a", "<a>", "!", "a ", "a\n", "-", "[a-", "a::=", "a::=a\n", "\x00", "ü"],
)  # fmt: skip
def test_the_longest_texts(sign: str) -> None:
    """The longest text of any sign is read or refused, behind a rule's beginning and alone."""
    for begin in ("", 'root ::= "a"', "root ::= "):
        try:
            analyse(begin + sign * ((MAX_BYTES - len(begin)) // len(sign.encode())))
        except ConstraintError as error:
            assert len(str(error)) < 300
