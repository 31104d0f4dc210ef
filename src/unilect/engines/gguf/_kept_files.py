"""The files of the conversations that are kept, and what their names say. Who reads and writes them is `_kept`."""

import re
import zlib
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

#: Bytes at the end of an encoded prompt that its next turn does not begin with: `"]` or `]]`.
ENDS = 2
_CHUNK = 2**20
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,12})-([0-9]{1,10})-([0-9]{1,15})-([0-9]{1,10})\.kv")


class Kept(Struct, frozen=True):
    """
    A conversation on the disk.

    Attributes:
        owner: A digest of its caller, the model and its settings.
        length: The bytes of the prompt that a slot had been given.
        sum: Their checksum.
        size: The bytes of the file.
        check: The checksum of its content.
    """

    owner: str
    length: int
    sum: int
    size: int
    check: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.owner}-{self.length}-{self.sum}-{self.size}-{self.check}.kv"


class Given(Struct, frozen=True):
    """
    The prompt that a slot was given.

    Attributes:
        length: Its bytes, without its end.
        sum: Their checksum.
        at: The time, in seconds since 1970.
        before: What is kept of the same conversation; None for nothing.
    """

    length: int
    sum: int
    at: float
    before: Kept | None


def longest_beginning(kept: list[Kept], prompt: bytes) -> Kept | None:
    """Return the longest conversation that a prompt begins with."""
    found, read, so_far = None, 0, 0
    view = memoryview(prompt)[:-ENDS]
    for one in sorted(kept, key=lambda one: one.length):
        if one.length > len(view):
            break
        so_far, read = zlib.crc32(view[read : one.length], so_far), one.length
        if so_far == one.sum:
            found = one
    return found


def find_files(folder: Path) -> list[tuple[Kept, float]]:
    """Return what is kept in a folder, each with the time of its last use."""
    found = []
    for file in folder.iterdir():
        if matched := _NAME.fullmatch(file.name):
            with suppress(FileNotFoundError):
                owner, *numbers = matched.groups()
                found.append((Kept(owner, *map(int, numbers)), file.stat().st_mtime))
    return found


def sum_of(file: Path) -> int:
    """Return the checksum of a file's content."""
    so_far = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            so_far = zlib.crc32(chunk, so_far)
    return so_far
