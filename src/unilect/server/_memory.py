"""The memory of engines, measured apart from the event loop: the kernel looks at every page for it."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from unilect.api.backend import Life
from unilect.models.model import Model

#: Bytes of the processes of engines, each with its part of what they share.
Memory: TypeAlias = Mapping[Life, int]


async def measure_memory(models: Iterable[Model]) -> Memory:
    """Measure the memory of the processes of models."""
    lives = {
        life
        for model in models
        for member in model.pool.members
        for life in member.backend.children
    }
    return await asyncio.to_thread(lambda: {life: life.proportional_memory_bytes for life in lives})
