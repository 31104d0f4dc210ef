"""
The draft model of a GGUF model: a small one of the same vocabulary, whose tokens the model checks several at a time.

llama.cpp goes on without it where the vocabularies differ, and says so in its log alone. So their sizes and kinds are compared before it is started, and
the slots are asked afterwards.

Source: https://github.com/ggml-org/llama.cpp/blob/master/common/speculative.cpp (common_speculative_are_compatible)
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.engines.gguf._file import GgufHead, read_model
from unilect.http.client import HttpServer

NGRAM = "ngram"
_MOST_APART = 128  # tokens
_KIND = "tokenizer.ggml.model"


class _Slot(Struct):
    """A slot, as llama.cpp tells it."""

    speculative: bool = False


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
    kinds = [str(one.fields.get(_KIND, "none")) for one in (draft, head)]
    sizes = [one.vocabulary for one in (draft, head)]
    if kinds[0] != kinds[1] or abs(sizes[0] - sizes[1]) > _MOST_APART:
        raise ValueError(
            f"speculative: {path} cannot draft for this model: its vocabulary has {sizes[0]} tokens of the kind {kinds[0]}, the model's {sizes[1]} of {kinds[1]}. "
            "Take a small model of the same family, or `ngram`."
        )


async def check_drafting(server: HttpServer, config: ModelConfig) -> None:
    """
    Check that a child which has started drafts, where it is to.

    Raises:
        ConfigError: It does not.
    """
    if config.speculative is None:
        return
    slots = msgspec.json.decode(await server.get("/slots"), type=list[_Slot])
    if not all(slot.speculative for slot in slots):
        raise ConfigError(
            f"speculative: llama.cpp cannot draft with {config.speculative} for this model: their vocabularies differ, or the model's memory cannot go "
            "back. Take a small model of the same family, `ngram`, or leave `speculative` out."
        )
