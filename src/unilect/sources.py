"""
A model is a URL: from a source to the backend that answers for it.

`BACKENDS` names the factory of each scheme; a factory takes a `Place` and returns a Backend that has not been started. From
outside the tree a backend is an entry point in the group `unilect.backends`, named after its scheme.
"""

import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from msgspec import Struct

from unilect.backend import Backend
from unilect.config import Config
from unilect.errors import ConfigError
from unilect.model_config import ModelConfig
from unilect.model_kinds import ENGINES, check_options
from unilect.pool import Member
from unilect.registry import Model, Registry, check_defaults
from unilect.requests import ChatRequest, CompletionRequest

Progress: TypeAlias = Callable[[str, str, float], None]
DEMO = "demo"
ALL = "*"  # as a table's `model`: all that its server has, see discovery.py
_SCHEME = re.compile(r"^([a-z0-9+.-]+):(.*)$", re.DOTALL)

#: scheme -> factory of its backend, and its kind (see model_kinds.py)
BACKENDS = {
    "chatglm": ("unilect.engines.chatglm:backend", "chatglm"),
    "demo": ("unilect.demo:backend", "gguf"),
    "gguf": ("unilect.engines.gguf:backend", "gguf"),
    "hf": ("unilect.engines.hf:backend", "hf"),
    "http": ("unilect.upstreams.openai:backend", "openai"),
    "https": ("unilect.upstreams.openai:backend", "openai"),
    "openai+http": ("unilect.upstreams.openai:backend", "openai"),
    "openai+https": ("unilect.upstreams.openai:backend", "openai"),
    "fastchat+http": ("unilect.upstreams.fastchat:backend", "fastchat"),
    "fastchat+https": ("unilect.upstreams.fastchat:backend", "fastchat"),
    "llamacpp+http": ("unilect.upstreams.llamacpp:backend", "llamacpp"),
    "llamacpp+https": ("unilect.upstreams.llamacpp:backend", "llamacpp"),
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
        engines: How many engines the server has.
    """

    name: str
    scheme: str
    location: str
    config: ModelConfig
    threads: int
    progress: Callable[[str, float], None]
    shared: dict[Any, Any] = {}
    engines: int = 1


def registry(config: Config, progress: Progress | None = None) -> Registry:
    """
    The models of a configuration, none of them started.

    Args:
        progress: Called with a model's name, what is going on, and a fraction.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    models = served(config)
    sources = [(name, *split(source)) for name, one in models.items() for source in one.sources]
    # models of transformers with one folder share an engine
    engines = max(
        1, len({one[1:] if one[1] == "hf" else one for one in sources if _is_engine(one[1])})
    )
    threads = max(1, (_cores() - 1) // engines)
    for name, one in models.items():
        if one.model == ALL:  # these say what is wrong with it
            _lister(name, one)
            model(name, one)
        fallback = models.get(one.fallback or "")
        if fallback is not None and fallback.model == ALL:
            raise ConfigError(
                f"models.{name}.fallback: `{one.fallback}` is no model, but all models of a server."
            )
    shared: dict[Any, Any] = {}
    return Registry(
        model(name, one, threads, progress, shared, engines)
        for name, one in models.items()
        if one.model != ALL
    )


def served(config: Config) -> dict[str, ModelConfig]:
    """The models of a configuration; the bundled one where it names none and no worker may bring any."""
    return config.models or ({} if config.fastchat_controller else {DEMO: ModelConfig()})


async def list_models(name: str, config: ModelConfig) -> list[str]:
    """
    The names of all models of a table's server, where its `model` is `*`.

    Raises:
        UnilectError: The server cannot be asked.
    """
    scheme, location = split(config.sources[0])
    return await _lister(name, config)(Place(name, scheme, location, config, 1, _silent))


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


def kinds(config: ModelConfig) -> dict[str, str]:
    """
    The kind of each source of a model; of a backend from outside its scheme.

    Raises:
        ConfigError: A source is nothing that can be served.
    """
    schemes = {source: split(source)[0] for source in config.sources}
    return {
        source: BACKENDS[scheme][1] if scheme in BACKENDS else scheme
        for source, scheme in schemes.items()
    }


def named(argument: str, taken: Iterable[str] = ()) -> tuple[str, str]:
    """
    Name and source of an argument `[NAME=]SOURCE`; a source without a name gets one.

    >>> named("m=http://gpu:8000/v1")
    ('m', 'http://gpu:8000/v1')
    >>> named("models/qwen3-4b-q8_0.gguf")
    ('qwen3-4b-q8_0', 'models/qwen3-4b-q8_0.gguf')
    """
    name, equals, source = argument.partition("=")
    if equals and re.fullmatch(r"[A-Za-z0-9._:@+-]+|[*]", name):
        return name, source
    scheme, location = split(argument)
    name = (
        DEMO
        if scheme == DEMO
        else re.sub(r"\.(gguf|bin)$", "", location.rstrip("/").split("/")[-1])
    )
    if "http" in scheme:
        name = "default"
    name = re.sub(r"[^A-Za-z0-9._:@+-]", "-", name) or "model"
    while name in set(taken):
        name += "-2"
    return name, argument


def model(
    name: str,
    config: ModelConfig,
    threads: int = 1,
    progress: Progress | None = None,
    shared: dict[Any, Any] | None = None,
    engines: int = 1,
) -> Model:
    """
    The model of a table, not started.

    Args:
        shared: What the backends of one configuration share.
        engines: How many engines the server has.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    schemes = {split(source)[0] for source in config.sources}
    children = {} if shared is None else shared
    check_options(name, config, kinds(config))
    check_defaults(name, config.defaults, ChatRequest, CompletionRequest)
    check_defaults(name, config.completion_defaults, CompletionRequest)
    # so small a model is at its best when it takes the likeliest token
    defaults = {"temperature": 0.0} | config.defaults if schemes == {DEMO} else config.defaults

    def report(what: str, fraction: float) -> None:
        if progress is not None:
            progress(name, what, fraction)

    def member(source: str) -> Member:
        scheme, location = split(source)
        place = Place(name, scheme, location, config, threads, report, children, engines)
        try:
            return Member(_factory(scheme)(place), source)
        except ConfigError as error:
            raise ConfigError(f"models.{name}: {error}") from error

    return Model(
        name,
        [member(source) for source in config.sources],
        aliases=config.aliases,
        defaults=defaults,
        prepare=_prepare(name, config),
        unsupported=config.unsupported,
        fallback=config.fallback,
        idle_stop_s=config.idle_stop_s,
        required=not any(scheme.endswith(("http", "https")) for scheme in schemes),
        created=int(time.time()),
    )


def _prepare(name: str, config: ModelConfig) -> Callable[[Any], Any]:
    if not (config.stop or config.completion_template or config.completion_defaults):
        return lambda request: request
    from unilect.preparation import preparation  # with Jinja, which takes 30 ms to import

    try:
        return preparation(config)
    except ConfigError as error:
        raise ConfigError(f"models.{name}: {error}") from error


def _factory(scheme: str) -> Callable[[Place], Backend]:
    if scheme not in BACKENDS:
        factory: Callable[[Place], Backend] = _outside()[scheme].load()
        return factory
    module, _, function = BACKENDS[scheme][0].partition(":")
    found: Any = getattr(import_module(module), function)
    return found  # type: ignore[no-any-return]


def _lister(name: str, config: ModelConfig) -> Callable[[Place], Awaitable[list[str]]]:
    """
    What lists the models of a table's server: `list_models` beside the factory of its backend.

    Raises:
        ConfigError: It is no server, or no single one.
    """
    scheme = split(config.sources[0])[0]
    module = BACKENDS[scheme][0].partition(":")[0] if scheme in BACKENDS else ""
    found: Any = getattr(import_module(module), "list_models", None) if module else None
    if found is None or len(config.sources) > 1:
        raise ConfigError(
            f'models.{name}: `model = "*"` needs one source, a server of many models.'
        )
    return found  # type: ignore[no-any-return]


def _silent(what: str, fraction: float) -> None:
    """Nobody waits for this."""


def _outside() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="unilect.backends")}


def _is_engine(scheme: str) -> bool:
    return scheme in BACKENDS and BACKENDS[scheme][1] in ENGINES


def _cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
