"""
The settings of a GGUF model, checked before its start, and those that its child gets.
"""

from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.constraints.checker import MODEL as DEMO
from unilect.engines.gguf._draft import NGRAM, check_draft, draft_of
from unilect.engines.gguf._file import GgufHead, check_projector, model_files
from unilect.engines.gguf._lora import Adapters
from unilect.engines.gguf._memory import needs
from unilect.engines.process.loads import LoadRecorder, load_key
from unilect.engines.settings import read_checked

_LIBRARY = "xllamacpp"
#: The settings that change what a child takes of memory.
_TAKEN_BY = ("context", "parallel", "batch", "gpu_layers", "mmproj", "cache_type_k", "cache_type_v", "embedding", "lora", "speculative", "draft_max", "repack")  # fmt: skip


def child_settings(
    name: str,
    path: Path,
    head: GgufHead,
    config: ModelConfig,
    *,
    context: int,
    threads: int,
    lora: list[tuple[str, float]],
    template: str | None,
    engines: int,
    memory: int | None,
    embedding: bool,
) -> dict[str, Any]:
    """Make the settings of a child, without its socket and its key."""
    takes = needs(head, config, context, embedding)
    pooling = "rank" if head.ranks else None if head.pooling else "mean"
    return {
        "name": name,
        "path": str(path),
        "needs": msgspec.to_builtins(takes),
        "takes_bytes": takes.own,
        "context": context,
        "parallel": 1 if embedding else config.most_parallel,
        "threads": threads,
        "batch": config.batch,
        "gpu_layers": config.gpu_layers,
        "lora": lora,
        "mmproj": None if embedding else config.mmproj,
        "chat_template": template,
        "tried_templates": [] if embedding else to_try(path, head, template),
        "trial_model": str(DEMO),
        "cache_ram_mib": 0 if embedding else config.cache_ram_mib,
        "engines": engines,
        "memory_bytes": memory,
        "cache_type_k": config.cache_type_k,
        "cache_type_v": config.cache_type_v,
        "embedding": embedding,
        "pooling": config.pooling or pooling,
        "speculative": None if embedding else config.speculative,
        "draft_max": config.draft_max,
        "repack": config.repack,
        "context_shift": config.context_shift and not embedding,
        "main_gpu": config.main_gpu,
        "split_mode": config.split_mode,
        "tensor_split": config.tensor_split,
    }


def load_recorder(path: Path, settings: dict[str, Any]) -> LoadRecorder:
    """Return what measures the loads of a file with the settings of its child; on a GPU nobody sees all that it takes."""
    told = {name: settings[name] for name in _TAKEN_BY} | {_LIBRARY: _library_version()}
    paths = [*model_files(path), *(Path(adapter) for adapter, _ in settings["lora"])]
    paths += [Path(settings["mmproj"])] if settings["mmproj"] else []
    if settings["speculative"] not in (None, NGRAM):
        paths += model_files(Path(settings["speculative"]))
    key = load_key(paths, told)
    return LoadRecorder(key, settings["needs"]["weights"], lambda said: not said["devices"])


@cache
def _library_version() -> str:
    return version(_LIBRARY)  # 3 ms, which every model would take twice


def to_try(path: Path, head: GgufHead, template: str | None) -> list[str]:
    """Return the chat templates to try before the model is loaded: all that somebody else has written."""
    own = [] if path.samefile(DEMO) else head.templates
    return own if template is None else [template]


def read_beside(head: GgufHead, config: ModelConfig) -> tuple[Adapters, str | None, list[str]]:
    """
    Return what a table adds to its model: the adapters, the Jinja of `chat_template`, and the stop words that belong to it.

    Raises:
        ConfigError: Something is wrong with it, with the projector or with the draft model; all is told.
    """
    found = ErrorCollector()
    adapters, template, stop = Adapters([]), None, list[str]()
    with found:
        adapters = Adapters(config.lora)
    if config.mmproj:
        with found:
            read_checked(check_projector, Path(config.mmproj))
    if (draft := draft_of(config)) is not None:
        with found:
            read_checked(partial(check_draft, head=head), draft)
    if config.speculative and config.mmproj:
        found.add(
            "speculative: llama.cpp does not draft for a model with `mmproj`. Leave one of the two out."
        )
    if config.context_shift and config.mmproj:
        found.add(
            "context_shift: llama.cpp does not shift the context of a model with `mmproj`. Leave one of the two out."
        )
    if config.chat_template is not None:
        from unilect.templates import chat as templates  # with Jinja, which takes 30 ms to import

        with found:
            form = templates.read(config.chat_template)
            template, stop = templates.jinja(form), form.stop
            templates.check_syntax(config.chat_template, template)
    found.raise_all()
    return adapters, template, stop
