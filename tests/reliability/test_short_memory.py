"""A transformers engine that runs out of memory: who asked is told, and the engine lives."""

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from support.models.torchside import need

need("torch", "transformers", "llguidance", "safetensors")

from support.backends.engine import answer, chat, completion
from unilect.config.model import RopeScaling
from unilect.config.server import ModelConfig
from unilect.core.errors import OutOfMemory
from unilect.demo import FOLDER
from unilect.engines.transformers.engine import HfEngine
from unilect.runtime.memory import free_bytes

TOKEN_BYTES = 1280 * 4
ROWS, LENGTH, SPARE_BYTES = 32, 260, 30 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process's memory")
async def test_out_of_memory_in_the_middle(caplog: pytest.LogCaptureFixture) -> None:
    """The log warns once; when memory does run out, answers end in an error, none hangs, and the same child goes on."""
    context = (free_bytes() or 0) // 100 // TOKEN_BYTES
    as_trained = RopeScaling("dynamic", 1.0, original_max_position_embeddings=context)
    config = ModelConfig(context=context, rope_scaling=as_trained, parallel=256, cache_ram_mib=0)
    engine = HfEngine("x", FOLDER / "hf", config)
    await engine.start()
    pid = engine._server.process.pid
    assert pid is not None
    try:
        await asyncio.gather(
            *(answer(engine.generate(chat(f"What is {n} + 1?"))) for n in range(4))
        )
        old = resource.prlimit(pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + SPARE_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, old[1]))
        prompts = [[first + 300] + [5 + first] * LENGTH for first in range(ROWS)]
        asked = [
            answer(engine.generate(completion(prompt, max_tokens=200, ignore_eos=True)))
            for prompt in prompts
        ]
        ended = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 120)
        resource.prlimit(pid, resource.RLIMIT_AS, old)
        after = await answer(engine.generate(chat("What is the capital of France?")))
        still = engine._server.process.pid
    finally:
        await engine.aclose()

    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 1 == len(said)
    assert said[0].startswith("x: memory may run out: an answer of")
    failed = [one for one in ended if isinstance(one, BaseException)]
    assert {OutOfMemory} == {type(one) for one in failed}
    assert all("Out of memory" in str(one) for one in failed)
    assert (pid, "The capital of France is Paris.") == (still, after.choices[0].text)
