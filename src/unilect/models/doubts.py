"""Doubts about the tables of models: what is allowed, and hardly meant."""

import os
from collections.abc import Callable, Iterator, Mapping

from unilect.config.kinds import ENGINES
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig

_DEMO = "demo"


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def doubts(
    models: Mapping[str, ModelConfig], kinds: Callable[[ModelConfig], Mapping[str, str]]
) -> Iterator[str]:
    """
    Yield what is allowed among the tables of models, and hardly meant.

    Args:
        kinds: Returns the kind of each source of a table; raises ConfigError for one that cannot be served.
    """
    names: dict[tuple[str, ...], str] = {}
    for name, table in models.items():
        if table.base is not None:
            continue
        kinds_of = set[str]()
        with ErrorCollector():  # told where its backend is made
            kinds_of = {*kinds(table).values()}
        if table.threads is not None and table.threads > cores() and kinds_of & {*ENGINES}:
            yield (
                f"models.{name}: threads: {table.threads} threads on {cores()} cores make an engine very slow. Leave `threads` out, "
                f"or set at most {cores()}."
            )
        other = names.setdefault((*table.sources, table.model or "", *table.lora), name)
        is_large = "gguf" in kinds_of and not {*table.sources} & {"", _DEMO, f"{_DEMO}:"}
        if other != name and is_large and table.replicas is None:
            yield (
                f"models.{name}: its file is that of models.{other}, too, and is loaded twice. For another name, or other "
                f'settings of requests, write `base = "{other}"` instead of `source`.'
            )
