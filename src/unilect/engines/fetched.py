"""
Models whose files may have to be downloaded from the hub: during their start, concurrently, and not in their factory.

A download runs in a thread that does not outlive the process or the model; what has come is kept, and the next start goes on from there.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unilect.api.backend import Backend, BackendSpec, Capabilities
from unilect.core.errors import BackendUnavailable, ConfigError
from unilect.hub import download as hub
from unilect.hub.transfer import OnProgress
from unilect.runtime.tasks import join_shared, run_aside, spawn_detached


def when_here(
    spec: BackendSpec,
    fetch: Callable[[str, OnProgress], Path],
    make: Callable[[BackendSpec, Path], Backend],
) -> Backend:
    """
    Make the engine for a model: at once where its files are local ones, else one that fetches them when it is started.

    Args:
        fetch: Returns the path of what a location names, once it is here.
        make: The engine for that path.

    Raises:
        ConfigError: What is here is no such model, or a setting is wrong.
    """
    if hub.is_here(spec.location):
        return make(spec, fetch(spec.location, lambda part, size=0, /: None))
    return later(spec, fetch, make)


def later(
    spec: BackendSpec,
    fetch: Callable[[str, OnProgress], Path],
    make: Callable[[BackendSpec, Path], Backend],
) -> Backend:
    """Make an engine that finds its files when it is started; see `when_here`."""
    return _Fetched(spec, fetch, make)


class _Fetched(Backend):
    """An engine that is made by its first start; before that it is asked for nothing but what it can do."""

    def __init__(self, spec: BackendSpec, fetch: Any, make: Any) -> None:
        self._spec, self._fetch, self._make = spec, fetch, make
        self._engine: Backend | None = None
        self._making: asyncio.Task[Backend] | None = None
        self.capabilities = Capabilities(is_final=False)

    def __getattribute__(self, name: str) -> Any:
        """Read all but the fetch, the start and the end from the engine, once it is made."""
        engine = (
            None if name.startswith("_") or name in ("fetch", "start", "aclose") else self._engine
        )
        return super().__getattribute__(name) if engine is None else getattr(engine, name)

    async def fetch(self) -> None:
        """Fetch the files, once for all who wait, and make the engine; see `Backend`."""
        if self._engine is None:
            if self._making is None or self._making.done():
                self._making = spawn_detached(self._make_engine())
            self._engine = await join_shared(self._making)

    async def start(self) -> None:
        """Start the engine, once it is made; see `Backend`."""
        await self.fetch()
        assert self._engine is not None
        await self._engine.start()

    async def aclose(self) -> None:
        """Stop, also a download; see `Backend`."""
        if self._making is not None:
            self._making.cancel()
        if self._engine is not None:
            await self._engine.aclose()

    async def _make_engine(self) -> Backend:
        try:
            engine: Backend = self._make(self._spec, await self._path())
        except ConfigError as error:
            raise BackendUnavailable(
                "The model's files cannot be fetched or used. Try again, or ask the operator.",
                reason=f"models.{self._spec.name}: {error}",
            ) from error
        return engine

    async def _path(self) -> Path:
        """Fetch the files in a thread, and return their path."""
        ended = False

        def report(part: float, size_bytes: int = 0, /) -> None:
            if ended:
                raise InterruptedError("it was stopped")
            self._spec.progress("downloading", part, size_bytes)

        try:
            return await run_aside(lambda: self._fetch(self._spec.location, report))
        finally:
            ended = True
