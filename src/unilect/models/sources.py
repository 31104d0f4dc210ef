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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct, structs

from unilect.api.backend import Backend, BackendSpec, Report
from unilect.config.fleet import FleetConfig, check_replicas
from unilect.config.hints import unknown_in
from unilect.config.kinds import ENGINES, KIND_OF, UPSTREAMS
from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig, check_options
from unilect.config.paths import check_adapters
from unilect.config.server import Config, process_environment
from unilect.config.store import may_have_keys
from unilect.config.values import convert_table
from unilect.constraints.checker import Checker
from unilect.core.errors import ConfigError, ConfigErrors, unreadable
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.models import source_hints as hints
from unilect.models.checked_defaults import check_defaults, check_supported
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime import plugins
from unilect.runtime.redact import Secrets, redact, secrets_of
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.scheduling.prefixes import without_billing

log = logging.getLogger("unilect")
DEMO = "demo"
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
    return Registry(build_models(config, checker, progress), checker)


def build_models(config: Config, checker: Checker, progress: Progress | None = None) -> list[Model]:
    """
    Make the models of a configuration, none of them started; tables that stand for all models of a server are left out.

    Args:
        checker: The server's.
        progress: Told what is going on while models start.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    models, found, made = models_of(config), ErrorCollector(), list[Model]()
    engines = _count_engines(models)
    threads = max(1, (_cores() - 1) // engines)
    shared: dict[Any, Any] = {FleetConfig: config.fleet}
    several = bool(config.api_keys) or may_have_keys(config.store, process_environment())
    for name, one in models.items():
        with found:
            check_server(name, one, models)
        with found:
            of_table = model(name, one, threads, progress, shared, checker, engines, several)
            if one.model != ALL:
                made.append(of_table)
    found.raise_all()
    for doubt in doubts(models):
        log.warning("%s", doubt)
    return made


def check_server(name: str, config: ModelConfig, models: Mapping[str, ModelConfig]) -> None:
    """
    Check a table that stands for all models of a server: it has one, and is no fallback.

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
        for source in one.sources:
            with ErrorCollector():  # told where the model is made
                scheme, location = split(source)
                if _is_engine(scheme):
                    engines.add((scheme, location) if scheme == "hf" else (name, scheme, location))
    return max(1, len(engines))


def models_of(config: Config) -> dict[str, ModelConfig]:
    """Return the models of a configuration; the bundled one if it has none and no FastChat worker may register."""
    return config.models or ({} if config.fastchat_controller else {DEMO: ModelConfig()})


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
        if not _is_upstream(scheme):
            return scheme, location
        hints.check_is_server(source)
        return scheme, hints.base_url(location)
    if os.path.isdir(source):
        return "hf", source
    if hints.may_be_gguf(source):
        return "gguf", source
    raise ConfigError(hints.unknown(source, [*_ours(), *plugins.find_others(plugins.BACKENDS)[0]]))


def kinds(config: ModelConfig) -> dict[str, str]:
    """
    Return the kind of each source of a model; of a backend from outside its scheme.

    Raises:
        ConfigError: A source is nothing that can be served.
    """
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
) -> Model:
    """
    Make the model of a table, not started.

    Args:
        shared: What the backends of one configuration share.
        checker: The server's, where the model's engine needs one.
        engines: How many engines the server has.
        several_callers: The server has a key: there may be several callers.

    Raises:
        ConfigError: A source or a setting is wrong.
    """
    found, members = ErrorCollector(), []
    prepare = check_model(name, config, found)
    shared = {} if shared is None else shared
    queue = QueueSettings(config.max_in_flight, config.max_queue, config.queue_timeout_s)

    def report(what: str, part: float, size_bytes: int = 0, /) -> None:
        if progress is not None:
            progress(name, what, part, size_bytes)

    for source in config.sources:
        with found:
            spec = spec_of(name, source, config, threads, report, shared, checker, engines)
            spec = structs.replace(spec, several_callers=several_callers)
            members.append(PooledBackend(backend(spec), source, _secrets(source, config), queue))
            check_supported(name, config, members[-1].backend.capabilities)
            _tell(name, source)
    found.raise_all()
    schemes = {split(source)[0] for source in config.sources}
    # so small a model is at its best when it takes the likeliest token
    defaults = {"temperature": 0.0} | config.defaults if schemes == {DEMO} else config.defaults
    return Model(
        name,
        members,
        aliases=config.aliases,
        defaults=defaults,
        prepare=prepare,
        unsupported=config.unsupported,
        fallback=config.fallback,
        idle_stop_s=config.idle_stop_s,
        runs_locally=not any(scheme.endswith(("http", "https")) for scheme in schemes),
        created=int(time.time()),
        price=config.price,
        limits=config.limits,
    )


def _secrets(source: str, config: ModelConfig) -> Secrets:
    """Collect what no error of a backend may reveal: its key, and the credentials in its URL."""
    return Secrets([config.api_key, *secrets_of(source)])


def check_model(name: str, config: ModelConfig, found: ErrorCollector) -> Callable[[Any], Any]:
    """
    Check a model's table as far as that is possible without its backends.

    Args:
        found: Collects the mistakes.

    Returns:
        The function that is applied to each request before a backend gets it.
    """
    kinds_of: dict[str, str] | None = None
    with ErrorCollector():  # a source that cannot be served is told where its backend is made
        kinds_of = kinds(config)
    with found:
        if kinds_of is not None:
            check_options(name, config, kinds_of)
    with found:
        check_replicas(name, config)
    with found:
        check_defaults(name, config.defaults, ChatRequest, CompletionRequest)
    with found:
        plain, option = config.completion_defaults, "completion_defaults"
        check_defaults(name, plain, CompletionRequest, option=option)
    with found, error_scope(name):
        check_adapters(config.lora)
    with found, error_scope(name):
        return _request_defaults(config)
    return _pass_on


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
    return _ours().get(scheme) or plugins.find_others(plugins.BACKENDS)[0][scheme]


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


@contextmanager
def error_scope(name: str) -> Iterator[None]:
    """Put the name of a model before its mistakes, and the option that each begins with; without one it is the source."""
    try:
        yield
    except (ConfigError, PermissionError) as failure:
        error = (
            ConfigError(unreadable(failure)) if isinstance(failure, PermissionError) else failure
        )
        told = ErrorCollector()
        for one in error.each:
            text = str(one)
            option = text.partition(":")[0]
            option = option if option in ModelConfig.__struct_fields__ else "source"
            prefix = "" if text.startswith(f"models.{name}") else f"models.{name}: "
            told.add(prefix + text, one.path or ("models", name, option))
        raise ConfigErrors(told.errors) from failure


def _request_defaults(config: ModelConfig) -> Callable[[Any], Any]:
    if not (config.stop or config.completion_template or config.completion_defaults):
        return without_billing if config.drop_billing_header else _pass_on
    from unilect.models.request_defaults import (
        request_defaults,
    )  # with Jinja, which takes 30 ms to import

    return request_defaults(config)


def _pass_on(request: Any) -> Any:
    return request


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
            f'models.{name}: `model = "*"` needs one source, a server of many models.'
        )
    return found  # type: ignore[no-any-return]


def _silent(what: str, part: float, size_bytes: int = 0, /) -> None:
    """A progress callback that discards everything."""


def doubts(models: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Yield what is allowed among the tables of models, and hardly meant."""
    names: dict[tuple[str, ...], str] = {}
    for name, table in models.items():
        kinds_of = set[str]()
        with ErrorCollector():  # told where its backend is made
            kinds_of = {*kinds(table).values()}
        if table.threads is not None and table.threads > _cores() and kinds_of & {*ENGINES}:
            yield (
                f"models.{name}: threads: {table.threads} threads on {_cores()} cores make an engine very slow. Leave `threads` out, "
                f"or set at most {_cores()}."
            )
        other = names.setdefault((*table.sources, *table.lora), name)
        is_large = "gguf" in kinds_of and not {*table.sources} & {"", DEMO, f"{DEMO}:"}
        if other != name and is_large and table.replicas is None:
            yield (
                f"models.{name}: its file is that of models.{other}, too, and is loaded twice. Where no option differs, give one model "
                f'both names: `aliases = ["{name}"]`.'
            )


def _tell(name: str, source: str) -> None:
    """Say where a source was taken for something else than it says; of a URL only its end, since it may hold a secret."""
    meant = hints.read_as(source)
    if meant != source:
        log.info("models.%s: %s is read as %s", name, redact(source), redact(meant))
    scheme, _, location = source.partition(":")
    if _is_upstream(scheme) and (end := hints.endpoint(location)):
        log.warning(
            "models.%s: the source ends in %s; it is left out, since each request adds its endpoint to the base URL",
            name,
            end,
        )


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
    return kind_of(scheme) in ENGINES


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))
