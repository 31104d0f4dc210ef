"""lm-eval, in an environment of its own, against a real server of the bundled model on both engines: it evaluates them alike."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.common import environments
from support.common.environments import Recipe
from support.models import f32_gguf
from support.servers.serving import KEY, serve
from unilect.demo import FOLDER

pytestmark = [pytest.mark.heavy, environments.may_install]
LM_EVAL = Recipe(("lm_eval[api]==0.4.13", "transformers==5.23.0", "datasets==5.2.0"))
TOKENIZER = FOLDER / "hf"
TIMEOUT_S = 240
WITHIN = 1e-3
MODELS = """\
[models.gguf]
source = "{file}"
cache_type_k = "f32"
cache_type_v = "f32"
[models.hf]
source = "hf:{tokenizer}"
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What lm-eval found of each model."""
    file = f32_gguf.make(tmp_path_factory.mktemp("f32") / "demo.gguf")
    python = environments.python("lm-eval", LM_EVAL)
    script = Path(__file__).with_name("lm_eval_client.py")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": KEY}
    offline["HF_HOME"] = str(tmp_path_factory.mktemp("hub"))
    config = MODELS.format(file=file, tokenizer=TOKENIZER)
    with serve("--api-key", KEY, config=config) as running:
        done = subprocess.run(
            [python, script, running.url, TOKENIZER, "gguf", "hf"],
            env=os.environ | offline,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert 0 == done.returncode, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("task", ["capitals", "stories"])
def test_log_likelihoods(told: dict[str, Any], task: str) -> None:
    """A GGUF file of float32 and the transformers engine give the same log likelihoods, of endings and of whole texts."""
    found, expected = (
        [value for values in told[model][task] for value in values] for model in ("gguf", "hf")
    )

    assert {"capitals": 8, "stories": 2}[task] == len(expected)
    assert found == pytest.approx(expected, abs=WITHIN)
    assert all(value < 0 for value in found)


@pytest.mark.parametrize("model", ["gguf", "hf"])
def test_the_right_answers(told: dict[str, Any], model: str) -> None:
    """The right ending is the likeliest of each question."""
    assert 1 == told[model]["accuracy"]
