"""
Ollama's variables about models, as options here.

Source: https://github.com/ollama/ollama/blob/main/envconfig/config.go
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from unilect.config.model import ModelConfig
from unilect.core.durations import parse_duration
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.engines.gguf.file_facts import describe
from unilect.hub import download as hub
from unilect.models.sources import DEMO, kind_of, split

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
    Return the options that the variables say of a model, as far as they have an effect on its source; a context that is longer than that of
    a file is the file's, as with Ollama.

    Raises:
        ConfigError: One of them cannot be read.
    """
    found: dict[str, Any] = {}
    scheme, location = split(source)
    kind = kind_of(scheme)
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
    if "context" in found and (longest := _longest(scheme, location)) is not None:
        found["context"] = min(found["context"], longest)
    return found


def _longest(scheme: str, location: str) -> int | None:
    """Return the longest context of a GGUF file that is here; None where there is none, or its head is damaged, which its engine tells."""
    if kind_of(scheme) != "gguf":
        return None
    with suppress(ValueError, ConfigError):
        path = MODEL if scheme == DEMO else hub.local_copy(location)
        return None if path is None else describe(path).context
    return None
