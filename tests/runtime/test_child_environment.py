"""Tests of unilect.runtime.child_environment, on a real child."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.backends.engine import engine, process
from unilect.runtime.child_environment import child_environment

SECRET = {
    "UNILECT_API_KEYS": "sk-1,sk-2",
    "UNILECT_ANYTHING": "x",
    "MY_UPSTREAM": "sk-3",
    "HF_TOKEN": "hf_x",
    "HUGGINGFACE_HUB_TOKEN": "hf_x",
    "LLAMA_API_KEY": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "DATABASE_URL": "postgres://user:pass@host",
    "PGPASSWORD": "x",
    "https_proxy": "http://user:pass@host",
    "HTTPS_PROXY": "http://user:pass@host",
}
NEEDED = {
    "CUDA_VISIBLE_DEVICES": "1",
    "HIP_VISIBLE_DEVICES": "0",
    "HF_HOME": "/cache",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "3",
    "LC_ALL": "C",
    "LD_LIBRARY_PATH": "/cuda",
    "TMPDIR": "/tmp",
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "x",
}


def test_what_a_child_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child gets what its libraries look for, and no key, password, proxy or setting of the server, whatever its name."""
    for name, value in (SECRET | NEEDED).items():
        monkeypatch.setenv(name, value)
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, check=True
    )
    got = json.loads(done.stdout)
    assert {} == {name: value for name, value in got.items() if name in SECRET}
    assert NEEDED == {name: value for name, value in got.items() if name in NEEDED}
    assert os.environ["PATH"] == got["PATH"]


async def test_what_an_engine_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running engine holds none of the server's secrets in its environment."""
    for name in SECRET:
        monkeypatch.setenv(name, "sk-of-the-server")
    async with engine() as model:
        got = Path(f"/proc/{process(model).pid}/environ").read_bytes()

    assert b"PATH=" in got
    assert b"sk-of-the-server" not in got
