"""
The LoRA adapters of a model, and how much of each a request gets.

llama.cpp keeps what it has read of a prompt without noting with which scales, and gives it to whoever comes next. So a request with
scales of its own reads nothing from there, and its slot is emptied before another request gets it.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from unilect.api.backend import Adapter
from unilect.api.parameters.rules import lora_scales, refusal
from unilect.config.paths import adapter_of
from unilect.core.errors import UnilectError
from unilect.core.requests import CompletionRequest, TextRequest
from unilect.engines.gguf._file import check_adapter
from unilect.engines.gguf._slot_files import erase
from unilect.engines.gguf._slots import Slots
from unilect.engines.process.child_server import ChildServer
from unilect.engines.settings import read_checked
from unilect.runtime.tasks import Tasks

log = logging.getLogger("unilect")
_AGAIN_S = 1.0


class Adapters:
    """
    The adapters of one model.

    Args:
        texts: Those of its settings, each `path` or `path=0.5`.

    Attributes:
        files: Their paths and scales.

    Raises:
        ConfigError: A file is no adapter of a GGUF model.
    """

    def __init__(self, texts: list[str]) -> None:
        self.files = [adapter_of(text) for text in texts]
        for path, _ in self.files:
            read_checked(check_adapter, Path(path))

    @property
    def public(self) -> tuple[Adapter, ...]:
        """Them, for clients: files without their folders."""
        return tuple(Adapter(Path(path).name, scale) for path, scale in self.files)

    def changes(self, request: TextRequest) -> bool:
        """Return True for a request that wants other scales than those of the settings."""
        scales = [scale for _, scale in self.files]
        return request.lora is not None and scales != self._scales(request)

    def fields(self, request: TextRequest) -> dict[str, Any]:
        """
        Make the fields of a body for the adapters: it lists every one, since llama.cpp takes those that are left out from the slot.

        Raises:
            InvalidRequest: There is no such adapter, or log probabilities of a prompt are requested, which need its cache.
        """
        scales = self._scales(request)
        fields: dict[str, Any] = {
            "lora": [{"id": id, "scale": scale} for id, scale in enumerate(scales)]
        }
        if not self.changes(request):
            return fields
        if isinstance(request, CompletionRequest) and request.echo:
            raise refusal("echo", "log probabilities of a prompt are not told with `lora`")
        return fields | {"cache_prompt": False}

    def _scales(self, request: TextRequest) -> list[float]:
        if request.lora is None:
            return [scale for _, scale in self.files]
        return lora_scales(request.lora, len(self.files), "lora")


def empty(tasks: Tasks, slots: Slots, slot: int, child: ChildServer) -> None:
    """Begin to empty a slot, and give it back when nothing is left in it of a prompt, also where that is cancelled before its first step."""
    task = tasks.start("emptying a slot", _erase(slot, child))
    # who cancels it stops the child, whose next life has empty slots
    task.add_done_callback(lambda _: slots.release(slot))


async def _erase(slot: int, child: ChildServer) -> None:
    """Return once nothing is left in a slot of a prompt: it was erased, or its child has ended, whose next life has empty slots."""
    process, life = child.process, child.process.starts
    while process.starts == life and process.pid is not None:
        try:
            await erase(await child.connect(), slot)
            break
        except UnilectError as error:
            log.warning("a slot could not be emptied, and is held back: %s", error.for_operator)
            await asyncio.sleep(_AGAIN_S)
