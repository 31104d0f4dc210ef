"""
The journal of a server: what the requests that are running have used so far, in a file that outlives the process.

1. The file is mapped into memory: to note a token costs no system call, and what was noted is in the system's page cache when the
   process is killed. A loss of power may lose it.
2. Each running request has a slot. Its parts have checksums, and its counts two places, which are written in turn: a part that was torn
   in the middle of a write is recognised, and the counts before it are there.
3. Room in the file is reserved before it is mapped, since a write into a mapped hole kills the process where the disk is full.
4. A server holds a lock on its journal. One that nobody holds is a dead server's, and is read by the next server that looks.

Source: https://man7.org/linux/man-pages/man3/posix_fallocate.3.html, https://man7.org/linux/man-pages/man2/flock.2.html
"""

import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct, structs

from unilect.core.errors import StoreUnavailable
from unilect.store.failures import unavailable
from unilect.store.records import LedgerRow

log = logging.getLogger("unilect")
LOST = "lost"  # the finish reason of a request whose server has died
_LOST_STATUS = 499
_MAGIC = b"unilect journal 2\n"
_SLOT = 2048  # bytes
_IN_SEGMENT = 256  # slots that are reserved and mapped at once; the first of the file is its head
_MOST_SEGMENTS = 128
_SEGMENT = _SLOT * _IN_SEGMENT
#: Places in a slot: who asks, the backend, and the counts twice.
_ABOUT, BACKEND, _COUNTS = 0, 1408, (1920, 1984)
_HEAD = struct.Struct("<II")  # length and checksum of a text
_NUMBERS = struct.Struct("<QQQQdd")  # number of the write, tokens, milliseconds
_NO_COUNTS = (0, 0, 0, 0, -1.0, 0.0)
_encode = msgspec.msgpack.Encoder().encode
_NO_SLOT = bytes(_SLOT)


#: What a million tokens cost: of the prompt, of the prompt from a cache, of the answer.
Price: TypeAlias = tuple[float, float, float]
FREE: Price = (0.0, 0.0, 0.0)


class _About(Struct, frozen=True, array_like=True):
    """Text of a slot about a request as it is known when it begins: fields of its `LedgerRow`, and the price of its model then."""

    id: str
    at: float
    key: str = ""
    owner: str = ""
    model: str = ""
    dialect: str = ""
    endpoint: str = ""
    price: Price = FREE


#: The most bytes of each text of a request, where not all of them fit into a slot.
_ROOM = {"id": 100, "key": 100, "owner": 400, "model": 512, "dialect": 64, "endpoint": 64}
_MOST_BACKEND = 480


class Slot:
    """Place of one running request in a journal; `free` gives it back."""

    __slots__ = ("_at", "_free", "_map", "_writes")

    def __init__(self, map: mmap.mmap, number: int, free: "list[Slot]") -> None:
        self._map, self._free = map, free
        self._at = number % _IN_SEGMENT * _SLOT
        self._writes = 0

    def set_counts(
        self, prompt: int, cached: int, completion: int, first_ms: float, taken_ms: float
    ) -> None:
        """Note what was used so far; `first_ms` is negative where no token has come."""
        self._writes += 1
        try:
            data = _NUMBERS.pack(self._writes, prompt, cached, completion, first_ms, taken_ms)
        except struct.error:
            return  # no counts: the ones before them stay
        self.write(_COUNTS[self._writes & 1], data)

    def free(self) -> None:
        """Give the slot back, empty: the request has its row in the ledger, or needs none."""
        self._map[self._at : self._at + _SLOT] = _NO_SLOT
        self._writes = 0
        self._free.append(self)

    def write(self, place: int, data: bytes) -> None:
        """Write a text at a place, with its length and its checksum before it."""
        at, length = self._at + place, len(data)
        self._map[at : at + _HEAD.size + length] = _HEAD.pack(length, crc32(data)) + data


class Journal:
    """
    The journal of this process.

    Args:
        stem: What the paths of the journals begin with that belong to the same database.
        instance: This process, as no other is named.

    Raises:
        StoreUnavailable: It cannot be made.
    """

    def __init__(self, stem: Path, instance: str) -> None:
        self.path = _path(stem, instance)
        self._maps: list[mmap.mmap] = []
        self._free: list[Slot] = []
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._open()
            try:
                self._grow()
            except BaseException:
                os.close(self._file)
                with suppress(OSError):
                    self.path.unlink()
                raise
        except OSError as error:
            raise self._unavailable(error) from error

    @property
    def used(self) -> int:
        """Number of slots that are not free."""
        return len(self._maps) * _IN_SEGMENT - 1 - len(self._free)

    def take(self, row: LedgerRow, price: Price = FREE) -> Slot:
        """
        Take a slot for a request, and note who asks.

        Args:
            row: Its row, of which only what is known when it begins is noted.

        Raises:
            StoreUnavailable: There is no room for another one.
        """
        if not self._free:
            try:
                self._grow()
            except OSError as error:
                raise self._unavailable(error) from error
        about = _About(row.id, row.at, row.key, row.owner, row.model, row.dialect, row.endpoint, price)  # fmt: skip
        try:
            data = _encode(about)
        except UnicodeEncodeError:
            data = b""
        if not 0 < len(data) <= BACKEND - _HEAD.size:
            texts = {name: _cut(getattr(about, name), most) for name, most in _ROOM.items()}
            data = _encode(structs.replace(about, **texts))
        slot = self._free.pop()
        slot.write(_ABOUT, data)
        return slot

    def close(self) -> None:
        """Remove the file; it stays, for the next server, where requests in it have no row yet. Idempotent."""
        if self._maps:
            done = not self.used
            for one in self._maps:
                one.close()
            self._maps.clear()
            self._free.clear()  # each slot holds it, and it holds them
            if done:
                with suppress(OSError):
                    self.path.unlink()
            os.close(self._file)

    def _open(self) -> int:
        """Open the file; it gets its name once it is locked, so that nobody takes it for a dead server's."""
        new = self.path.with_name(f"{self.path.name}.new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.path)
        except BaseException:
            os.close(file)
            with suppress(OSError):
                new.unlink()
            raise
        return file

    def _grow(self) -> None:
        """
        Reserve and map some more slots.

        Raises:
            OSError: There is no room.
        """
        count = len(self._maps)
        if count == _MOST_SEGMENTS:
            raise OSError(0, "too many requests wait for the ledger", str(self.path))
        os.posix_fallocate(self._file, count * _SEGMENT, _SEGMENT)
        self._maps.append(mmap.mmap(self._file, _SEGMENT, offset=count * _SEGMENT))
        if not count:
            self._maps[0][: len(_MAGIC)] = _MAGIC
        first = count * _IN_SEGMENT + (not count)
        numbers = range((count + 1) * _IN_SEGMENT - 1, first - 1, -1)
        self._free += [Slot(self._maps[count], number, self._free) for number in numbers]

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        return unavailable(
            f"{self.path}: cannot be written ({error.strerror}). Let the user of this process write there, or make room."
        )


class AbandonedJournal:
    """
    The journal of a server that has died, held until `discard` or `close`.

    Attributes:
        path: Where it is.
        rows: What its requests had used: the ledger gets them, without their cost.
        prices: What their models cost when they came, by their ids.
    """

    def __init__(self, file: int, path: Path) -> None:
        self._file, self.path = file, path
        found = list(_rows(file))
        self.rows = [row for row, _ in found]
        self.prices = {row.id: price for row, price in found}

    def discard(self) -> None:
        """Remove it: its rows are in the ledger."""
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Leave it to another server. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def find_abandoned(stem: Path) -> list[AbandonedJournal]:
    """Find the journals that dead servers have left; what cannot be read is told in the log, and left."""
    found = []
    for path in sorted(stem.parent.glob(f"{escape(stem.name)}.running-*[!w]")):  # not `.new`
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            log.warning(
                "ledger: %s: cannot be read (%s); let the user of this process read it",
                path,
                error.strerror,
            )
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path) and _is_known(file, path):
                found.append(AbandonedJournal(file, path))
                continue
        except OSError:  # its server lives
            pass
        os.close(file)
    return found


def _rows(file: int) -> Iterator[tuple[LedgerRow, Price]]:
    """Read the requests in a file, and what their models cost. One whose beginning is torn was not admitted yet."""
    for number in range(1, min(os.fstat(file).st_size // _SLOT, _MOST_SEGMENTS * _IN_SEGMENT)):
        slot = os.pread(file, _SLOT, number * _SLOT)
        if slot[: _HEAD.size] == bytes(_HEAD.size) or (text := _text(slot, _ABOUT)) is None:
            continue
        try:
            about = msgspec.msgpack.decode(text, type=_About)
        except msgspec.DecodeError:
            continue
        backend = (_text(slot, BACKEND) or b"").decode(errors="replace")
        counts = [_NUMBERS.unpack(data) for at in _COUNTS if (data := _text(slot, at))]
        _, prompt, cached, completion, first_ms, taken_ms = max(counts, default=_NO_COUNTS)
        known = structs.asdict(about)
        price = known.pop("price")
        row = LedgerRow(
            **known,
            backend=backend,
            prompt=prompt,
            cached=cached,
            completion=completion,
            first_token_ms=first_ms if first_ms >= 0 else None,
            duration_ms=taken_ms,
            status=_LOST_STATUS,
            finish=LOST,
        )
        yield row, price


def _text(slot: bytes, place: int) -> bytes | None:
    """Read a text of a slot; None where it is torn."""
    length, checksum = _HEAD.unpack_from(slot, place)
    data = slot[place + _HEAD.size : place + _HEAD.size + length]
    return data if len(data) == length and crc32(data) == checksum else None


def _path(stem: Path, instance: str) -> Path:
    return stem.with_name(f"{stem.name}.running-{instance}")


def _is_known(file: int, path: Path) -> bool:
    """Return True if this version can read a journal; an empty one is of a server that died when it made it."""
    head = os.pread(file, len(_MAGIC), 0)
    if head.strip(b"\0") in (b"", _MAGIC):
        return True
    log.warning(
        "ledger: %s: is no journal that this version of unilect knows; it is left. A newer version reads it; else delete it",
        path,
    )
    return False


def _is_at(file: int, path: Path) -> bool:
    """Return True if an open file is the one that stands at a path."""
    try:
        there, here = os.stat(path), os.fstat(file)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _cut(text: str, most: int) -> str:
    """Cut a text to so many bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


@lru_cache(256)
def encode_backend(source: str) -> bytes:
    """Encode the source of an answer for its place in a slot, `BACKEND`."""
    return _cut(source, _MOST_BACKEND).encode()
