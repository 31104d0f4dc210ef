"""A chat template that is a bomb is refused before its model is loaded; one that waits for its client ends that request, and no other."""

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from inprocess import site

from support.backends.engine import ENGINES_IN_CI, SOURCES, made
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import BackendUnavailable

#: A loop of ten thousand million steps.
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SAYS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
BOMBS = [
    LOOP + SAYS,
    "{% if messages | length > 20 %}" + LOOP + "{% endif %}" + SAYS,
    "{% if tools %}" + LOOP + "{% endif %}" + SAYS,
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}" + SAYS,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}" + SAYS,
]  # fmt: skip
#: What it takes to import an engine's libraries is beside the two seconds of the trial.
_IMPORTS_S = {"gguf": 1.0, "hf": 20.0}
WAITING = "{% if 'detonate' in messages[-1].content %}" + LOOP + "{% endif %}" + SAYS


@pytest.mark.parametrize(
    ("engine", "bomb"),
    [
        ("gguf", 0),
        *(pytest.param("gguf", number, marks=pytest.mark.heavy) for number in range(1, len(BOMBS))),
        *(pytest.param("hf", number, marks=ENGINES_IN_CI[1].marks) for number in (0, 3)),
    ],
)
async def test_bombs(
    engine: str, bomb: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is not loaded, the reason names the template, and it takes two seconds of the processor; no process and no folder stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = _children_s()
    backend = made(engine, chat_template=BOMBS[bomb])
    try:
        with pytest.raises(BackendUnavailable, match="chat_template: ") as told:
            await backend.start()
        assert not Path(f"/proc/{backend.children[0].pid}").exists()
    finally:
        await backend.aclose()

    assert "it takes" in told.value.message or "it makes" in told.value.message
    assert _children_s() - before < 3.0 + _IMPORTS_S[engine]
    assert [] == list(tmp_path.glob("unilect-*"))


@pytest.mark.heavy
async def test_a_gateway_beside_a_bomb(tmp_path: Path) -> None:
    """A template that waits for a word ends the request that has it, which is refused from then on; others are answered all the time."""
    model = ModelConfig(
        source=SOURCES["gguf"], chat_template=WAITING, hang_timeout_s=1.0, parallel=2
    )
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as running:
        before = running.child.pid
        bomb = asyncio.create_task(_asked(running, "detonate"))
        slowest_s = 0.0
        while not bomb.done():
            begun_s = time.monotonic()
            async with running.client.get(running.url + "/healthz") as response:
                assert 200 == response.status
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            assert 200 == (await _asked(running, f"Hello {begun_s}"))[0]
        status, told = await bomb
        again = await _asked(running, "detonate")
        after = await _asked(running, "Hello")
        pid = running.child.pid

    assert (502, "engine_died") == (status, told["error"]["code"])
    assert (400, "request_killed_engine") == (again[0], again[1]["error"]["code"])
    assert 200 == after[0]
    assert before != pid
    print(f"the slowest /healthz took {slowest_s * 1000:.0f} ms")


@pytest.mark.parametrize("engine", ENGINES_IN_CI[1:])
async def test_a_transformers_engine_lives(engine: str) -> None:
    """A transformers engine ends the request with a 400, and goes on."""
    model = ModelConfig(source=SOURCES[engine], chat_template=WAITING)
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as running:
        before = running.child.pid
        status, told = await _asked(running, "detonate")
        after = await _asked(running, "Hello")

        assert (400, "messages") == (status, told["error"]["param"])
        assert "it takes too long" in told["error"]["message"]
        assert 200 == after[0]
        assert before == running.child.pid


async def _asked(running: Any, text: str) -> tuple[int, Any]:
    """The status of an answer, and the answer."""
    messages = [{"role": "user", "content": text}]
    async with running.post(messages=messages, max_tokens=2) as response:
        return response.status, await response.json()


def _children_s() -> float:
    """The processor time of the children of this process that have ended."""
    found = os.times()
    assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN  # else it is not counted
    return found.children_user + found.children_system
