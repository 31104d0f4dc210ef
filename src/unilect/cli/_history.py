"""
The messages of earlier chats, which the arrow keys bring back.

They lie in a file for its user only, one JSON string a line, and never with the server's API key.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from unilect.runtime.redact import Secrets

MOST = 1000  # messages
MOST_BYTES = 64 * 1024  # of a message; a longer one is not kept
_MOST_READ = 8 * 1024 * 1024


class History:
    """
    The messages of a person, in the order in which they were sent.

    Args:
        file: Where they are kept; None to keep none. What cannot be written is not kept.
        secrets: What is removed from them.
    """

    def __init__(self, file: Path | None, secrets: Secrets) -> None:
        self._file = file
        self._secrets = secrets

    def load(self) -> list[str]:
        """Read the last messages, and cut a file that has more."""
        lines = self._lines()
        kept = lines[-MOST:]
        if len(kept) < len(lines) and self._file is not None:
            with suppress(OSError):
                shorter = self._file.with_suffix(f".{os.getpid()}")
                _write(shorter, b"".join(kept), os.O_TRUNC)
                shorter.replace(self._file)
        return list(_texts(kept))

    def add(self, text: str) -> None:
        """Keep a message."""
        line = msgspec.json.encode(self._secrets.remove_from(text)) + b"\n"
        if self._file is None or len(line) > MOST_BYTES:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._file, line, os.O_APPEND)

    def _lines(self) -> list[bytes]:
        if self._file is None:
            return []
        try:
            with self._file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_READ))
                lines = file.read(_MOST_READ).splitlines(keepends=True)
        except OSError:
            return []
        return lines if size <= _MOST_READ else [b"", *lines[1:]]


def _texts(lines: list[bytes]) -> Iterator[str]:
    """Yield the messages of a file, without what is none."""
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeError):
            text = msgspec.json.decode(line, type=str)
            if "\0" not in text:  # readline takes none
                yield text


def _write(file: Path, data: bytes, how: int) -> None:
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o600)
    try:
        os.fchmod(number, 0o600)
        os.write(number, data)
    finally:
        os.close(number)
