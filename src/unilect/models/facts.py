"""A model in one line, for the start screen and the model page: the kind of its backends, and its limits."""

from pathlib import Path

from unilect.config.kinds import COMMANDS, KINDS, UPSTREAMS
from unilect.config.model import ModelConfig
from unilect.config.paths import adapter_of
from unilect.models.model import Model
from unilect.models.sources import DEMO, kind_of
from unilect.runtime import plugins
from unilect.scheduling.pooled_backend import PooledBackend

#: kind -> what it is called where one model is spoken of
_WORDS = {
    "gguf": "GGUF on llama.cpp",
    "hf": "transformers",
    "chatglm": "chatglm.cpp",
    "program": "a server by",
    "openai": "a server of OpenAI's API",
    "llamacpp": "a llama.cpp server",
    "fastchat": "a FastChat controller",
    "command": "a server by",
}


def kind(model: Model) -> str:
    """The kind of a model's backends, without a path or an address: `GGUF on llama.cpp`."""
    words = [backend_name(member.scheme) for member in model.pool.members]
    counted = [
        f"{words.count(word)} x {word}" if words.count(word) > 1 else word
        for word in dict.fromkeys(words)
        if word
    ]
    return " and ".join(counted) or "a backend"


def backend_name(scheme: str) -> str:
    """The name of a scheme's backend; for a plugin with its package."""
    if scheme == DEMO:
        return "the bundled model"
    if not scheme or scheme in plugins.ours(plugins.BACKENDS):
        return _WORDS.get(kind_of(scheme), scheme)
    return f"{scheme} of {plugins.package(plugins.find_others(plugins.BACKENDS)[0][scheme])}"


def limits(model: Model) -> list[str]:
    """List the limits of a model as short texts, such as its context, as far as they are known before its start."""
    can = model.capabilities
    told = [f"context {can.context}"] if can.context is not None else []
    if can.completions and not can.chat:
        told.append("no chat template, so no chat completions")
    if not can.chat and not can.completions:
        told.append("rerank only" if can.rerank and not can.embeddings else "embeddings only")
    if model.state in ("out", "failed"):
        told.append("does not answer now")
    return told


def beside_weights(config: ModelConfig) -> list[str]:
    """Return the files that a table adds to its model, without their folders: adapters, and a projector."""
    adapters = [Path(adapter_of(text)[0]).name for text in config.lora]
    told = [f"LoRA {', '.join(adapters)}"] if adapters else []
    return [*told, f"mmproj {Path(config.mmproj).name}"] if config.mmproj else told


def traits(model: Model, config: ModelConfig | None) -> list[str]:
    """Return the limits of a model, and the files that its table adds to it."""
    return [*limits(model), *(beside_weights(config) if config is not None else [])]


def line(model: Model, config: ModelConfig | None) -> str:
    """
    Return a model in one line of the start screen.

    Args:
        config: Its table; None for one that a server or a worker has brought.
    """
    if model.base is not model:
        return f"a preset of {model.base.name}"
    members = model.pool.members
    places = [where for member in members if (where := _place(member, len(members) > 1))]
    told = [" ".join([kind(model), ", ".join(places)]).rstrip(), *traits(model, config)]
    if config is not None:
        kinds = {kind_of(member.scheme) for member in members} - {*COMMANDS}
        if ModelConfig.declared["parallel"].applies_to(kinds & KINDS.keys()):
            told.append(f"{model.slots or config.most_parallel} at a time")
        if config.load == "demand":
            told.append("starts with its first request")
    return ", ".join(told)


def _place(member: PooledBackend, among_others: bool) -> str:
    """Return where a backend's model is; among others, also that its server does not answer, which is else the model's state."""
    if member.scheme in ("", DEMO):
        return ""
    asked = kind_of(member.scheme) in UPSTREAMS and member.begun
    return (
        f"{member.source} (does not answer)"
        if among_others and asked and not member.started
        else member.source
    )
