"""Tests of unilect.cli._ollama_variables."""

from pathlib import Path
from typing import Any

import pytest

from unilect.cli._ollama_variables import model_options
from unilect.demo import MODEL


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("CONTEXT_LENGTH", "4096", {"context": 4096}),
        ("CONTEXT_LENGTH", "0", {}),
        ("NUM_PARALLEL", "1", {"parallel": 1}),
        ("NUM_PARALLEL", "0", {}),
        ("KEEP_ALIVE", "-1", {}),
        ("KEEP_ALIVE", "24h", {"idle_stop_s": 86_400.0}),
        ("KEEP_ALIVE", "0", {"idle_stop_s": 0.1}),
        ("KV_CACHE_TYPE", "q8_0", {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        ("MAX_QUEUE", "512", {"max_queue": 512}),
        ("MAX_QUEUE", "", {}),
        ("SCHED_SPREAD", "1", {}),
    ],
)
def test_a_variable(name: str, text: str, options: dict[str, Any]) -> None:
    """A variable says an option of a model, or that it is as by default."""
    assert options == model_options({f"OLLAMA_{name}": text}, "x.gguf")


def test_what_a_source_does_not_have() -> None:
    """An option that has no effect on a source is left out, and the others stay."""
    given = {"OLLAMA_CONTEXT_LENGTH": "1", "OLLAMA_NUM_PARALLEL": "1", "OLLAMA_MAX_QUEUE": "7"}

    assert {"max_queue": 7} == model_options(given, "http://h/v1")


def test_a_context_that_a_model_does_not_have(tmp_path: Path) -> None:
    """A context for all models is that of a file which has a shorter one, and as it is said for a file that cannot be read, and one that is not here."""
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    given = {"OLLAMA_CONTEXT_LENGTH": "32768"}
    sources = ["demo:", str(MODEL), str(tmp_path / "damaged.gguf"), "gguf:org/repo/m.gguf"]

    assert [2048, 2048, 32_768, 32_768] == [model_options(given, one)["context"] for one in sources]
