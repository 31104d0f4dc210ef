"""
The settings of a transformers model, checked before its start, and those that its child gets.
"""

from pathlib import Path
from typing import Any

from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.engines.settings import MAX_DEFAULT_CONTEXT
from unilect.engines.transformers.model.folder import Folder, has_tokenizer, must_merge
from unilect.engines.transformers.model.rope import extend_context
from unilect.templates.chat import ChatTemplate


def child_settings(
    folder: Folder,
    config: ModelConfig,
    template: ChatTemplate | None,
    *,
    text: str,
    threads: int,
    merge: list[str],
    engines: int,
) -> dict[str, Any]:
    """
    Make the settings of the child.

    Args:
        template: The chat template that is configured.
        text: The chat template's text, as far as it is known before the tokenizer is loaded.

    Raises:
        ConfigError: A setting does not fit this folder, or this engine.
    """
    longest = _longest(folder, config)
    _check(folder, config, longest)
    return {
        "path": str(folder.path),
        "generates": folder.generates,
        "ranks": _ranks(folder, config),
        "size_bytes": folder.size_bytes,
        "stored_bytes": folder.stored_bytes,
        "embedding_values": folder.embedding_values,
        "tied": folder.tied,
        "cache_values": folder.cache_values if folder.generates else 0,
        "cache_ram_mib": config.cache_ram_mib,
        "engines": engines,
        "context": config.context or min(longest, MAX_DEFAULT_CONTEXT),
        "parallel": config.most_parallel,
        "threads": threads,
        "batch": config.batch,
        "dtype": config.dtype,
        "device": config.device,
        "quantize": config.quantize,
        "trust_remote_code": config.trust_remote_code,
        "allow_pickle": config.allow_pickle,
        "tokenizer": config.tokenizer,
        "rope_scaling": config.rope_scaling,
        "chat_template": text if config.chat_template or config.tokenizer else "",
        "tried_template": text if folder.generates else "",
        "foreign_template": template is not None,
        "stop": template.stop if template else (),
        "stop_token_ids": template.stop_token_ids if template else (),
        "pooling": config.pooling or folder.pooling or "mean",
        "merge": merge,
    }


def _ranks(folder: Folder, config: ModelConfig) -> str:
    """
    Return the form in which the model reads the pairs that it ranks; empty where it does not rank.

    Raises:
        ConfigError: `pooling` is `rank`, and the model is not a reranker.
    """
    if config.pooling is None:
        return folder.ranks
    if config.pooling != "rank":
        return ""
    is_qwen3 = folder.generates and folder.text_config.get("model_type") == "qwen3"
    if ranks := folder.ranks or ("qwen3" if is_qwen3 else ""):
        return ranks
    raise ConfigError(
        f"pooling: `rank` needs a classifier of one label (`...ForSequenceClassification`) or a Qwen3-Reranker, and {folder.path} is "
        "neither. Leave `pooling` out, or name another model."
    )


def _longest(folder: Folder, config: ModelConfig) -> int:
    """
    The longest context that the model can have.

    Raises:
        ConfigError: It cannot be stretched.
    """
    if config.rope_scaling is None:
        return folder.context
    if folder.own_code and config.trust_remote_code:
        raise ConfigError(
            f"rope_scaling: {folder.path} has custom code, which sets its own RoPE. Leave `rope_scaling` out."
        )
    return extend_context(config.rope_scaling, folder.text_config, folder.positions)


def _check(folder: Folder, config: ModelConfig, longest: int) -> None:
    if config.context is not None and config.context > longest:
        reason = "`rope_scaling` allows" if config.rope_scaling else "the model was trained for"
        raise ConfigError(
            f"context: {config.context} is more than the {longest} tokens that {reason}. Set at most {longest}."
        )
    if config.tokenizer is not None and not has_tokenizer(Path(config.tokenizer)):
        raise ConfigError(
            f"tokenizer: {config.tokenizer} is not a folder with a tokenizer. Name one."
        )
    if folder.pickled and not config.allow_pickle:
        raise ConfigError(
            f"{folder.path}: its weights are pickles, which can run code when loaded. Get them as "
            "*.safetensors, or set `allow_pickle = true` if you trust the source."
        )


def merges(adapters: list[tuple[str, float]]) -> bool:
    """
    Raises:
        ConfigError: An adapter that must be merged has a scale.
    """
    merge = any([must_merge(Path(path)) for path, _ in adapters])
    if merge and any(scale != 1.0 for _, scale in adapters):
        raise ConfigError(
            "lora: an adapter with full layers (modules_to_save) cannot be scaled. Leave the scale out."
        )
    return merge
