"""The work of the commands: configuration in, a running server (or an exit code) out. It knows the terminal, and no flags."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import structs

from unilect.cli._given import Given, load_checked
from unilect.cli._screen import or_exit, say, tell
from unilect.cli._secrecy import open_keys, with_digests
from unilect.config import load as config_load
from unilect.config import server as configuration
from unilect.config.file import Origin
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import wrong_name
from unilect.config.names import check_names
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.models import sources
from unilect.models.doubts import doubts
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import current_request
from unilect.runtime.logs import escape, json_line, log_to_stderr
from unilect.runtime.redact import redact

Models: TypeAlias = Mapping[str, Model]
log = logging.getLogger("unilect")


def serve(
    models: Sequence[str],
    config: Path | None,
    server: Mapping[str, Any],
    engine: Mapping[str, Any],
    settled: Callable[[Config], Config] = lambda settings: settings,
) -> None:
    """
    Serve until SIGTERM.

    Args:
        models, config, server, engine: As of `Given`.
        settled: Given the configuration, what is served; also where it is reloaded.
    """
    given = Given(models, config, server, engine)

    def load() -> Config:
        return settled(load_checked(given))

    _serve(load(), given.origin, given.notes, load)


def compat(name: str | None, arguments: Sequence[str]) -> None:
    """
    Serve as one of the older servers, until SIGTERM.

    Args:
        name: The server; see `unilect.cli._compat`. None lists them.
        arguments: Its command line.
    """
    from unilect.cli import _compat as older

    if name is None:
        tell(older.overview())
        return
    done = older.setup(name, arguments, configuration.process_environment())
    configuration.set_variables(done.variables)
    _serve(done.config, Origin(), done.notices)


def worker(
    source: str | None,
    config: Path | None,
    model_names: str | None,
    server: Mapping[str, Any],
    engine: Mapping[str, Any],
) -> None:
    """
    Serve one model for the gateway of another machine, until SIGTERM; say on stdout where, as one line of JSON.

    Args:
        source: The model; None for the only one of the file.
        model_names: What it is called instead of its source's name, separated by commas; the first is its name, the others are aliases.
        server, engine: As of `Given`.
    """
    given = Given([] if source is None else [source], config, server, engine)
    names = [name for name in (model_names or "").split(",") if name]

    def load() -> Config:
        return _as_worker(load_checked(given), names)

    def ready(settings: Config, models: Models, urls: list[str], asks_for_keys: bool) -> str:
        from unilect.web.site import reachable

        return json.dumps({"ready": {"url": f"{reachable(urls[0])}/v1", "model": next(iter(settings.models))}})  # fmt: skip

    _serve(load(), given.origin, (), load, ready)


def _start_screen(settings: Config, models: Models, urls: list[str], asks_for_keys: bool) -> str:
    from unilect.cli._start_screen import example_call, start_screen
    from unilect.models.facts import line

    facts = {name: line(one, settings.models.get(name)) for name, one in models.items()}
    call = example_call(models.values())
    screen = start_screen(urls[0], settings, call, urls[1:], facts, asks_for_keys)
    if settings.log_format == "json":
        fields = {"urls": urls, "models": list(models)}
        screen = json_line(screen.partition("\n")[0], "info", time.time(), fields)
    return screen


def _serve(
    settings: Config,
    origin: Origin,
    notes: Sequence[str],
    load: Callable[[], Config] | None = None,
    ready: Callable[[Config, Models, list[str], bool], str] = _start_screen,
) -> None:
    """
    Serve until SIGTERM.

    Args:
        notes: Warnings about the command line.
        load: Loads the configuration again, for a reload; None where there is none.
        ready: Returns what is printed on stdout once the server answers, of its models and its addresses.
    """
    log_to_stderr(settings.log_level, settings.log_format, lambda: current_request().request_id)
    for noisy in ("asyncio", "aiohttp", "huggingface_hub", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for note in notes:
        say(note, "warning")
    settings = with_digests(settings)
    for warning in open_keys(origin.file):
        log.warning("%s", warning)
    from unilect.cli._progress import Progress
    from unilect.server import lifecycle as http
    from unilect.server.reload import Source

    progress = Progress()
    source = None if load is None else Source(origin, lambda: with_digests(load()))

    def run() -> None:
        registry = _registry(settings, progress.show)

        def announce(urls: list[str], asks_for_keys: bool) -> None:
            progress.stop()
            tell(ready(settings, registry.models, urls, asks_for_keys), flush=True)

        try:
            http.run(settings, registry, announce, source)
        finally:
            progress.stop()

    or_exit(run, origin=origin)


def _registry(settings: Config, progress: sources.Progress) -> Registry:
    """
    Make the models, once the certificate is known to be usable: that is not to be found out when they are loaded.

    Raises:
        ConfigError: Something is wrong; all is told.
    """
    from unilect.server.tls import server_context

    found = ErrorCollector()
    with found:
        server_context(settings)
    registry = Registry([])
    with found:
        registry = sources.registry(settings, progress)
    found.raise_all()
    return registry


def check_config(config: Path | None) -> None:
    """Say what a configuration is, and that it is right, or all that is wrong with it. Nothing is started."""
    from unilect.cli import _preflight as preflight

    settings, found = config_load.read(config)
    later = ErrorCollector()
    lines = list(preflight.look(settings, later))
    found.errors += config_load.origin_of(config).locate(later.errors)
    found.raise_all()
    file = config_load.origin_of(config).file
    models, warnings = sources.models_of(settings), list(open_keys(file))
    if file and models and not settings.models:  # such as of a file that is empty by mistake
        warnings.append(
            f"{file} has no model: the bundled one is served, which is for trying out. Add a table such as `[models.NAME]`, with a `source`."
        )
    warnings += doubts(models, sources.kinds)
    tell("\n".join([*lines, *(f"warning: {warning}" for warning in warnings), "OK"]))


def list_models(config: Path | None, url: str | None = None, api_key: str | None = None) -> None:
    """Print the models of a configuration and what they are, or the names of those that a running server has."""
    if url is not None:
        from unilect.cli import _running_server as running

        for name in running.model_names(url, api_key):
            tell(escape(name))
        return
    from unilect.models.facts import beside_weights

    models = sources.models_of(config_load.load(config))
    width = max((len(name) for name in models), default=0)
    for name, model in models.items():
        if model.base is not None:
            tell(f"{name:{width}}  a preset of {model.base}")
            continue
        beside = [f"also {', '.join(model.aliases)}"] if model.aliases else []
        beside += beside_weights(model)
        more = f"  ({'; '.join(beside)})" if beside else ""
        tell(f"{name:{width}}  {', '.join(map(redact, model.sources))}{more}")


def _as_worker(settings: Config, names: Sequence[str]) -> Config:
    """
    Return a configuration with its model under other names, if there are any: the first is its name, the others are aliases.

    Raises:
        ConfigError: It has not one model, which is what a worker serves, or a name cannot be one.
    """
    if len(settings.models) != 1:
        found = ", ".join(settings.models) or "none"
        raise ConfigError(
            f"worker: serves one model, but the configuration has {found}. Name one: `unilect worker NAME=SOURCE`."
        )
    if not names:
        return settings
    for name in names:
        if (wrong := wrong_name(name)) is not None:
            raise ConfigError(f"--model-names: {wrong}")
    (table,) = settings.models.values()
    aliases = list(dict.fromkeys([*table.aliases, *names[1:]]))
    models = {names[0]: structs.replace(table, aliases=aliases)}
    named = structs.replace(settings, models=models)
    check_names(named.models)
    return named
