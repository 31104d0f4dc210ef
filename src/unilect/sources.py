"""
A model is a URL: from a source to the backend that answers for it.

`BACKENDS` names the factory of each scheme; a factory takes a `Place` and returns a Backend that has not been started. From
outside the tree a backend is an entry point in the group `unilect.backends`, named after its scheme.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from msgspec import Struct

from unilect.backend import Backend
from unilect.config import Config, ModelConfig
from unilect.errors import ConfigError
from unilect.registry import Model, Registry, check_defaults
from unilect.requests import ChatRequest, CompletionRequest

Progress: TypeAlias = Callable[[str, str, float], None]
DEMO = "demo"
_SCHEME = re.compile(r"^([a-z0-9+.-]+):(.*)$", re.DOTALL)

#: scheme -> factory of its backend, and whether the model runs here (and so shares the processor)
BACKENDS = {
    "demo": ("unilect.demo:backend", True),
    "gguf": ("unilect.engines.gguf:backend", True),
    "hf": ("unilect.engines.hf:backend", True),
    "http": ("unilect.upstreams.openai:backend", False),
    "https": ("unilect.upstreams.openai:backend", False),
    "openai+http": ("unilect.upstreams.openai:backend", False),
    "openai+https": ("unilect.upstreams.openai:backend", False),
}


class Place(Struct, frozen=True):
    """
    Where a backend is to be made.

    Attributes:
        name: The model's name.
        scheme: The scheme of its source.
        location: The rest of its source.
        config: Its settings.
        threads: Processor threads for an engine.
        progress: Told what is going on (`loading`, `downloading`) and how far it is, from 0 to 1.
        shared: What the backends of one configuration share, such as one base for several adapters.
    """

    name: str
    scheme: str
    location: str
    config: ModelConfig
    threads: int
    progress: Callable[[str, float], None]
    shared: dict[Any, Any] = {}


def registry(config: Config, progress: Progress | None = None) -> Registry:
    """
    The models of a configuration, none of them started; the bundled one where it names none.

    Args:
        progress: Called with a model's name, what is going on, and a fraction.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    models = config.models or {DEMO: ModelConfig()}
    places = [(name, *split(model.source)) for name, model in models.items()]
    # models of transformers with one folder share an engine
    engines = len(
        {place[1:] if place[1] == "hf" else place for place in places if _is_engine(place[1])}
    )
    threads = max(1, (_cores() - 1) // max(1, engines))
    shared: dict[Any, Any] = {}
    return Registry(
        _model(name, model, threads, progress, shared) for name, model in models.items()
    )


def split(source: str) -> tuple[str, str]:
    """
    Scheme and location of a source; a path is told by its ending.

    Raises:
        ConfigError: It is nothing that can be served.
    """
    if source in ("", DEMO):
        return DEMO, ""
    match = _SCHEME.match(source)
    if match is not None and (match.group(1) in BACKENDS or match.group(1) in _outside()):
        return match.group(1), match.group(2)
    if source.endswith(".gguf"):
        return "gguf", source
    if os.path.isdir(source):
        return "hf", source
    if re.fullmatch(r"(localhost|[\w.-]+\.\w+|\d+(\.\d+){3})(:\d+)?(/\S*)?", source):
        raise ConfigError(f"{source}: a server needs its scheme; write http://{source}.")
    schemes = ", ".join(f"{scheme}:" for scheme in BACKENDS)
    raise ConfigError(f"{source}: there is no such file, and its scheme is none of {schemes}.")


def named(argument: str, taken: Iterable[str] = ()) -> tuple[str, str]:
    """
    Name and source of an argument `[NAME=]SOURCE`; a source without a name gets one.

    >>> named("m=http://gpu:8000/v1")
    ('m', 'http://gpu:8000/v1')
    >>> named("models/qwen3-4b-q8_0.gguf")
    ('qwen3-4b-q8_0', 'models/qwen3-4b-q8_0.gguf')
    """
    name, equals, source = argument.partition("=")
    if equals and re.fullmatch(r"[A-Za-z0-9._:@+-]+", name):
        return name, source
    scheme, location = split(argument)
    name = DEMO if scheme == DEMO else re.sub(r"\.gguf$", "", location.rstrip("/").split("/")[-1])
    if "http" in scheme:
        name = "default"
    name = re.sub(r"[^A-Za-z0-9._:@+-]", "-", name) or "model"
    while name in set(taken):
        name += "-2"
    return name, argument


def _model(
    name: str,
    config: ModelConfig,
    threads: int,
    progress: Progress | None,
    shared: dict[Any, Any],
) -> Model:
    scheme, location = split(config.source)
    check_defaults(name, config.defaults, ChatRequest, CompletionRequest)
    # so small a model is at its best when it takes the likeliest token
    defaults = {"temperature": 0.0} | config.defaults if scheme == DEMO else config.defaults

    def report(what: str, fraction: float) -> None:
        if progress is not None:
            progress(name, what, fraction)

    place = Place(name, scheme, location, config, threads, report, shared)
    try:
        backend = _factory(scheme)(place)
    except ConfigError as error:
        raise ConfigError(f"models.{name}: {error}") from error
    return Model(
        name,
        backend,
        source=config.source,
        aliases=config.aliases,
        defaults=defaults,
        unsupported=config.unsupported,
        idle_stop_s=config.idle_stop_s,
        required=not scheme.endswith(("http", "https")),
        created=int(time.time()),
    )


def _factory(scheme: str) -> Callable[[Place], Backend]:
    if scheme not in BACKENDS:
        factory: Callable[[Place], Backend] = _outside()[scheme].load()
        return factory
    module, _, function = BACKENDS[scheme][0].partition(":")
    found: Any = getattr(import_module(module), function)
    return found  # type: ignore[no-any-return]


def _outside() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="unilect.backends")}


def _is_engine(scheme: str) -> bool:
    return BACKENDS[scheme][1] if scheme in BACKENDS else False


def _cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
