"""Tests of unilect.config.command_line."""

import itertools
import shlex
import subprocess

import pytest

from unilect.config.command_line import (
    PLACEHOLDERS,
    as_written,
    fill,
    placeholders_in,
    program_of,
    split_words,
    variables_in,
)
from unilect.core.errors import ConfigError


@pytest.mark.parametrize(
    "line",
    [
        "a 'b c' \"d e\" f\\ g",
        'vllm serve m --x \'{"a": 1}\' "it\'s"',
        "a  \\\n  b # c 'd\n e#f http://h/#g",
        'a "b\\"c\\\\d" "e\\\nf" \'g\\h\'',
        "a ''",
        "# first\n\n a\tb\n",
    ],
)
def test_words(line: str) -> None:
    """A command line has the words that a shell finds in it."""
    script = f"words=(\n{line}\n)\nprintf '%s\\0' \"${{words[@]}}\""
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout.split("\0")[:-1] == split_words(line)


@pytest.mark.parametrize("line", ["", "  # a", "a 'b", 'a "b', "a \\", "'' a", "a \0"])
def test_no_words(line: str) -> None:
    """A line that names no program, or whose quote is open, is refused with what to do."""
    with pytest.raises(ConfigError, match=r"^command: "):
        split_words(line)


def test_placeholders() -> None:
    """Placeholders are filled in once; JSON and doubled braces stand as they are, and an unknown one is told with all that there are."""
    words = ["{port}", '{"port": {"a": 1}}', "{{name}}", "$A-${B}-$$C", "{file}"]
    assert {"port", "file"} == placeholders_in(words, PLACEHOLDERS)
    assert {"A", "B"} == variables_in(words)
    values = {"port": "1", "file": "{port} $A"}
    filled = [fill(word, values, {"A": "{file}", "B": "b"}.__getitem__) for word in words]
    assert ["1", '{"port": {"a": 1}}', "{name}", "{file}-b-$C", "{port} $A"] == filled
    with pytest.raises(ConfigError, match=r"`\{prot\}` is no placeholder. These are: \{port\} "):
        placeholders_in(["{prot}"], PLACEHOLDERS)


def test_as_written() -> None:
    """A word of any dollars and braces comes out of a command as it went in, but for its placeholders."""
    for pieces in itertools.product(["$", "{", "}", "other", "HOME", ""], repeat=6):
        word = "".join(pieces)
        assert word == fill(as_written(word), {}, lambda name: "variable")
    assert "-80" == fill(as_written("-{port}"), {"port": "80"}, str)
    assert "${port}" == fill(as_written("${port}"), {"port": "80"}, str)


def test_program() -> None:
    """Of a command its program's name may be told, without folder and further words."""
    assert "llama-server" == program_of("/opt/llama.cpp/llama-server --api-key secret")
    assert "x" == program_of(["x", "y"])
    assert "" == program_of("'")


@pytest.mark.parametrize("unit", ["'", '"', "\\", "{", "$", "#", "a'b'", '"\\"', "{{a}}", "${a", "{a"])  # fmt: skip
def test_long_lines(unit: str) -> None:
    """Lines of any length are read in a moment, whatever they repeat."""
    line = "a " + unit * (300_000 // len(unit))
    try:
        words = split_words(line)
    except ConfigError:
        words = [line]
    assert variables_in(words) <= {"a"}
    assert shlex.quote("a") == program_of(["a"])
