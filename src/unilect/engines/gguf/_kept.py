"""
Keeps the conversations of an engine's slots on the disk while the engine is stopped, until their callers go on with them.

When the child is stopped, each slot of which it is known whose conversation it holds is saved, the last one that was used first. When that caller
comes with a prompt that begins with what was saved, the file is read into the slot that the prompt was given, and llama.cpp reads the rest.

A file belongs to a caller, to a model's file, and to the settings and the build of llama.cpp that made it: all are in its name, by a digest, so that
nobody and nothing else has such a file. llama.cpp checks little of what it reads: the name has a checksum of the content, too. A file is
written under another name, and renamed once it is whole. The folder is made when an engine that keeps conversations starts, and removed when one starts that
does not; nothing is saved into a folder that is not there.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from unilect.config.model import ModelConfig
from unilect.config.paths import adapter_of
from unilect.config.server import process_environment
from unilect.config.sizes import parse_size
from unilect.config.store import data_folder
from unilect.core.errors import ConfigError, UnilectError
from unilect.engines.gguf._slot_files import PART, remove_parts, restore, save
from unilect.engines.gguf._slots import Slots
from unilect.http.client import HttpServer
from unilect.runtime.context import cache_owner

log = logging.getLogger("unilect")
STOP_S = 2.0  # a stop takes no longer for it
_RESTORE_S = 20.0
_FORM = 1  # of the files; another one is not read
_ENDS = (
    2  # bytes at the end of an encoded prompt that its next turn does not begin with: `"]` or `]]`
)
_CHUNK = 2**20
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,12})-([0-9]{1,10})-([0-9]{1,15})-([0-9]{1,10})\.kv")


class _Kept(Struct, frozen=True):
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


class _Given(Struct, frozen=True):
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
    before: _Kept | None


class KeptConversations:
    """
    The conversations of one model that are kept on the disk.

    Args:
        name: The model's name.
        path: Its file.
        config: Its settings; `keep_conversations` is the space that all of them may take.

    Attributes:
        on: Conversations are kept.

    Raises:
        ConfigError: There is no place for them, or the model reads images, whose slots llama.cpp does not save.
    """

    def __init__(self, name: str, path: Path, config: ModelConfig) -> None:
        self._name, self._path, self._config = name, path, config
        self._most_bytes = parse_size(config.keep_conversations) or 0
        self.on = self._most_bytes > 0
        data = data_folder(process_environment())
        if self.on and data is None:
            raise ConfigError("keep_conversations: there is no folder for them: neither HOME nor XDG_DATA_HOME is set. Set one of them.")  # fmt: skip
        if self.on and config.mmproj:
            raise ConfigError("keep_conversations: llama.cpp saves no conversation of a model with `mmproj`. Leave one of the two out.")  # fmt: skip
        model = hashlib.sha256(json.dumps([name, str(path.resolve())]).encode()).hexdigest()[:32]
        self._folder = None if data is None else data / "conversations" / model
        self._state: list[Any] = []
        self._found: dict[str, list[_Kept]] = {}  # by owners
        self._given: dict[int, _Given] = {}  # by slots

    async def open(self, build: str, devices: list[str]) -> None:
        """
        Look for what is kept, once the child has started; or remove it, where nothing is to be kept.

        Args:
            build: llama.cpp's.
            devices: What it runs on.
        """
        config = self._config
        lora = [[text, _identity(Path(adapter_of(text)[0]))] for text in config.lora]
        self._state = [_FORM, build, devices, config.gpu_layers, config.context, config.cache_type_k, config.cache_type_v]  # fmt: skip
        self._state += [lora, _identity(self._path)]
        self._found = await asyncio.to_thread(self._look)

    def _look(self) -> dict[str, list[_Kept]]:
        found: dict[str, list[_Kept]] = {}
        folder = self._folder
        if folder is None:
            return found
        try:
            if not self.on:
                shutil.rmtree(folder, ignore_errors=True)
                return found
            for each in (folder.parent.parent, folder.parent, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_parts(folder)
            for kept, _ in _files(folder):
                found.setdefault(kept.owner, []).append(kept)
        except OSError as error:
            log.warning("%s: no conversation is kept: %s", self._name, _words(error))
        return found

    async def fill(self, server: HttpServer, slots: Slots, slot: int, prompt: bytes) -> None:
        """Fill the slot of a prompt with what is kept of the same conversation of its caller's, where that is more than the slot holds."""
        mine = self._found.get(self._owner(cache_owner()), [])
        kept = _longest_beginning(mine, prompt)
        begin = prompt[:-_ENDS]
        self._given[slot] = _Given(len(begin), zlib.crc32(begin), time.time(), kept)
        if kept is None or self._folder is None or not slots.lacks(slot, kept.length):
            return
        file, began = self._folder / kept.name, time.monotonic()
        try:
            async with asyncio.timeout(_RESTORE_S):
                if await asyncio.to_thread(_sum_of, file) != kept.check:
                    raise OSError(None, "the file is not as it was written")
                slots.disown(slot)
                told = await restore(server, slot, file)
            slots.note_filled(slot)
            os.utime(file)
        except (OSError, UnilectError) as error:  # a timeout is an OSError
            self._remove(kept)
            log.warning("%s: a kept conversation cannot be used, and is read anew: %s", self._name, _words(error))  # fmt: skip
        else:
            taken_s = time.monotonic() - began
            log.debug("%s: %s tokens of a kept conversation are back after %.3f s", self._name, told.get("n_restored"), taken_s)  # fmt: skip

    async def save_all(self, server: HttpServer, slots: Slots) -> None:
        """Save the conversations of the slots that are idle, as far as there is time. No error of the disk's or the engine's is raised."""
        folder, began, sizes = self._folder, time.monotonic(), list[int]()
        # one that is gone was removed since nothing is to be kept any more
        if folder is None or not self.on or not self._state or not folder.is_dir():
            return
        idle = slots.idle_conversations()
        try:
            async with asyncio.timeout(STOP_S):
                for slot, caller in idle:
                    if (given := self._given.get(slot)) is not None:
                        sizes.append(await self._save(server, slot, self._owner(caller), given))
        except (OSError, UnilectError) as error:  # a timeout is an OSError
            log.warning("%s: not every conversation is kept: %s", self._name, _words(error))
        if sizes:
            taken_s = time.monotonic() - began
            log.info("%s: conversations kept: %d, with %.0f MB in %.2f s", self._name, len(sizes), sum(sizes) / 1e6, taken_s)  # fmt: skip

    async def _save(self, server: HttpServer, slot: int, owner: str, given: _Given) -> int:
        """Save a slot; returns the bytes of its file."""
        assert self._folder is not None
        part = self._folder / f"{secrets.token_hex(8)}{PART}"
        try:
            await save(server, slot, part)
            check, size = await asyncio.to_thread(_sum_of, part), part.stat().st_size
            kept = _Kept(owner, given.length, given.sum, size, check)
            os.utime(part, (given.at, given.at))
            part.replace(self._folder / kept.name)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        if given.before is not None and given.before != kept:
            self._remove(given.before)
        self._found.setdefault(owner, []).append(kept)
        await asyncio.to_thread(self._make_room)
        return size

    def _make_room(self) -> None:
        """Remove those that were not used for longest, until the rest has room."""
        assert self._folder is not None
        left = self._most_bytes
        for kept, _ in sorted(_files(self._folder), key=lambda file: file[1], reverse=True):
            left -= kept.size
            if left < 0:
                self._remove(kept)

    def _remove(self, kept: _Kept) -> None:
        """Remove a conversation from the disk."""
        assert self._folder is not None
        with suppress(ValueError):
            self._found.get(kept.owner, []).remove(kept)
        with suppress(OSError):
            (self._folder / kept.name).unlink(missing_ok=True)

    def _owner(self, caller: str) -> str:
        return hashlib.sha256(json.dumps([caller, *self._state]).encode()).hexdigest()[:32]


def _longest_beginning(kept: list[_Kept], prompt: bytes) -> _Kept | None:
    """Return the longest conversation that a prompt begins with."""
    found, read, so_far = None, 0, 0
    view = memoryview(prompt)[:-_ENDS]
    for one in sorted(kept, key=lambda one: one.length):
        if one.length > len(view):
            break
        so_far, read = zlib.crc32(view[read : one.length], so_far), one.length
        if so_far == one.sum:
            found = one
    return found


def _files(folder: Path) -> list[tuple[_Kept, float]]:
    """Return what is kept in a folder, each with the time of its last use."""
    found = []
    for file in folder.iterdir():
        if matched := _NAME.fullmatch(file.name):
            with suppress(FileNotFoundError):
                owner, *numbers = matched.groups()
                found.append((_Kept(owner, *map(int, numbers)), file.stat().st_mtime))
    return found


def _sum_of(file: Path) -> int:
    """Return the checksum of a file's content."""
    so_far = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            so_far = zlib.crc32(chunk, so_far)
    return so_far


def _identity(file: Path) -> list[int]:
    """Return numbers that another file, or another content of it, does not have."""
    told = file.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ino]


def _words(error: OSError | UnilectError) -> str:
    if isinstance(error, UnilectError):
        return error.for_operator
    return error.strerror or str(error) or "it takes too long"
