"""
The file of a configuration: TOML, the lines on which its options stand, and keys that it names and the environment holds.
"""

import errno
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from unilect.config.digests import is_variable
from unilect.config.document import MAX_BYTES, OutOfBounds, statements
from unilect.config.mistakes import ErrorCollector, OptionError, OptionPath
from unilect.config.option import Option, Table, map_texts
from unilect.config.plain_file import read_plain
from unilect.core.errors import ConfigError

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TWICE = re.compile(r"Cannot declare \((.*)\) twice")
#: A file that this process was started with.
_INHERITED = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_MOST_SECRET_BYTES = 65_536  # in a file
#: How mistakes in TOML begin in the parser's words, and what to do about them.
_ADVICE = {
    "Invalid value": "Quote strings; write true and false in lower case.",
    "Unescaped '\\' in a string": "Put a string with backslashes in single quotes.",
    "Expected '=' after a key": "An option is written `name = value`.",
    "Unterminated string": "Close the string with its opening quote, on the same line.",
    "Illegal character '\\n'": "Close the string with its opening quote, on the same line.",
    "Unclosed array": "A list ends with `]`.",
    "Cannot overwrite a value": "An option or a table is defined twice; keep one of them.",
}


class Origin(Struct, frozen=True):
    """
    The places where the options of a configuration were set.

    Attributes:
        file: The TOML file; None where there is none.
        given: By option, the variable or the flag that set it, or set it in the models' tables; and by `models.NAME` of a table that is
            not the file's.
    """

    file: Path | None = None
    given: dict[str, str] = {}

    def locate(self, errors: Iterable[ConfigError]) -> list[ConfigError]:
        """Return errors with their places before them: the file and the line, in its order, the variable or the flag."""
        with_lines, others = [], []
        known: Mapping[OptionPath, int] = {}
        for error in errors:
            table = ".".join(map(str, error.path[:2]))
            places = (*error.path[:1], table, *error.path[2:3])
            given = next((at for at in places if at in self.given), None)
            if given is not None:
                others.append(self._locate_given(str(given), error))
            elif self.file is None or not error.path:
                others.append(error)
            else:
                known, path = known or lines(self.file), error.path
                while path and path not in known:
                    path = path[:-1]
                line = known.get(path, 0)
                place = f"{self.file}:{line}" if line else f"{self.file}"
                with_lines.append((line, ConfigError(f"{place}: {error}")))
        return [error for _, error in sorted(with_lines, key=itemgetter(0))] + others

    def _locate_given(self, option: str, error: ConfigError) -> ConfigError:
        place, text = self.given[option], str(error)
        if place and len(error.path) == 1:
            text = f"{place}: {text.removeprefix(f'{option}: ')}"
        return ConfigError(text)


def read_file(path: Path) -> dict[str, Any]:
    """
    Read the values of a TOML file.

    Raises:
        ConfigError: It cannot be read, or is no TOML, or more than a configuration can be.
    """
    try:
        if _is_model(path):
            raise ConfigError(
                f"{path}: is a model, and no configuration file. Serve it with `unilect serve {path}`, or name it in a TOML file as "
                "the `source` of a table [models.NAME]."
            )
        text = _text(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}). Name a TOML file with --config, or in UNILECT_CONFIG."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not valid TOML: it is not UTF-8 text. Save it as UTF-8."
        ) from error
    try:
        for _ in statements(text):
            pass
        return tomllib.loads(text)
    except OutOfBounds as error:
        raise ConfigError(f"{path}:{error.line}: cannot be read: {error}.") from error
    except ValueError as error:  # of a date that no calendar has, or TOML's
        raise _no_toml(path, text, str(error)) from error


def lines(path: Path) -> dict[OptionPath, int]:
    """Find the line of each option and table of a file that `read_file` has read, as far as it still reads so; those inside of a value have its line."""
    found: dict[OptionPath, int] = {}
    table: OptionPath = ()
    counts = Counter[OptionPath]()
    with suppress(OSError, ValueError):
        for line, statement in statements(_text(path)):
            where = names = _names(tomllib.loads(statement))
            if not names:
                continue
            text = statement.lstrip()
            if text.startswith("[["):
                where = table = (*names, counts[names])
                counts[names] += 1
            elif text.startswith("["):
                table = names
            else:
                where = (*table, *names)
            for length in range(1, len(where) + 1):
                found.setdefault(where[:length], line)
    return found


def fill_secrets(
    values: Mapping[str, Any],
    table: type[Table],
    env: Mapping[str, str],
    mistakes: ErrorCollector,
    used: set[str],
) -> dict[str, Any]:
    """
    Take `$NAME` in the place of a secret from the environment, so that files need hold none; or from the file that the variable
    `NAME_FILE` names, as orchestrators mount secrets.

    Args:
        values: The values of a table, which need not be right.
        mistakes: Gets variables that are not set.
        used: Gets the names of the variables.
    """

    def fill(option: Option, text: str, path: OptionPath) -> str:
        if not option.secret or not is_variable(text):
            return text
        name = text[1:]
        used.update((name, f"{name}_FILE"))
        found = env.get(name)
        with mistakes:
            if found is None:
                found = _of_file(name, env.get(f"{name}_FILE"), path)
        return "unset" if found is None else found

    return map_texts(values, table, fill)


def _of_file(name: str, file: str | None, path: OptionPath) -> str:
    """
    Read the secret in the file that a variable names, without the end of its line.

    Raises:
        ConfigError: No variable has the secret, or the file cannot be read, or holds no text.
    """
    if file is None:
        raise OptionError(
            path,
            f"the environment variable {name} is not set. Set it, or {name}_FILE to a file that holds it.",
        )
    try:
        found = read_plain(file, _MOST_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(path, f"{name}_FILE: {file} cannot be read ({why}).") from error
    if not found:
        raise OptionError(path, f"{name}_FILE: {file} is empty; expected a secret.")
    return found


def _is_model(path: Path) -> bool:
    """Return True for a GGUF file, which may have more bytes than memory holds."""
    if not path.is_file():  # a pipe is read once
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _text(path: Path) -> str:
    """Read the text of a file; editors of other systems begin it with a mark, and end lines with two characters."""
    number = _INHERITED.fullmatch(str(path))
    found = None if number is None else os.fstat(int(number[1]))
    if number is not None and found is not None and stat.S_ISFIFO(found.st_mode):
        data = _of_pipe(int(number[1]), found.st_ino)
    else:
        data = read_plain(path, MAX_BYTES)
    return data.decode("utf-8-sig").replace("\r\n", "\n")


@cache
def _of_pipe(descriptor: int, inode: int) -> bytes:
    """
    Read the bytes of a pipe that a shell has made, as of `--config <(command)`: they come once, and a file is read more than once.

    Raises:
        OSError: They are too many.
    """
    with open(descriptor, "rb", closefd=False) as pipe:
        data = pipe.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES} bytes")
    return data


def _names(values: Mapping[str, Any]) -> OptionPath:
    """Return the names in a header or an option, from what it is parsed to."""
    names: list[str] = []
    inner: Any = values
    while isinstance(inner, dict) and len(inner) == 1:
        ((name, inner),) = inner.items()
        names.append(name)
    return tuple(names)


def _no_toml(path: Path, text: str, message: str) -> ConfigError:
    """Return the parser's error with the line first, in words that are not Python's."""
    place = _PLACE.search(message)
    line = place[1] if place and place[1] else str(len(text.rstrip().split("\n")))
    what = _PLACE.sub("", message)
    if twice := _TWICE.match(what):
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        what = f"the table [{name}] is defined twice; keep one of them"
    advice = next((told for begin, told in _ADVICE.items() if what.startswith(begin)), "")
    what = what[:1].lower() + what[1:]
    return ConfigError(f"{path}:{line}: is not valid TOML: {what}. {advice}".rstrip())
