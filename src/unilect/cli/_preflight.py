"""
The checks of `unilect config check`: all that `serve` would look at before it starts anything. Nothing is started, fetched or listened on.
"""

import asyncio
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from unilect.api.backend import Backend, BackendSpec
from unilect.config.command_line import program_of
from unilect.config.kinds import UPSTREAMS
from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig
from unilect.config.paths import adapter_of, expand
from unilect.config.server import Config, each_listener, process_environment
from unilect.config.sizes import parse_size
from unilect.config.store import check_place, location, may_have_keys
from unilect.core.errors import ConfigError
from unilect.hub import download as hub
from unilect.hub.web_files import is_address
from unilect.models import sources
from unilect.models.checked_defaults import check_supported
from unilect.models.discovery import MAX_MODELS
from unilect.models.facts import backend_name
from unilect.models.mistakes import error_scope
from unilect.residency.events import describe_size
from unilect.runtime import plugins
from unilect.runtime.redact import redact
from unilect.server.tls import server_context
from unilect.store.upkeep import Upkeep


def look(config: Config, found: ErrorCollector) -> Iterator[str]:
    """
    Look at a configuration as `serve` would.

    Args:
        found: Gets the mistakes.

    Yields:
        Lines that say where it listens, what each model is, and what other packages bring.
    """
    with found:
        server_context(config)
    yield from _look_at_store(config, found)
    if config.limits.url is not None:
        yield f"limits: {redact(config.limits.url)}, not contacted"
    scheme = "http" if config.tls_cert is None else "https"
    count = len(config.api_keys)
    keys = [f"{count} keys" if count > 1 else "a key"] if count else []
    keys += ["keys of the store"] if may_have_keys(config.store, process_environment()) else []
    for each in each_listener(config):
        host = f"[{each.host}]" if ":" in each.host else each.host
        port = each.port or "(a free port)"
        yield f"{scheme}://{host}:{port}: {each.dialect}, {' and '.join(keys) or 'no key'}"
    if config.admin.listen is not None:
        count = len(config.admin.api_keys)
        yield f"{config.admin.listen}: the admin API, {f'{count} keys' if count > 1 else 'a key' if count else 'no key'}"
    models, shared, lines = sources.models_of(config), dict[Any, Any](), dict[str, list[str]]()
    room = _Room(parse_size(config.memory))
    for name, table in sorted(models.items(), key=lambda item: not item[1].pin):
        if table.base is not None:
            _check_preset(name, config.models[name], table, found)
            lines[name] = [f"{name}: a preset of {table.base}"]
        else:
            lines[name] = list(_model(name, table, models, shared, room, found))
    for name in models:
        yield from lines[name]
    for group, part in ((plugins.BACKENDS, "__call__"), (plugins.DIALECTS, "routes")):
        used, left_out = plugins.use_all(group, attrgetter(part))
        yield from (f"found: {told}" for told in used)
        yield from (f"left out: {why}" for why in left_out)


class _Room(Struct):
    """
    The memory of all models together.

    Attributes:
        left: The bytes of `memory` that pinned models leave the others; None without it.
    """

    left: int | None


def _model(
    name: str,
    table: ModelConfig,
    models: Mapping[str, ModelConfig],
    shared: dict[Any, Any],
    room: _Room,
    found: ErrorCollector,
) -> Iterator[str]:
    with found:
        sources.check_server(name, table, models)
    sources.check_model(name, table, found)
    for source in table.sources:
        told = ["no model"]
        with found:
            spec = sources.spec_of(name, source, table, shared=shared)
            spec = structs.replace(spec, memory_bytes=room.left)
            here = _here(spec)
            backend = None if here is None else sources.backend(here)
            told = _describe(spec, backend)
            if here is None or backend is None:
                _check_beside(spec, found)
            else:
                with found:
                    check_supported(name, table, backend.capabilities)
                with found:
                    _check_memory(here, backend)
                    _check_left(here, backend, room)
        which = "" if source in ("", sources.DEMO, f"{sources.DEMO}:") else f" {redact(source)}"
        if table.command is not None:
            which = f" {sources.COMMAND}:{program_of(table.command)}"
        yield f"{name}: {told[0]}{which}{''.join(f', {more}' for more in told[1:])}"


def _check_preset(name: str, own: ModelConfig, table: ModelConfig, found: ErrorCollector) -> None:
    """
    Check the settings of a preset.

    Args:
        own: Its table.
        table: The same with what it has of its base.
    """
    sources.check_preset(name, own, found)
    for source in table.sources:
        backend = None
        with ErrorCollector():  # told of the base
            here = _here(sources.spec_of(name, source, table))
            backend = None if here is None else sources.backend(here)
        if backend is not None:
            with found:
                check_supported(name, own, backend.capabilities)


def _check_memory(spec: BackendSpec, backend: Backend) -> None:
    """
    Check that a GGUF model fits into memory; transformers knows only once it has loaded a model.

    Raises:
        ConfigError: It does not.
    """
    if (
        sources.kind_of(spec.scheme) == "gguf"
        and spec.config.replicas is None
        and spec.scheme != sources.DEMO
    ):
        from unilect.engines.gguf.fit import check_fit
        from unilect.engines.gguf.source import is_for_all, locate

        if not is_for_all(spec):
            path = expand(locate(spec).location)
            check_fit(spec.name, path, spec.config, backend.capabilities)


def _check_left(spec: BackendSpec, backend: Backend, room: _Room) -> None:
    """
    Check that a model fits into `memory` beside the pinned ones, of which it may be one.

    Raises:
        ConfigError: It can never be loaded there.
    """
    need = backend.memory_need()
    if room.left is None or need is None or spec.config.replicas is not None:
        return
    takes = parse_size(spec.config.memory) or need.ready + need.grows
    if takes > room.left:
        raise ConfigError(
            f"models.{spec.name}: it needs {describe_size(takes)}, and `memory` leaves it {describe_size(room.left)} beside pinned models. "
            "Lower its `context` or `parallel`, take fewer bits, raise `memory`, or unpin a model.",
            ("models", spec.name, "source"),
        )
    room.left -= takes if spec.config.pin else 0


def _look_at_store(config: Config, found: ErrorCollector) -> Iterator[str]:
    """Open the store to read it, where there is one; nothing is made or changed."""
    store, environment = config.store, process_environment()
    with found:
        check_place(store)
        place = location(store, environment)
        path = Path(place)
        if place != "memory" and not path.is_absolute():
            yield f"store: {place}, not contacted (`unilect store check` does)"
            return
        if place == "memory" or not path.exists():
            return
        try:
            state = asyncio.run(Upkeep(store, environment).inspect())
        except ConfigError as error:
            told = str(error).removeprefix("store: ")
            raise OptionError(("store", "url"), told) from error
        if state.problems:
            raise OptionError(
                ("store", "url"),
                f"{state.place} is damaged; `unilect store check` says where. Put a backup in its place, or move it away.",
            )
        if state.version not in ("", state.newest):
            raise OptionError(
                ("store", "url"),
                f"{state.place} is of a newer version of unilect (revision {state.version}; this one knows {state.newest}). "
                "Install that version, or name another file.",
            )
        yield f"store: {state.place}"


def _here(spec: BackendSpec) -> BackendSpec | None:
    """Return the spec with files that are on this machine; None where they would have to be fetched first."""
    if sources.kind_of(spec.scheme) not in ("gguf", "hf") or spec.scheme == sources.DEMO:
        return spec
    with error_scope(spec.name):
        path = hub.local_copy(spec.location, folder=sources.kind_of(spec.scheme) == "hf")
    return None if path is None else structs.replace(spec, location=str(path))


def _describe(spec: BackendSpec, backend: Backend | None) -> list[str]:
    """Describe a backend in a few words."""
    kind, config = sources.kind_of(spec.scheme), spec.config
    words = [backend_name(spec.scheme)]
    if backend is None:
        where = "at a web address" if is_address(spec.location) else "on the Hugging Face hub"
        words.append(f"{where}, downloaded when served")
    elif config.model == sources.ALL:
        words.append(f"all its models (at most {MAX_MODELS}), not contacted")
    elif kind in ("gguf", "hf", "chatglm"):
        words.append(f"context {backend.capabilities.context}")
        words += [f"{backend.capabilities.slots} requests at a time"] if kind != "chatglm" else []
    elif kind in UPSTREAMS:
        words.append("not contacted")
    return words + ([f"options {', '.join(config.options)}"] if config.options else [])


def _check_beside(spec: BackendSpec, found: ErrorCollector) -> None:
    """Check what a model needs beside the files that are to be fetched: what is installed, and other files."""
    name, table = spec.name, spec.config
    if sources.kind_of(spec.scheme) == "hf":
        from unilect.engines.transformers.engine import check_installed

        with found, error_scope(name):
            check_installed(spec.location)
    if table.chat_template is not None:
        from unilect.templates import chat as templates  # with Jinja, which takes 30 ms to import

        with found, error_scope(name):
            templates.find(table.chat_template)
    paths = [("mmproj", table.mmproj), ("tokenizer", table.tokenizer)]
    paths += [("lora", adapter_of(text)[0]) for text in table.lora]
    for option, given in paths:
        with found, error_scope(name):
            if given is not None and not expand(given).exists():
                found.add(
                    f"models.{name}: {option}: {given} does not exist. Name a local file or folder.",
                    ("models", name, option),
                )
