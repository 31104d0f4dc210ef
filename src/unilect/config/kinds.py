"""
The kinds of sources that models have, and which settings of a model belong to which: one that would have no effect is refused.
"""

from collections.abc import Iterable, Mapping

from unilect.config.fleet import check_replicas
from unilect.config.model import ModelConfig
from unilect.mistakes import Mistakes
from unilect.redact import redacted

#: kind -> what it is called in messages
KINDS = {
    "gguf": "GGUF models",
    "hf": "transformers models",
    "chatglm": "chatglm.cpp models",
    "openai": "OpenAI-compatible servers",
    "llamacpp": "llama.cpp servers",
    "fastchat": "FastChat controllers",
    "echo": "`echo:` and backends of plugins",
}
#: scheme -> kind; of a scheme that another package brings, itself
KIND_OF = {
    "chatglm": "chatglm",
    "demo": "gguf",
    "echo": "echo",
    "gguf": "gguf",
    "hf": "hf",
    **dict.fromkeys(("http", "https", "openai+http", "openai+https"), "openai"),
    **dict.fromkeys(("fastchat+http", "fastchat+https"), "fastchat"),
    **dict.fromkeys(("llamacpp+http", "llamacpp+https"), "llamacpp"),
}
ENGINES = ("gguf", "hf", "chatglm")
UPSTREAMS = ("openai", "llamacpp", "fastchat")
_BATCHED = ("gguf", "hf")

#: The options that not all kinds have, by the kinds that have them.
_ONLY = {
    ENGINES: "context threads start_timeout_s",
    _BATCHED: "parallel batch lora cache_ram_mib pooling hang_timeout_s",
    ("gguf", "hf", "openai"): "share_cache",
    ("gguf",): "gpu_layers mmproj cache_type_k cache_type_v slot_save_path",
    ("hf",): "dtype device quantize trust_remote_code allow_pickle rope_scaling tokenizer",
    ("gguf", "hf", "llamacpp", "fastchat"): "chat_template",
    UPSTREAMS: "model reuse_connections",
    ("openai", "llamacpp"): "api_key api_key_header",
    ("fastchat",): "embedding_batch",
    ("openai",): "whole_answers",
    (*UPSTREAMS, "echo"): "max_in_flight",
    ("echo",): "options",
    (*ENGINES, "echo"): "replicas resources accelerator",
}
_REPLICATED = ("parallel", "start_timeout_s")  # which each model has that runs as replicas
#: option -> the kinds that have it; what is not here, all have
OPTIONS = {option: kinds for kinds, options in _ONLY.items() for option in options.split()}


def has(option: str, kinds: Iterable[str]) -> bool:
    """Whether an option has an effect on a model with sources of these kinds; of a kind from outside nothing is known."""
    return any(kind in OPTIONS.get(option, KINDS) or kind not in KINDS for kind in kinds)


def check_options(name: str, config: ModelConfig, kinds: Mapping[str, str]) -> None:
    """
    Settings that a model has not.

    Args:
        kinds: The kind of each of its sources.

    Raises:
        ConfigError: An option that differs from its default has no effect on any of the sources; all are told.
    """
    found, default = Mistakes(), ModelConfig()
    for option in ModelConfig.__struct_fields__:
        is_set = getattr(config, option) != getattr(default, option)
        if config.replicas is not None and option in _REPLICATED:
            continue
        if is_set and not has(option, kinds.values()):
            found.add(
                f"models.{name}: {option}: applies to {in_words(OPTIONS[option])}; it has no effect on "
                f"{redacted(' or '.join(kinds))}; leave it out.",
                ("models", name, option),
            )
    with found:
        check_replicas(name, config)
    found.raise_all()


def in_words(kinds: tuple[str, ...]) -> str:
    """What some kinds are called, as a list of words."""
    *others, last = (KINDS[kind] for kind in kinds)
    return f"{', '.join(others)} and {last}" if others else last
