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
import secrets
import shutil
import time
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from unilect.config.model import ModelConfig
from unilect.config.paths import adapter_of
from unilect.config.server import process_environment
from unilect.config.sizes import parse_size
from unilect.config.store import data_folder
from unilect.core.errors import ConfigError, InvalidRequest, UnilectError
from unilect.engines.gguf._file import model_files
from unilect.engines.gguf._kept_files import (
    ENDS,
    Given,
    Kept,
    find_files,
    longest_beginning,
    sum_of,
)
from unilect.engines.gguf._slot_files import PART, remove_parts, restore, save
from unilect.engines.gguf._slots import Slots
from unilect.http.client import HttpServer
from unilect.runtime.context import cache_owner

log = logging.getLogger("unilect")
STOP_S = 2.0  # a stop takes no longer for it
_RESTORE_S = 20.0
_FORM = 1  # of the files; another one is not read


class _NotTheFile(OSError):
    """A file has another content than its name says."""


class KeptConversations:
    """
    The conversations of one model that are kept on the disk.

    Args:
        name: The model's name.
        path: Its file.
        config: Its settings; `keep_conversations` is the space that all of them may take.
        writes: The model writes text.

    Attributes:
        on: Conversations are kept.

    Raises:
        ConfigError: There is no place for them, or the model has none, or it reads images, whose slots llama.cpp does not save.
    """

    def __init__(self, name: str, path: Path, config: ModelConfig, writes: bool) -> None:
        self._name, self._path, self._config = name, path, config
        self._most_bytes = parse_size(config.keep_conversations) or 0
        self.on = self._most_bytes > 0
        if self.on and data_folder(process_environment()) is None:
            raise ConfigError("keep_conversations: there is no folder for them: neither HOME nor XDG_DATA_HOME is set. Set one of them.")  # fmt: skip
        if self.on and not writes:
            raise ConfigError("keep_conversations: this model writes no text, and has no conversations. Leave it out.")  # fmt: skip
        if self.on and config.mmproj:
            raise ConfigError("keep_conversations: llama.cpp saves no conversation of a model with `mmproj`. Leave one of the two out.")  # fmt: skip
        self._state: list[Any] = []
        self._found: dict[str, list[Kept]] = {}  # by owners

    @cached_property
    def _folder(self) -> Path | None:
        """The folder of this model's conversations; None where the user has no data."""
        data = data_folder(process_environment())
        told = json.dumps([self._name, str(self._path.resolve())])
        model = hashlib.sha256(told.encode()).hexdigest()[:32]
        return None if data is None else data / "conversations" / model

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
        self._state += [lora, [_identity(file) for file in model_files(self._path)]]
        self._found = {}
        try:
            await asyncio.to_thread(self._look)
        except OSError as error:
            self._state = []
            log.warning("%s: no conversation is kept: %s", self._name, _words(error))

    def _look(self) -> None:
        """
        Find what is kept.

        Raises:
            OSError: Nothing can be kept there, or others could put something there.
        """
        folder = self._folder
        if folder is None:
            return
        if not self.on:
            shutil.rmtree(folder, ignore_errors=True)
            return
        folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            _make_private(each)
        remove_parts(folder)
        self._make_room()
        for kept, _ in find_files(folder):
            self._found.setdefault(kept.owner, []).append(kept)

    async def fill(self, server: HttpServer, slots: Slots, slot: int, prompt: bytes) -> None:
        """Fill the slot of a prompt with what is kept of the same conversation of its caller's, where that is more than the slot holds."""
        mine = self._found.get(self._owner(cache_owner()), [])
        kept = longest_beginning(mine, prompt)
        begin = prompt[:-ENDS]
        slots.note_given(slot, Given(len(begin), zlib.crc32(begin), time.time(), kept))
        if kept is None or self._folder is None or not slots.lacks(slot, kept.length):
            return
        file, began = self._folder / kept.name, time.monotonic()
        try:
            async with asyncio.timeout(_RESTORE_S):
                if await asyncio.to_thread(sum_of, file) != kept.check:
                    raise _NotTheFile(None, "the file is not as it was written")
                slots.disown(slot)
                told = await restore(server, slot, file)
            slots.note_filled(slot, Given(kept.length, kept.sum, time.time(), kept))
            os.utime(file)
        except (_NotTheFile, FileNotFoundError, InvalidRequest) as error:
            self._remove(kept)
            log.warning("%s: a kept conversation cannot be used, and is read anew: %s", self._name, _words(error))  # fmt: skip
        except (OSError, UnilectError) as error:  # a timeout is an OSError
            self._forget(kept)  # until the next start: it may be what the engine died of
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
        idle, seen = slots.idle_conversations(), set[tuple[str, int, int]]()
        try:
            async with asyncio.timeout(STOP_S):
                for slot, caller, given in idle:
                    # of one conversation in two slots the last one that was used is kept
                    if (same := (caller, given.length, given.sum)) not in seen:
                        size = await self._save(server, slot, self._owner(caller), given)
                        seen |= {same} if size else set()
                        sizes += [size] if size else []
        except (OSError, UnilectError) as error:  # a timeout is an OSError
            log.warning("%s: not every conversation is kept: %s", self._name, _words(error))
        if sizes:
            taken_s = time.monotonic() - began
            log.info("%s: conversations kept: %d, with %.0f MB in %.2f s", self._name, len(sizes), sum(sizes) / 1e6, taken_s)  # fmt: skip

    async def _save(self, server: HttpServer, slot: int, owner: str, given: Given) -> int:
        """Save a slot; returns the bytes of its file, 0 for a slot that holds nothing."""
        assert self._folder is not None
        part = self._folder / f"{secrets.token_hex(8)}{PART}"
        try:
            told = await save(server, slot, part)
            if not told.get("n_saved"):
                return 0
            check, size = await asyncio.to_thread(sum_of, part), part.stat().st_size
            kept = Kept(owner, given.length, given.sum, size, check)
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
        for kept, _ in sorted(find_files(self._folder), key=lambda file: file[1], reverse=True):
            left -= kept.size
            if left < 0:
                self._remove(kept)

    def _remove(self, kept: Kept) -> None:
        """Remove a conversation from the disk."""
        assert self._folder is not None
        self._forget(kept)
        with suppress(OSError):
            (self._folder / kept.name).unlink(missing_ok=True)

    def _forget(self, kept: Kept) -> None:
        with suppress(ValueError):
            self._found.get(kept.owner, []).remove(kept)

    def _owner(self, caller: str) -> str:
        return hashlib.sha256(json.dumps([caller, *self._state]).encode()).hexdigest()[:32]


def _make_private(folder: Path) -> None:
    """
    Take a folder from everybody but its user.

    Raises:
        OSError: It is another user's.
    """
    told = folder.stat()
    if told.st_uid != os.geteuid():
        raise OSError(None, f"{folder} belongs to another user. Remove it, or set XDG_DATA_HOME.")
    if told.st_mode & 0o077:
        folder.chmod(0o700)


def _identity(file: Path) -> list[int]:
    """Return numbers that another file, or another content of it, does not have."""
    told = file.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ino]


def _words(error: OSError | UnilectError) -> str:
    if isinstance(error, UnilectError):
        return error.for_operator
    return error.strerror or str(error) or "it takes too long"
