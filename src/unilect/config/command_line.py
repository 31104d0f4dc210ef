"""
Command lines of other servers in a configuration: their words, and the placeholders in them.

Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html (token recognition, quoting)
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath

from unilect.core.errors import ConfigError

#: Placeholders of a `command`, which stand in braces.
PLACEHOLDERS = (
    "port", "socket", "file", "folder", "name", "context", "parallel", "threads", "key",
)  # fmt: skip
#: Placeholders that a `stop_command` may have, too.
OF_STOP = (*PLACEHOLDERS, "pid")

#: A quoted or escaped piece of a word, or an unquoted one; no two begin alike.
_PIECE = r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\]"""
_TOKEN = re.compile(rf"(?P<space>\s+|\\\n)|(?P<comment>#[^\n]*)|(?P<word>(?:{_PIECE})+)", re.DOTALL)
_SHELL = re.compile(
    rf"(?P<space>[ \t\r\f\v]+|\\\n)|(?P<comment>#[^\n]*)|(?P<sign>\n|[;&|()<>]+)|(?P<word>(?:(?![ \t\r\f\v\n;&|()<>])(?:{_PIECE}|\s))+)",
    re.DOTALL,
)
_PIECES = re.compile(_PIECE, re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\$`\n])')
_FILLED = re.compile(
    r"(?P<literal>\{\{\w{1,40}\}\}|\$\$)|\{(?P<name>[a-z_]{1,40})\}|\$(?P<variable>[A-Za-z_]\w{0,99}|\{[A-Za-z_]\w{0,99}\})",
    re.ASCII,
)

#: Characters that are doubled where they are meant as they stand.
_DOUBLED = re.compile(
    r"(?P<dollar>\$?)(?P<braces>\{\{\w{1,40}\}\}|\{\w{1,40}\})|(?P<alone>\$)", re.ASCII
)


def split_words(command: str | Sequence[str], option: str = "command") -> list[str]:
    """
    Split a command line into its words; a list is one already.

    >>> split_words("llama-server -m 'a b.gguf' # the large one")
    ['llama-server', '-m', 'a b.gguf']

    Raises:
        ConfigError: A quote is not closed, or there is no word.
    """
    words, at = [] if isinstance(command, str) else list(command), 0
    while isinstance(command, str) and at < len(command):
        token = _TOKEN.match(command, at)
        if token is None:
            line = command[:at].count("\n") + 1
            raise ConfigError(
                f"{option}: a quote of its line {line} is not closed. Close it, or write the command as a list of words."
            )
        if token["word"] is not None:
            words.append("".join(map(_unquote, _PIECES.findall(token["word"]))))
        at = token.end()
    if not words or not words[0]:
        raise ConfigError(f"{option}: names no program. Write it as in a shell: `llama-server --port {{port}}`.")  # fmt: skip
    if any("\0" in word for word in words):
        raise ConfigError(f"{option}: no word of a command can hold the character NUL.")
    return words


def read_shell(text: str) -> Iterator[tuple[str, bool]]:
    """
    Yield the words and the signs of a shell's text, each with True for a sign; comments are left out, ends of lines are signs.

    >>> list(read_shell("a 'b c'>d # don't"))
    [('a', False), ('b c', False), ('>', True), ('d', False)]

    Raises:
        ConfigError: A quote is not closed.
    """
    at = 0
    while at < len(text):
        token = _SHELL.match(text, at)
        if token is None:
            line = text[:at].count("\n") + 1
            raise ConfigError(f"it cannot be read as a shell would: a quote of line {line} is not closed.")  # fmt: skip
        if token["sign"] is not None:
            yield token["sign"], True
        elif token["word"] is not None:
            yield "".join(map(_unquote, _PIECES.findall(token["word"]))), False
        at = token.end()


def _unquote(piece: str) -> str:
    match piece[0]:
        case "'":
            return piece[1:-1]
        case '"':
            return _ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], piece[1:-1])
        case "\\":
            return "" if piece[1] == "\n" else piece[1]
    return piece


def placeholders_in(words: Sequence[str], known: Collection[str], option: str = "command") -> set[str]:  # fmt: skip
    """
    Return the names of the placeholders in a command line.

    Raises:
        ConfigError: One is unknown.
    """
    names = {one["name"] for word in words for one in _FILLED.finditer(word) if one["name"]}
    if unknown := sorted(names.difference(known)):
        listed = " ".join(f"{{{name}}}" for name in known)
        raise ConfigError(
            f"{option}: `{{{unknown[0]}}}` is no placeholder. These are: {listed}. Braces that are meant as they stand are doubled: "
            f"{{{{{unknown[0]}}}}}."
        )
    return names


def variables_in(words: Sequence[str]) -> set[str]:
    """Return the names of the variables of the environment in a command line."""
    found = (one["variable"] for word in words for one in _FILLED.finditer(word))
    return {name.strip("{}") for name in found if name}


def fill(text: str, values: Mapping[str, str], variable: Callable[[str], str]) -> str:
    """
    Return a word with its placeholders and variables filled in; what is filled in is not looked at again.

    Args:
        values: By placeholder.
        variable: Returns the value of a variable.
    """

    def value(found: re.Match[str]) -> str:
        if found["literal"] is not None:
            return "$" if found["literal"] == "$$" else found["literal"][1:-1]
        if found["name"] is not None:
            return values[found["name"]]
        return variable(found["variable"].strip("{}"))

    return _FILLED.sub(value, text)


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the placeholders in it filled in, and nothing else."""
    return _FILLED.sub(lambda found: values[found["name"]] if found["name"] else found[0], text)


def as_written(word: str, known: Collection[str] = PLACEHOLDERS) -> str:
    """
    Return a word of a shell's command line as it is written in a `command`: what is no known placeholder stands for itself.

    >>> as_written("{name} {other} $HOME")
    '{name} {{other}} $$HOME'
    """

    def double(found: re.Match[str]) -> str:
        dollar, braces = found["dollar"] or found["alone"] or "", found["braces"] or ""
        is_placeholder = not dollar and braces[1:-1] in known
        return 2 * dollar + (f"{{{braces}}}" if braces and not is_placeholder else braces)

    return _DOUBLED.sub(double, word)


def program_of(command: str | Sequence[str]) -> str:
    """Return the name of a command's program, without its folder; the other words may hold secrets."""
    try:
        return PurePath(split_words(command)[0]).name
    except ConfigError:  # told where its backend is made
        return ""
