"""
Ollama's variables about models, as options here.

Source: https://github.com/ollama/ollama/blob/main/envconfig/config.go
"""

from collections.abc import Callable, Mapping
from typing import Any

from unilect.config.model import ModelConfig
from unilect.core.durations import parse_duration
from unilect.core.errors import ConfigError
from unilect.models.sources import kind_of, split

_LEAST_IDLE_S = 0.1  # Ollama's 0 is at once


def _idle_s(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if seconds < 0 else max(_LEAST_IDLE_S, seconds)


#: variable -> the options, what it may be, and how it is read; where it reads as nothing it is Ollama's word for its default
_VARIABLES: dict[str, tuple[tuple[str, ...], str, Callable[[str], Any]]] = {
    "OLLAMA_CONTEXT_LENGTH": (("context",), "a number", int),
    "OLLAMA_KEEP_ALIVE": (("idle_stop_s",), "a duration such as 5m, or -1", _idle_s),
    "OLLAMA_KV_CACHE_TYPE": (("cache_type_k", "cache_type_v"), "a type such as q8_0", str),
    "OLLAMA_MAX_QUEUE": (("max_queue",), "a number", int),
    "OLLAMA_NUM_PARALLEL": (("parallel",), "a number", int),
}
NAMES = tuple(_VARIABLES)


def model_options(environment: Mapping[str, str], source: str) -> dict[str, Any]:
    """
    Return the options that the variables say of a model, as far as they have an effect on its source.

    Raises:
        ConfigError: One of them cannot be read.
    """
    found: dict[str, Any] = {}
    kind = kind_of(split(source)[0])
    for variable, (names, expected, read) in _VARIABLES.items():
        if not (text := environment.get(variable, "")):
            continue
        try:
            value = read(text)
        except ValueError as error:
            raise ConfigError(f"{variable}: expected {expected}, got {text[:50]!r}.") from error
        if value:
            found |= {
                name: value for name in names if ModelConfig.declared[name].applies_to([kind])
            }
    return found
