"""
The bundled model's engines, for tests that need real answers. llama.cpp's starts in a tenth of a second.

What is promised of one engine is promised of all: tests of it are parametrized over `ENGINES`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from unilect.api.backend import Backend
from unilect.config.server import ModelConfig
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.process.child_process import ChildProcess
from unilect.engines.transformers.engine import HfEngine
from unilect.testing import answer, chat, completion, events_of

__all__ = ["answer", "chat", "completion", "events_of"]  # what tests of engines need beside
#: engine -> the source that is the bundled model on it
SOURCES = {"gguf": "demo:", "hf": f"hf:{FOLDER / 'hf'}"}
IN_CI = os.environ.get("CI") == "true"  # nothing may be skipped there
_HAS_TRANSFORMERS = IN_CI or all(
    find_spec(name) for name in ("torch", "transformers", "llguidance", "safetensors")
)
needs_transformers = pytest.mark.skipif(
    not _HAS_TRANSFORMERS, reason="needs the extra transformers; UNILECT_EXTRAS=transformers"
)
#: Whether the tests that are marked `heavy` run too.
THOROUGH = IN_CI or "UNILECT_PEERS" in os.environ
#: How often something is asked of an engine that has to be so every time.
TRIES = 200 if THOROUGH else 12
ENGINES = [pytest.param("gguf"), pytest.param("hf", marks=needs_transformers)]
#: For tests that start an engine of their own.
ENGINES_IN_CI = [
    pytest.param("gguf"),
    pytest.param("hf", marks=[needs_transformers, pytest.mark.heavy]),
]
#: For tests that ask the same of each: what is dear is to make up what is asked.
TOGETHER = ["gguf", "hf"] if THOROUGH and _HAS_TRANSFORMERS else ["gguf"]


def made(engine: str, shared: dict[Any, Any] | None = None, **config: Any) -> Any:
    """An engine of this kind for the bundled model, not started; those of one `shared` share what they can."""
    if engine == "gguf":
        return GgufEngine("demo", MODEL, ModelConfig(**config))
    name = str(config.get("lora", "demo"))  # of an adapter beside others
    return HfEngine(name, FOLDER / "hf", ModelConfig(**config), shared=shared)


def process(engine: Any) -> ChildProcess:
    """The child that generates for an engine."""
    child: ChildProcess = (
        engine._generator.process if isinstance(engine, GgufEngine) else engine._server.process
    )
    return child


@asynccontextmanager
async def engine(kind: str = "gguf", **config: Any) -> AsyncIterator[Any]:
    """A started engine of the bundled model, which is stopped at the end."""
    backend = made(kind, **config)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.aclose()


class Spy:
    """
    A backend in front of another that notes what it is asked.

    Attributes:
        asked: The requests to generate, in order.
        starts, stops: How often it was started and stopped.
    """

    def __init__(self, backend: Backend) -> None:
        self.asked: list[ChatRequest | CompletionRequest] = []
        self.starts = self.stops = 0
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def start(self) -> None:
        """Start the other."""
        self.starts += 1
        await self._backend.start()

    def generate(self, request: ChatRequest | CompletionRequest) -> Any:
        """Note the request, and have the other answer it."""
        self.asked.append(request)
        return self._backend.generate(request)

    async def aclose(self) -> None:
        """Stop the other."""
        self.stops += 1
        await self._backend.aclose()
