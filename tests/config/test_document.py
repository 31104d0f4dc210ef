"""Tests of unilect.config.document and plain_file: files that are no configuration are told in no time, with the place."""

import os
import socket
import tomllib
from pathlib import Path

import pytest

from unilect.config.document import MAX_BYTES, MAX_OPTIONS, statements, write_value
from unilect.config.load import load
from unilect.config.plain_file import read_plain
from unilect.core.errors import ConfigError
from unilect.templates import chat as templates

DEEP = "nested too deeply"
#: name, text, the line and what is told.
HOSTILE = [
    ("digits", "\nport = " + "9" * 5000, 2, "the number 99999999999999999999... has 5000 characters"),
    ("hex digits", "port = 0x" + "f" * 5000, 1, "has 5002 characters"),
    ("digits of a fraction", "port = 1." + "0" * 5000, 1, "has 5000 characters"),
    ("an int of many digits", "port = " + "9" * 900, 1, "port: expected an integer"),
    ("dots", "\n\na" + ".a" * 50_000 + " = 1", 3, DEEP),
    ("dots in a header", "[a" + ".a" * 50_000 + "]", 1, DEEP),
    ("dots between quotes", "'a'" + " . 'a'" * 50_000 + " = 1", 1, DEEP),
    ("brackets", "a = " + "[" * 50_000, 1, DEEP),
    ("braces", "a = " + "{a = " * 50_000, 1, DEEP),
    ("a long name", "k" * 500_000 + " = 1", 1, "the name kkkkkkkkkkkkkkkkkkkk... has 500000 characters"),
    ("a long name in quotes", '"' + "k" * 500_000 + '" = 1', 1, "has 500002 characters"),
    ("a long name of a table", '["' + "k" * 500_000 + '"]', 1, "has 500002 characters"),
    ("many options", "".join(f"a{number} = 1\n" for number in range(50_000)), MAX_OPTIONS + 1, "more than 10000 options and tables"),
    ("many tables", "[[listeners]]\n" * 50_000, MAX_OPTIONS + 1, "more than 10000 options and tables"),
    ("many within one", "a = {" + ",".join(f"b{number} = 1" for number in range(50_000)) + "}", 1, "more than 10000 options and tables"),
    ("a long list before a mistake", "api_keys = [\n" + "'a',\n" * 60_000 + "]\nport = 'x'", 60_003, "port: expected an integer"),
    ("a long text before a mistake", 'tls_cert = """\n' + "a\n" * 400_000 + '"""\nport = "x"', 400_003, "port: expected an integer"),
    ("a text without an end", 'tls_cert = """\n' + '\\"""' * 200_000, 2, "unterminated string"),
    ("quotes", '"""' * 300_000, 1, "is not valid TOML"),
    ("backslashes", "\\" * 900_000, 1, "is not valid TOML"),
    ("no date", "a = 2020-13-45", 1, "is not valid TOML"),
]  # fmt: skip


@pytest.mark.heavy(but=8)
@pytest.mark.parametrize(("text", "line", "why"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE])  # fmt: skip
def test_hostile_texts(tmp_path: Path, text: str, line: int, why: str) -> None:
    """A text that no configuration can be is refused with its line, briefly; the square of its size would take minutes."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file, {}, {})

    assert f"{file}:{line}: " in str(error.value)
    assert why in str(error.value)
    assert len(str(error.value)) < 1000


def test_many_mistakes(tmp_path: Path) -> None:
    """Of thousands of mistakes the first hundred are told, and that there may be more."""
    file = tmp_path / "c.toml"
    file.write_text("".join(f"hos{number} = 1\n" for number in range(900)))
    with pytest.raises(ConfigError) as error:
        load(file, {}, {})

    assert 101 == len(error.value.each)
    assert f"{file}: there may be more mistakes" in str(error.value.each[-1])


def test_what_may_be_large(tmp_path: Path) -> None:
    """Tables of a thousand models, numbers, deep names and long texts within the bounds are read."""
    file = tmp_path / "c.toml"
    models = "".join(f"[models.'m{n}.x']\nsource = 'echo:'\ndefaults.temperature = 0.5\n" for n in range(1000))  # fmt: skip
    file.write_text(f"port = 1_000\nallowed_hosts = ['a.b', 'c']\n{models}")
    assert 1000 == len(load(file, {}, {}).models)
    assert ["a = 1", "b = [\n2]", ""] == [text for _, text in statements("a = 1\nb = [\n2]\n")]


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "/dev/zero", "huge", "no path"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """What is no regular file, or too large, is refused at once where a configuration or a template is read, and opened by nobody."""
    path = tmp_path / "x"
    sock = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        sock.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path = Path(kind if kind == "/dev/zero" else "a\0b")
    sock.close()
    with pytest.raises(ConfigError, match=r"cannot be read \("):
        load(path, {}, {})
    with pytest.raises(ConfigError, match=r"no file that can be read \("):
        templates.find(str(path))
    with pytest.raises(OSError):
        read_plain(path, MAX_BYTES)


def test_what_is_written_is_read_again() -> None:
    """Texts of any characters and numbers of any size are TOML; what is not seen is written by its number."""
    value = {
        "a b": ["".join(map(chr, range(0x300))), "\u00a0\u2028\U000e0001", 1e300, float("inf")]
    }
    written = write_value(value)

    assert value == tomllib.loads(f"x = {written}")["x"]
    assert written.isprintable()
    assert '"\ufffd"' == write_value("\ud800")
