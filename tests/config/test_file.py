"""Tests of unilect.config.file; tests/config/test_mistakes_settings.py has the messages."""

import os
from pathlib import Path

import pytest

from unilect.config.file import Origin, lines, read_file
from unilect.core.errors import ConfigError

TEXT = '''\
# port = 1
port = 1  # [models.x]
"log_level" = "a # b"
api_keys = [
  "a", # ]
  "]",
]
tls_cert = """
host = 1
[models.y]
\\""" still
"""
[models.a]
source = 'C:\\x = "'
defaults.temperature = 1
rope_scaling = { rope_type = "yarn" }  # }
[ models . "b c/d" ]   # a table
stop = ["""
]""", \'\'\'
x = 1
\'\'\']
context = 1
[[listeners]]
port = 1
[models.a.completion_defaults]
top_p = 1
[[listeners]]

port = 2
'''


def test_lines(tmp_path: Path) -> None:
    """Options and tables are found on their lines, whatever stands in texts, comments and lists before them."""
    file = tmp_path / "c.toml"
    file.write_text(TEXT)
    found = lines(file)

    expected = {
        ("port",): 2,
        ("log_level",): 3,
        ("api_keys",): 4,
        ("tls_cert",): 8,
        ("models",): 13,
        ("models", "a"): 13,
        ("models", "a", "source"): 14,
        ("models", "a", "defaults"): 15,
        ("models", "a", "defaults", "temperature"): 15,
        ("models", "a", "rope_scaling"): 16,
        ("models", "a", "rope_scaling", "rope_type"): 16,
        ("models", "b c/d"): 17,
        ("models", "b c/d", "stop"): 18,
        ("models", "b c/d", "context"): 22,
        ("listeners",): 23,
        ("listeners", 0): 23,
        ("listeners", 0, "port"): 24,
        ("models", "a", "completion_defaults"): 25,
        ("models", "a", "completion_defaults", "top_p"): 26,
        ("listeners", 1): 27,
        ("listeners", 1, "port"): 29,
    }
    assert expected == found
    assert {"port", "log_level", "api_keys", "tls_cert", "models", "listeners"} == set(
        read_file(file)
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_other_systems(tmp_path: Path, end: str) -> None:
    """A mark at the beginning and other line ends change nothing."""
    file = tmp_path / "c.toml"
    file.write_bytes(
        b"\xef\xbb\xbf" + f"port = 1{end}host = '''a{end}b'''{end}done = true".encode()
    )

    assert {"port": 1, "host": "a\nb", "done": True} == read_file(file)
    assert {("port",): 1, ("host",): 2, ("done",): 4} == lines(file)


def test_a_bomb_of_brackets(tmp_path: Path) -> None:
    """A file that is nested without end is told as no TOML."""
    file = tmp_path / "c.toml"
    file.write_text("a = " + "[" * 100_000)

    with pytest.raises(ConfigError, match=r":1: cannot be read: it is nested too deeply"):
        read_file(file)


def test_places(tmp_path: Path) -> None:
    """An error has the line of its option, else of its table, in the file's order; what a flag or a variable set names that."""
    file = tmp_path / "c.toml"
    file.write_text("port = 1\n[models.a]\ncontext = 5\n")
    origin = Origin(file, {"port": "--port", "threads": ""})
    errors = [
        ConfigError("of a", ("models", "a", "source")),
        ConfigError("port: too many", ("port",)),
        ConfigError("of context", ("models", "a", "context")),
        ConfigError("of a flag", ("models", "a", "threads")),
        ConfigError("of nothing"),
        ConfigError("of another", ("listeners", 0)),
    ]

    assert [
        f"{file}: of another",
        f"{file}:2: of a",
        f"{file}:3: of context",
        "--port: too many",
        "of a flag",
        "of nothing",
    ] == [str(error) for error in origin.locate(errors)]


def test_a_pipe_of_the_shell() -> None:
    """A configuration comes through a pipe that the process was started with, as by `--config <(command)`, and its lines are known."""
    to_read, to_write = os.pipe()
    os.write(to_write, b"# made by a program\nport = 1\n")
    os.close(to_write)
    path = Path(f"/dev/fd/{to_read}")
    try:
        assert {"port": 1} == read_file(path)
        assert {("port",): 2} == lines(path)
    finally:
        os.close(to_read)
    with pytest.raises(ConfigError, match=r"cannot be read \(Bad file descriptor\)"):
        read_file(path)
