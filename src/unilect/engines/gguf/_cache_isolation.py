"""
Keeps the callers of one GGUF model apart, so that none sees by the clock what another has asked.

llama.cpp looks for the beginning of a prompt in two places. One is the slot, which is emptied before it is read from for another caller
(`_slots`). The other is its cache in memory, of which it cannot be told whose prompts are whose, and which cannot be emptied. So a server
with a key starts its models without it: a second key changes nothing. A server without keys has one caller, and the cache. What was sent
without a key is nobody's secret, so the first key that such a server is given takes the cache over. Where another caller comes, the
running requests end first, and the model is loaded again.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (`--cache-ram`, `cache_prompt`)
"""

import asyncio
import logging
from typing import Any

from unilect.engines.gguf._slots import Slots
from unilect.engines.process.child_process import ChildProcess
from unilect.runtime.context import ANONYMOUS, cache_owner

log = logging.getLogger("unilect")


class CacheIsolation:
    """
    The separation of an engine's callers.

    Args:
        name: The model's name, for logs.
        slots: The engine's; set at each start of its child.
        shares: The model's option `share_cache`: all callers count as one.
        several: There may be several callers: the server has a key.
    """

    def __init__(self, name: str, slots: Slots, shares: bool, several: bool) -> None:
        self._name = name
        self._slots = slots
        self._shares = shares
        self._several = several and not shares
        self._caller: str | None = None  # whose prompts llama.cpp's cache in memory may hold
        self._changing = asyncio.Lock()

    def at_start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Set the slots for a child that is about to start; returns the settings that differ."""
        self._slots.apart = self._several
        self._slots.kept = settings["cache_ram_mib"] != 0 and not self._several
        return {"cache_ram_mib": 0} if self._several else {}

    async def ensure(self, child: ChildProcess) -> None:
        """
        Have the child run so that the request in hand may be given a slot of it.

        Raises:
            BackendUnavailable: It had to be started again, and could not be.
        """
        if self._shares or self._slots.apart:
            return
        if self._caller in (None, ANONYMOUS):
            self._caller = cache_owner()
        if self._caller == cache_owner():
            return
        async with self._changing:
            if self._slots.apart:
                return
            self._several = True
            log.warning(
                "%s: a second caller (API key) has come: the model is loaded again, this once, without the prompt cache that its callers "
                "would share; with `share_cache = true` they share it",
                self._name,
            )
            async with self._slots.all():
                await child.aclose()
                await child.start()
