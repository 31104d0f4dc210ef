"""
The help of a program: what `--help` prints, read once for each build of it and kept.

Some programs take a quarter of a minute to print it.
"""

import hashlib
import os
import re
import resource
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from unilect.config.paths import cache_folder
from unilect.config.server import process_environment
from unilect.runtime.child_limits import die_with

_TIMEOUT_S = 60.0
_MOST_TIMEOUT_S = 300.0  # of a program that is known to have a help
_MOST_BYTES = 1_000_000


def read_help(
    words: Sequence[str], environment: Mapping[str, str], timeout_s: float = _TIMEOUT_S
) -> str:
    """
    Return what a command prints; empty where it prints nothing, or does not end. What it has started, such as a server that knows no such flag, is killed.

    Args:
        words: The command line, with its `--help`.
        environment: Its variables.
        timeout_s: The time that it has.
    """
    own = os.getpid()

    def limit() -> None:
        die_with(own, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))

    with tempfile.TemporaryFile() as told:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=limit,
            )
        except OSError:
            return ""
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told.seek(0)
        return told.read(_MOST_BYTES).decode(errors="replace")


def recall_help(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the help of a program as `read_help` does; it is kept until the program's file changes."""
    path = which(words[0], path=environment.get("PATH"))
    folder = cache_folder(process_environment())
    if path is None or folder is None:
        return read_help(words, environment, _MOST_TIMEOUT_S)
    found = os.stat(path)
    build = "\0".join((*words, path, str(found.st_mtime_ns), str(found.st_size)))
    file = folder / "help" / hashlib.sha256(build.encode()).hexdigest()[:32]
    with suppress(OSError):
        return file.read_text(errors="replace")
    if told := read_help(words, environment, _MOST_TIMEOUT_S):
        with suppress(OSError):
            _keep(file, told)
    return told


def _keep(file: Path, told: str) -> None:
    """Write a file at once, so that no other process reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f"{file.name}.{os.getpid()}")
    half.write_text(told)
    half.replace(file)


def has_word(told: str, word: str) -> bool:
    """
    Return True where a help names a flag, or a value, and not only a longer one.

    >>> has_word("--port-range N", "--port")
    False
    """
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", told) is not None


def choices_of(told: str, flag: str) -> list[str]:
    """
    Return the values that a help lists behind a flag; none where it lists none.

    >>> choices_of("--parser {a,b-c} or a name", "--parser")
    ['a', 'b-c']
    """
    found = re.search(rf"(?<![\w-]){re.escape(flag)} \{{([^{{}}]{{1,20000}})\}}", told)
    return found[1].split(",") if found else []
