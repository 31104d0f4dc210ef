"""
The slots that callers save: their files lie in a folder of the operator's.

A file belongs to who saved it, and to the model whose state it holds: both are in its name, so that another caller, or another model, has no
such file. llama.cpp checks little of what it reads, so nothing is read but what it has written itself.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (POST /slots/{id_slot}?action=save)
"""

import asyncio
import hashlib
import json
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from unilect.api.backend import SlotAction
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError, InvalidRequest, NotStored, UnsupportedOperation
from unilect.engines.gguf._file import model_files
from unilect.engines.gguf._slot_files import PART, erase, remove_parts, restore, save
from unilect.http.client import HttpServer
from unilect.runtime.context import current_request

MAX_SAVED = 64  # files of one caller, each as large as what its slot has read
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)


class SavedSlots:
    """
    The saved slots of one model.

    Args:
        path: The model's file.
        config: Its settings; `slot_save_path` is the folder, which the first save makes where it is missing.

    Raises:
        ConfigError: There is no such folder, and no place for it.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.folder = Path(config.slot_save_path).absolute() if config.slot_save_path else None
        size = sum(file.stat().st_size for file in model_files(path))
        self._state = [path.name, size, config.cache_type_k, config.cache_type_v, config.lora]  # fmt: skip
        self._one_by_one = asyncio.Lock()
        if self.folder is not None and not self.folder.parent.is_dir():
            raise ConfigError(f"slot_save_path: there is no folder {self.folder.parent}. Make it, or name another one.")  # fmt: skip
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"slot_save_path: {self.folder} is no folder. Name one.")

    async def act(
        self, server: HttpServer, slot: int, action: SlotAction, name: str
    ) -> dict[str, Any]:
        """
        Save a slot, fill it again, or empty it.

        Args:
            name: Of the file, as the caller has it.

        Returns:
            llama.cpp's answer.

        Raises:
            UnilectError: As llama.cpp says; or the name is none, or there is no such file, or no folder.
        """
        if action == "erase":
            return await erase(server, slot)
        if self.folder is None:
            raise UnsupportedOperation(
                f"`{action}`: no slots are saved for this model; its operator sets `slot_save_path`. Prompts that were read before are kept "
                "in memory by themselves."
            )
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"`filename` is {name[:50]!r}; expected 1 to 128 letters, digits and . _ - without a folder; the first is no dot.",
                param="filename",
            )
        file = self.folder / f"{self._owner}-{name}"
        if action == "save":
            told = await self._save(server, slot, file)
        elif not file.is_file():
            raise NotStored(
                f"`filename`: you have saved no slot of this model as '{name}'.", param="filename"
            )
        else:
            told = await restore(server, slot, file)
        return told | {"filename": name}

    async def _save(self, server: HttpServer, slot: int, file: Path) -> dict[str, Any]:
        """Save a slot into a file, which is whole or as it was."""
        folder, owner = file.parent, self._owner
        async with self._one_by_one:
            _check_room(file, owner)
            part = folder / f"{owner}.{secrets.token_hex(8)}{PART}"
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                remove_parts(folder, f"{owner}.")
                told = await save(server, slot, part)
                part.replace(file)
            except OSError as error:
                raise UnsupportedOperation(
                    "The slot could not be written to the disk of the server; its operator must look.",
                    reason=f"slot_save_path: {error.filename}: {error.strerror}",
                ) from error
            finally:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
        return told

    @property
    def _owner(self) -> str:
        """The beginning of the names of the caller's files."""
        whose = json.dumps([current_request().caller, *self._state])
        return hashlib.sha256(whose.encode()).hexdigest()[:32]


def _check_room(file: Path, owner: str) -> None:
    """
    Raises:
        InvalidRequest: The owner has as many files as are kept, and this is another one.
    """
    saved = len(list(file.parent.glob(f"{owner}-*")))
    if saved >= MAX_SAVED and not file.exists():
        raise InvalidRequest(
            f"`filename`: you have saved {saved} slots of this model, and no more are kept. Use the name of one of them.",
            param="filename",
        )
