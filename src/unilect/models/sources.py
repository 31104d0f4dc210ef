"""
Makes the backend of a source, which is a URL.

A backend is an entry point in the group `unilect.backends`, named after its scheme (`runtime/plugins.py`): a factory, which takes a `BackendSpec`
and returns a Backend that has not been started. The factory's module may have `Options`, a msgspec Struct: the options in
`[models.NAME.options]`, validated before the factory is called.
"""

import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, structs

from unilect.api.backend import Backend, BackendSpec, Report
from unilect.config.command_line import program_of
from unilect.config.fleet import FleetConfig, check_replicas
from unilect.config.hints import unknown_in
from unilect.config.kinds import COMMANDS, ENGINES, KIND_OF, UPSTREAMS
from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig, check_options
from unilect.config.paths import check_adapters
from unilect.config.presets import resolve_presets
from unilect.config.server import Config, process_environment
from unilect.config.sizes import parse_size
from unilect.config.store import may_have_keys
from unilect.config.values import convert_table
from unilect.constraints.checker import Checker
from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.models import source_hints as hints
from unilect.models.checked_defaults import check_defaults, check_supported
from unilect.models.doubts import cores, doubts
from unilect.models.mistakes import error_scope
from unilect.models.model import Model
from unilect.models.preset import Preset
from unilect.models.registry import Registry
from unilect.models.stays import stays_of
from unilect.residency.residency import Residency
from unilect.runtime import plugins
from unilect.runtime.redact import Secrets, secrets_of
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend, Steps

log = logging.getLogger("unilect")
_Prepare: TypeAlias = Callable[[Any], Any]
DEMO = "demo"
COMMAND = (
    "command"  # the scheme of a table's `command`; its location is the source, with its scheme
)
ALL = "*"  # as a table's `model`: all that its server has, see discovery.py
SCHEME = re.compile(r"^([a-z0-9+.-]+):(.*)$", re.DOTALL)


class Progress(Protocol):
    """A callback that gets for a model what is going on, how far it is, from 0 to 1, and of how many bytes where that is known."""

    def __call__(self, model: str, what: str, part: float, size_bytes: int = 0, /) -> None:
        """Show it."""


def registry(config: Config, progress: Progress | None = None) -> Registry:
    """
    Make the models of a configuration, none of them started.

    Args:
        progress: Told what is going on while models start.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    checker = Checker()
    residency = Residency(parse_size(config.memory), config.swap_wait_s)
    return Registry(build_models(config, checker, progress), checker, residency)


def build_models(config: Config, checker: Checker, progress: Progress | None = None) -> list[Model]:
    """
    Make the models of a configuration, none of them started; tables that stand for all models of a server are left out.

    Args:
        checker: The server's.
        progress: Told what is going on while models start.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    models, found, made = models_of(config), ErrorCollector(), dict[str, Model]()
    common = share(config, checker, progress)
    for name, one in sorted(models.items(), key=lambda item: not item[1].pin):
        if one.base is not None:
            continue
        with found:
            check_server(name, one, models)
        with found:
            of_table = model(name, one, *common)
            made |= {name: of_table} if one.model != ALL else {}
            common = leave_room(common, [of_table])
    for name, one in models.items():
        if one.base is not None:
            check_preset(name, config.models[name], found)
            if one.base in made and not found.errors:
                made[name] = _preset(name, config.models[name], one, made[one.base], found)
    found.raise_all()
    for doubt in doubts(models, kinds):
        log.warning("%s", doubt)
    return [made[name] for name in models if name in made]


class Shared(NamedTuple):
    """Arguments of `model` that all models of a configuration share."""

    threads: int
    progress: Progress | None
    backends: dict[Any, Any]
    checker: Checker
    engines: int
    several_callers: bool
    memory: int | None


def leave_room(shared: Shared, models: Iterable[Model]) -> Shared:
    """Return what models share that are made to fit beside those of these that are pinned."""
    if shared.memory is None:
        return shared
    needs = [need.total for one in models if one.pinned and (need := one.memory_need())]
    return shared._replace(memory=max(0, shared.memory - sum(needs)))


def share(config: Config, checker: Checker, progress: Progress | None = None) -> Shared:
    """Return what the models of a configuration share."""
    engines = _count_engines(models_of(config))
    several = bool(config.api_keys) or may_have_keys(config.store, process_environment())
    threads = max(1, (cores() - 1) // engines)
    memory = parse_size(config.memory)
    return Shared(threads, progress, {FleetConfig: config.fleet}, checker, engines, several, memory)


def check_server(name: str, config: ModelConfig, models: Mapping[str, ModelConfig]) -> None:
    """
    Check a table that stands for all models of a server or a folder: it has one, and is no fallback.

    Raises:
        ConfigError: It is not so.
    """
    fallback = models.get(config.fallback or "")
    if fallback is not None and fallback.model == ALL:
        raise OptionError(
            ("models", name, "fallback"),
            f"`{config.fallback}` is no model, but all models of a server. Name a model.",
        )
    if config.model == ALL:
        with error_scope(name):
            _lister(name, config)


def _count_engines(models: Mapping[str, ModelConfig]) -> int:
    """Count the engines of a server, at least one; transformers models with the same folder share an engine."""
    engines: set[tuple[str, ...]] = set()
    for name, one in models.items():
        for source in one.sources if one.base is None else ():
            with ErrorCollector():  # told where the model is made
                scheme, location = split(source)
                if one.command is not None or _is_engine(scheme):
                    engines.add((scheme, location) if scheme == "hf" else (name, scheme, location))
    return max(1, len(engines))


def models_of(config: Config) -> dict[str, ModelConfig]:
    """
    Return the models of a configuration, presets with what they have of their bases; the bundled one if it has none and no FastChat
    worker may register.
    """
    if not config.models:
        return {} if config.fastchat_controller else {DEMO: ModelConfig()}
    return resolve_presets(config.models)


async def list_models(name: str, config: ModelConfig) -> list[str]:
    """
    List the names of all models of a table's server, where its `model` is `*`.

    Raises:
        UnilectError: The server cannot be asked.
    """
    scheme, location = split(config.sources[0])
    return await _lister(name, config)(BackendSpec(name, scheme, location, config, 1, _silent))


def split(source: str) -> tuple[str, str]:
    """
    Split a source into scheme and location; a path is told by its ending.

    Raises:
        ConfigError: It is nothing that can be served.
    """
    if source in ("", DEMO):
        return DEMO, ""
    source = hints.read_as(source)
    match = SCHEME.match(source)
    if match is not None and is_known(match.group(1)):
        scheme, location = match.groups()
        if not location and kind_of(scheme) in ("gguf", "hf") and scheme != DEMO:
            raise ConfigError(f"{source}: names no model. Write a path or a model of the Hugging Face hub behind it, such as {scheme}:org/repo.")  # fmt: skip
        if not _is_upstream(scheme):
            return scheme, location
        if hints.is_web_file(source):
            return "gguf", source
        return scheme, hints.base_url(location)
    if os.path.isdir(source):
        return "gguf" if hints.holds_ggufs(source) else "hf", source
    if hints.may_be_gguf(source):
        return "gguf", source
    raise ConfigError(hints.unknown(source, [*_ours(), *plugins.find_others(plugins.BACKENDS)[0]]))


def kinds(config: ModelConfig) -> dict[str, str]:
    """
    Return the kind of each source of a model; of a backend from outside its scheme.

    Raises:
        ConfigError: A source is nothing that can be served.
    """
    if config.command is not None:
        return {"a `command`": COMMAND}
    schemes = {source: split(source)[0] for source in config.sources}
    return {source: kind_of(scheme) for source, scheme in schemes.items()}


def kind_of(scheme: str) -> str:
    """Return the kind of a scheme; of one from outside itself."""
    return KIND_OF.get(scheme, scheme)


def model(
    name: str,
    config: ModelConfig,
    threads: int = 1,
    progress: Progress | None = None,
    shared: dict[Any, Any] | None = None,
    checker: Checker | None = None,
    engines: int = 1,
    several_callers: bool = False,
    memory: int | None = None,
) -> Model:
    """
    Make the model of a table, not started.

    Args:
        shared: What the backends of one configuration share.
        checker: The server's, where the model's engine needs one.
        engines: How many engines the server has.
        several_callers: The server has a key: there may be several callers.
        memory: The bytes that all engines may take together; None for all that is free.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    found, members = ErrorCollector(), []
    prepare = check_model(name, config, found)
    shared = {} if shared is None else shared
    queue = QueueSettings(config.max_in_flight, config.max_queue, config.queue_timeout_s)
    tell = None if progress is None else partial(progress, name)
    for source in config.sources:
        with found:
            steps = Steps(tell)
            spec = spec_of(name, source, config, threads, steps.report, shared, checker, engines)
            spec = structs.replace(spec, several_callers=several_callers, memory_bytes=memory)
            shown = source if config.command is None else f"{COMMAND}:{program_of(config.command)}"
            secrets = _secrets(source, config)
            members.append(PooledBackend(backend(spec), shown, secrets, queue, spec.scheme, steps))
            check_supported(name, config, members[-1].backend.capabilities)
            hints.tell(name, source)
    found.raise_all()
    schemes = {split(one.source)[0] for one in members}
    return Model(
        name,
        members,
        idle_stop_s=config.idle_stop_s,
        runs_locally=not any(scheme.endswith(("http", "https")) for scheme in schemes),
        stays=stays_of(config, all(map(_is_engine, schemes))),
        **_settings(config, prepare, schemes == {DEMO}),
    )


def _preset(
    name: str, own: ModelConfig, config: ModelConfig, base: Model, found: ErrorCollector
) -> Model:
    """
    Make a preset.

    Args:
        own: Its table.
        config: The same with what it has of its base.
        found: Collects the mistakes.
    """
    members = base.pool.members
    for member in members:
        with found:
            check_supported(name, own, member.backend.capabilities)
    is_demo = {split(one.source)[0] for one in members} == {DEMO}
    return Preset(name, base, **_settings(config, _request_defaults(config), is_demo))


def _settings(config: ModelConfig, prepare: _Prepare | None, is_demo: bool) -> dict[str, Any]:
    """Return the settings of a name, as `Model` and `Preset` take them."""
    # so small a model is at its best when it takes the likeliest token
    defaults = {"temperature": 0.0} | config.defaults if is_demo else config.defaults
    return {
        "aliases": config.aliases,
        "defaults": defaults,
        "drops_billing": config.drop_billing_header,
        "prepare": prepare,
        "unsupported": config.unsupported,
        "fallback": config.fallback,
        "created": int(time.time()),
        "price": config.price,
        "limits": config.limits,
        "unlisted": config.unlisted,
    }


def _secrets(source: str, config: ModelConfig) -> Secrets:
    """Collect what no error of a backend may reveal: its key, and the credentials in its URL."""
    return Secrets([config.api_key, *secrets_of(source)])


def check_model(name: str, config: ModelConfig, found: ErrorCollector) -> _Prepare | None:
    """
    Check a model's table as far as that is possible without its backends.

    Args:
        found: Collects the mistakes.

    Returns:
        The function that is applied to each request before a backend gets it; None for none.
    """
    kinds_of: dict[str, str] | None = None
    with ErrorCollector():  # a source that cannot be served is told where its backend is made
        kinds_of = kinds(config)
    with found:
        if kinds_of is not None:
            check_options(name, config, kinds_of)
    with found:
        check_replicas(name, config)
    with found, error_scope(name):
        check_adapters(config.lora)
    return check_preset(name, config, found)


def check_preset(name: str, config: ModelConfig, found: ErrorCollector) -> _Prepare | None:
    """Check the part of a model's table that a preset has, too; arguments and result as of `check_model`."""
    with found:
        check_defaults(name, config.defaults, ChatRequest, CompletionRequest)
    with found:
        plain, option = config.completion_defaults, "completion_defaults"
        check_defaults(name, plain, CompletionRequest, option=option)
    with found, error_scope(name):
        return _request_defaults(config)
    return None


def spec_of(
    name: str,
    source: str,
    config: ModelConfig,
    threads: int = 1,
    progress: Report | None = None,
    shared: dict[Any, Any] | None = None,
    checker: Checker | None = None,
    engines: int = 1,
) -> BackendSpec:
    """
    Make the specification of a backend of a model.

    Raises:
        ConfigError: The source cannot be served.
    """
    with error_scope(name):
        scheme, location = split(source)
        if config.command is not None:
            scheme, location = COMMAND, f"{scheme}:{location}"
    children = {} if shared is None else shared
    report = progress or _silent
    return BackendSpec(
        name, scheme, location, config, threads, report, children, checker or Checker(), engines
    )


def backend(spec: BackendSpec) -> Backend:
    """
    Make a backend, not started.

    Raises:
        ConfigError: The source or a setting is wrong; what is missing here may be fetched first.
    """
    with error_scope(spec.name):
        entry = _entry(spec.scheme if spec.config.replicas is None else "ray")
        made = plugins.use(
            entry, lambda factory: factory(_with_options(spec, import_module(entry.module)))
        )
        if not isinstance(made, Backend):
            raise ConfigError(
                f"source: the factory of `{spec.scheme}:` makes a {type(made).__name__}, which is no subclass of `unilect.api.backend.Backend`."
            )
        return made


def _entry(scheme: str) -> EntryPoint:
    """Return the entry point of the factory of a known scheme."""
    return plugins.find(plugins.BACKENDS, scheme)


def _with_options(spec: BackendSpec, module: ModuleType) -> BackendSpec:
    """
    Return a spec with the options of its own that its backend has.

    Raises:
        ConfigError: One is wrong, or the backend has none; all are told.
    """
    path, given = ("models", spec.name, "options"), spec.config.options
    kind: type[Struct] | None = getattr(module, "Options", None)
    if kind is None:
        if given and spec.scheme not in _ours():
            raise ConfigError(f"options: the backend of `{spec.scheme}:` has none; leave it out.")
        return spec
    found = ErrorCollector()
    good = convert_table(
        kind, given, path, lambda at, here, name, value: unknown_in(here, name), found
    )
    found.raise_all()
    return structs.replace(spec, options=kind(**good))


def _request_defaults(config: ModelConfig) -> _Prepare | None:
    needs = (config.stop, config.completion_template, config.completion_defaults, config.system)
    if not any(needs):
        return None
    from unilect.models.request_defaults import (
        request_defaults,
    )  # with Jinja, which takes 30 ms to import

    return request_defaults(config)


def _lister(name: str, config: ModelConfig) -> Callable[[BackendSpec], Awaitable[list[str]]]:
    """
    Return the function that lists the models of a table's server: `list_models` beside the factory of its backend.

    Raises:
        ConfigError: The source is not a server, or there are several sources.
    """
    entry = _entry(split(config.sources[0])[0])
    found: Any = plugins.use(
        entry, lambda factory: getattr(import_module(entry.module), "list_models", None)
    )
    if found is None or len(config.sources) > 1:
        raise ConfigError(
            f'models.{name}: `model = "*"` needs one source, a server of many models or a folder of GGUF files.'
        )
    return found  # type: ignore[no-any-return]


def _silent(what: str, part: float, size_bytes: int = 0, /) -> None:
    """A progress callback that discards everything."""


def is_known(scheme: str) -> bool:
    """
    Return True where there is a backend for a scheme.

    Raises:
        ConfigError: There are two.
    """
    if scheme in _ours():
        return True
    entries, refused = plugins.find_others(plugins.BACKENDS)
    if scheme in refused:
        raise ConfigError(refused[scheme])
    return scheme in entries


def _ours() -> Mapping[str, EntryPoint]:
    return plugins.ours(plugins.BACKENDS)


def _is_upstream(scheme: str) -> bool:
    return kind_of(scheme) in UPSTREAMS


def _is_engine(scheme: str) -> bool:
    """Return True where a scheme's model runs on this machine, in a process of ours or in one that we start."""
    return kind_of(scheme) in (*ENGINES, *COMMANDS)
