"""Tests of unilect.cli._ollama_variables."""

from typing import Any

import pytest

from unilect.cli._ollama_variables import model_options


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
