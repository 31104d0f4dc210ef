"""
The draft model of a GGUF model: a small one of the same vocabulary, whose tokens the model checks several at a time.

llama.cpp goes on without it where the vocabularies differ, and says so in its log alone. So their sizes and kinds are compared before it is started, and
its child looks at the slots before it is ready.

Source: https://github.com/ggml-org/llama.cpp/blob/master/common/speculative.cpp (common_speculative_are_compatible)
"""

from pathlib import Path

from unilect.config.model import ModelConfig
from unilect.engines.gguf._file import GgufHead, read_model

NGRAM = "ngram"
_MOST_APART = 128  # tokens
_KIND = "tokenizer.ggml.model"


def draft_of(config: ModelConfig) -> Path | None:
    """Return the file of the draft model; None where there is none."""
    return Path(config.speculative) if config.speculative not in (None, NGRAM) else None


def check_draft(path: Path, head: GgufHead) -> None:
    """
    Check a draft model.

    Args:
        head: The model's own.

    Raises:
        ValueError: It is no model, or has another vocabulary.
    """
    draft = read_model(path)
    kinds = [str(one.fields.get(_KIND, "none")) for one in (draft, head)]  # somebody's texts
    sizes = [one.vocabulary for one in (draft, head)]
    if kinds[0] != kinds[1] or abs(sizes[0] - sizes[1]) > _MOST_APART:
        raise ValueError(
            f"speculative: {path} cannot draft for this model: its vocabulary has {sizes[0]} tokens of the kind {kinds[0][:50]!r}, the model's {sizes[1]} of {kinds[1][:50]!r}. "
            "Take a small model of the same family, or `ngram`."
        )
