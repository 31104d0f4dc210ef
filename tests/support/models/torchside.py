"""The bundled model as transformers runs it, in this process, for tests of what goes on inside its child."""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from unilect.demo import FOLDER
from unilect.engines.transformers.model.folder import own_template

#: What the engine tells its child, for the bundled model.
SETTINGS: dict[str, Any] = {
    "path": str(FOLDER / "hf"),
    "generates": True,
    "ranks": "",
    "size_bytes": 8_006_088,
    "stored_bytes": 2,
    "embedding_values": 0,
    "tied": True,
    "cache_values": 1280,
    "cache_ram_mib": None,
    "engines": 1,
    "reserved_bytes": 0,
    "context": 2048,
    "parallel": 4,
    "threads": 1,
    "batch": None,
    "dtype": "float32",
    "device": "cpu",
    "quantize": None,
    "trust_remote_code": False,
    "allow_pickle": False,
    "chat_template": "",
    "tried_template": own_template(FOLDER / "hf"),  # which no test has to try
    "foreign_template": False,
    "stop": [],
    "stop_token_ids": [],
    "pooling": "mean",
    "merge": [],
    "tokenizer": None,
    "rope_scaling": None,
}


def need(*modules: str) -> None:
    """Skip a module of tests where the extra is not installed; never where everything has to be tested."""
    for module in modules:
        if os.environ.get("CI") == "true":
            __import__(module)
        pytest.importorskip(
            module, reason="needs the extra transformers; UNILECT_EXTRAS=transformers"
        )
        if module == "torch":  # small work; two threads of it wait for each other on a busy machine
            sys.modules["torch"].set_num_threads(1)


@contextmanager
def running(loop: Any) -> Iterator[Any]:
    """A batch that runs in a thread of its own until the block ends."""
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join()


class Asked:
    """
    A job, and what became of it.

    Attributes:
        tokens: Of the answer.
        cached: Tokens of the prompt that were known.
    """

    def __init__(self, prompt: Sequence[int], max_tokens: int = 24, **fields: Any) -> None:
        from unilect.engines.transformers.job import Job, Sampling

        fields.setdefault("sampling", Sampling(temperature=0.0))
        self.job = Job(prompt=list(prompt), max_tokens=max_tokens, emit=self._emit, **fields)
        self.tokens: list[int] = []
        self.outputs: list[Any] = []
        self.cached = 0
        self.finish: str | None = None
        self.first = threading.Event()
        self.over = threading.Event()

    def _emit(self, output: Any) -> None:
        from unilect.engines.transformers.job import Failed, PromptRead, Step

        self.outputs.append(output)
        if isinstance(output, PromptRead):
            self.cached = output.cached
        if isinstance(output, Step):
            self.tokens += output.tokens
            self.finish = output.finish
            self.first.set()
        if isinstance(output, Failed) or self.finish is not None:
            self.over.set()

    def answer(self, loop: Any) -> list[int]:
        """Have it done, and wait for it."""
        loop.submit(self.job)
        return self.wait()

    def wait(self) -> list[int]:
        """The tokens of the whole answer."""
        assert self.over.wait(60)
        return self.tokens
