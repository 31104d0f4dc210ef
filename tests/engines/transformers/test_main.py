"""Tests of unilect.engines.transformers.__main__: how the child's program imports, in a process of its own."""

import json
import subprocess
import sys

import pytest

from support.models.torchside import SETTINGS, need

need("torch", "transformers", "llguidance", "safetensors")

_SERVE = """
import gc, json, os, sys

from unilect.engines.transformers.__main__ import serve

before = "torch" in sys.modules
ready = serve(json.loads(sys.stdin.readline()))
frozen, tracked = gc.get_freeze_count(), len(gc.get_objects())
print(json.dumps([ready["device"], before, gc.isenabled(), frozen > 2 * tracked]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.heavy
def test_what_is_imported_is_never_collected(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A child that serves has imported torch with its settings in hand, and its garbage collector looks at what came later only."""
    settings = SETTINGS | {"socket_path": str(tmp_path_factory.mktemp("s") / "s")}
    done = subprocess.run(
        [sys.executable, "-c", _SERVE],
        input=json.dumps(settings) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )

    assert ["cpu", False, True, True] == json.loads(done.stdout.splitlines()[-1])
