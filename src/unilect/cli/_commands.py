"""What the commands do: configuration in, a running server (or an exit code) out. It knows the terminal, and no flags."""

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from msgspec import structs

from unilect.cli._secrecy import open_keys, with_digests
from unilect.config import load as config_load
from unilect.config import paths as config_paths
from unilect.config import server as configuration
from unilect.config.file import Origin
from unilect.config.kinds import OPTIONS, has, in_words
from unilect.config.model import ModelConfig, wrong_name
from unilect.config.names import check_names
from unilect.config.server import Config
from unilect.config.store import may_have_keys
from unilect.config.values import convert
from unilect.context import in_hand
from unilect.errors import ConfigError
from unilect.logs import json_line, log_to_stderr, sink_of
from unilect.mistakes import Mistakes
from unilect.redact import redacted
from unilect.routing import sources
from unilect.routing.registry import Registry

log = logging.getLogger("unilect")
MAX_FACTS = 20


class Given(NamedTuple):
    """
    What a command was given.

    Attributes:
        models: `[NAME=]SOURCE` arguments; they replace the models of the file.
        config: The file.
        server: Flags about the server; None where not given.
        engine: Flags about every engine that are given.
    """

    models: Sequence[str]
    config: Path | None
    server: Mapping[str, Any]
    engine: Mapping[str, Any]

    @property
    def origin(self) -> Origin:
        """Where the options come from; flags about engines name themselves where they are wrong."""
        of_server = config_load.origin_of(self.config, self.server)
        named = [*self.engine, *(["models"] if self.models else [])]
        return Origin(of_server.file, of_server.given | dict.fromkeys(named, ""))


def serve(given: Given, settled: Callable[[Config], Config] = lambda config: config) -> None:
    """
    Serve until SIGTERM.

    Args:
        settled: Given the configuration, what is served; also where it is reloaded.
    """

    def read_again() -> Config:
        return with_digests(settled(checked(given)))

    settings = or_exit(lambda: settled(checked(given)))
    _log_to_stderr(settings)
    _serve(settings, given.origin, read_again)


def compat(name: str, arguments: Sequence[str]) -> None:
    """
    Serve as one of the older servers, until SIGTERM.

    Args:
        name: The server; see `unilect.cli._compat`.
        arguments: Its command line.
    """
    from unilect.cli import _compat as older

    environment = configuration.process_environment()
    done = or_exit(lambda: older.setup(name, arguments, environment))
    _log_to_stderr(done.config)
    for notice in done.notices:
        _say(notice, "warning")
    configuration.set_variables(done.variables)
    _serve(done.config, Origin())


def _serve(
    settings: Config, origin: Origin, read_again: Callable[[], Config] | None = None
) -> None:
    settings = with_digests(settings)
    for warning in open_keys(origin.file):
        log.warning("%s", warning)
    from unilect.cli._progress import Progress
    from unilect.routing.model_facts import line
    from unilect.server import lifecycle as http
    from unilect.server.reload import Source

    progress = Progress()
    source = None if read_again is None else Source(origin, read_again)

    def run() -> None:
        registry = _registry(settings, progress.show)

        def started(urls: list[str]) -> None:
            progress.stop()
            facts = [
                f"{name}: {line(model, settings.models.get(name))}"
                for name, model in registry.models.items()
            ]
            names = list(registry.models)
            environment = configuration.process_environment()
            screen = start_screen(urls[0], settings, urls[1:], names, facts, environment)
            if settings.log_format == "json":
                fields = {"urls": urls, "models": names}
                screen = json_line(screen.partition("\n")[0], "info", time.time(), fields)
            print(screen, flush=True)

        try:
            http.run(settings, registry, started, source)
        finally:
            progress.stop()

    or_exit(run, origin=origin)


def _registry(settings: Config, progress: sources.Progress | None = None) -> Registry:
    """
    The models; and the certificate can be used, which is not to be found out once they are loaded.

    Raises:
        ConfigError: Something is wrong; all is told.
    """
    from unilect.server.tls import server_context

    found = Mistakes()
    with found:
        server_context(settings)
    registry = Registry([])
    with found:
        registry = sources.registry(settings, progress)
    found.raise_all()
    return registry


def read(given: Given) -> tuple[Config, Mistakes]:
    """The configuration of the file, the environment and the command line together, without what is wrong, and what is wrong."""
    loaded, found = config_load.read(given.config, given.server)
    tables = dict(loaded.models)
    if given.models:
        tables = {}
        for argument in given.models:
            with found:
                _add(argument, tables)
        if sources.ALL in tables:
            tables["all"] = structs.replace(tables.pop(sources.ALL), model=sources.ALL)
    if given.engine and (tables or not given.models):
        with found:
            tables = _with_flags(tables or {sources.DEMO: ModelConfig()}, given.engine)
    settings = structs.replace(loaded, models=tables)
    if given.models:
        with found:
            check_names(settings.models)
    return settings, found


def _add(argument: str, tables: dict[str, ModelConfig]) -> None:
    """
    Take a model of the command line in; a name that is given twice is a model with several backends.

    Raises:
        ConfigError: It is none that can be served, or has no name that a model can have.
    """
    name, source = sources.named(argument, tables)
    if not source.strip():
        raise ConfigError(
            f"`{argument}`: has no source. Write SOURCE or NAME=SOURCE; a variable of the shell may be empty."
        )
    if name != sources.ALL and (wrong := wrong_name(name)) is not None:
        raise ConfigError(f"{argument}: {wrong}")
    others = tables[name].sources if name in tables else []
    source = config_paths.placed({"source": source}, None)["source"]
    tables[name] = ModelConfig(source=[*others, source] if others else source)


def checked(given: Given) -> Config:
    """
    The configuration, unless something is wrong with it: then what else would be found later is told too.

    Raises:
        ConfigError: Something is wrong.
    """
    settings, found = read(given)
    if found.errors:
        from unilect.cli import _preflight as preflight

        later = Mistakes()
        list(preflight.look(settings, later))
        found.errors += given.origin.told(later.errors)
    found.raise_all()
    return settings


def start_screen(
    url: str,
    config: Config,
    further: Sequence[str] = (),
    models: Sequence[str] = (),
    facts: Sequence[str] = (),
    environment: Mapping[str, str] = {},
) -> str:
    """
    One screen: where it listens, what it serves, and how to call it.

    Args:
        url: The server's own address.
        further: The other ones.
        models: The names of its models.
        facts: What there is to say of each, one line each.
        environment: Says where a user's data is.
    """
    names = list(models) or ["MODEL"]
    every = [redacted(one.sources[0]) for one in config.models.values() if one.model == sources.ALL]
    every += ["workers that register"] if config.fastchat_controller else []
    base = url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
    has_keys = bool(config.api_keys) or may_have_keys(config.store, environment)
    key = "$UNILECT_API_KEY" if has_keys else "none"
    header = f' -H "Authorization: Bearer {key}"' if has_keys else ""
    python_key = "os.environ['UNILECT_API_KEY']" if has_keys else "'none'"
    imports = "import os, openai" if has_keys else "import openai"
    hello = {"model": names[0], "messages": [{"role": "user", "content": "Hello!"}]}
    body = json.dumps(hello)
    python = (
        f"{imports}; print(openai.OpenAI(base_url='{base}/v1', api_key={python_key})"
        f".chat.completions.create(model='{names[0]}', messages=[dict(role='user', content='Hello!')])"
        ".choices[0].message.content)"
    )
    lines = [
        f"unilect answers at {base}/v1",
        *(
            f"         and at {other}/v1 ({each.dialect})"
            for other, each in zip(further, configuration.each_listener(config)[1:], strict=False)
        ),
        f"models: {', '.join([*models, *(f'all of {redacted(source)}' for source in every)])}",
        *(f"  {fact}" for fact in facts[:MAX_FACTS]),
        *([f"  and {len(facts) - MAX_FACTS} more"] if len(facts) > MAX_FACTS else []),
        "",
        f"  curl {base}/v1/chat/completions{header} -d {shlex.quote(body)}",
        "",
        f'  python -c "{python}"',
        "",
        f"in a browser: {base}/   endpoints: {base}/docs   metrics: {base}/metrics   stop: Ctrl-C",
    ]
    return "\n".join(lines)


def check_config(config: Path | None) -> None:
    """Say what a configuration is, and that it is right, or all that is wrong with it (exit code 2). Nothing is started."""
    from unilect.cli import _preflight as preflight

    settings, found = or_exit(lambda: config_load.read(config), code=2)
    later = Mistakes()
    for line in preflight.look(settings, later):
        print(line)
    for warning in open_keys(config_load.origin_of(config).file):
        print(f"warning: {warning}")
    found.errors += config_load.origin_of(config).told(later.errors)
    or_exit(found.raise_all, code=2)
    print("OK")


def list_models(config: Path | None, url: str | None = None, api_key: str | None = None) -> None:
    """Print the models of a configuration and what they are, or the names of those that a running server has."""
    if url is not None:
        from unilect.cli import _chat as terminal

        print("\n".join(or_exit(lambda: terminal.model_names(url, api_key))))
        return
    settings = or_exit(lambda: config_load.load(config))
    models = sources.served(settings)
    width = max((len(name) for name in models), default=0)
    for name, model in models.items():
        aliases = f"  (also {', '.join(model.aliases)})" if model.aliases else ""
        print(f"{name:{width}}  {', '.join(map(redacted, model.sources))}{aliases}")


def connect(
    client: str | None,
    url: str | None,
    model: str | None,
    api_key: str | None,
    write: bool,
    replace: bool,
) -> None:
    """Print the lines of a client for a running server, and write them; without a client list them all."""
    from unilect.cli.connect import command

    if client is None:
        print(command.overview())
        return
    environment = configuration.process_environment()

    def run() -> None:
        pieces = command.connect(
            client, url, model, api_key, environment, write_files=write, replace=replace
        )
        for piece in pieces:
            print(piece, flush=True)

    or_exit(run)


def worker(given: Given, names: Sequence[str] = ()) -> None:
    """
    Serve one model for the gateway of another machine, until SIGTERM; say on stdout where, as one line of JSON.

    Args:
        given: Its one model, or none for the only one of the file.
        names: What the model is called, instead of its source's name; the first is its name and the others are aliases.
    """

    def single() -> Config:
        return _named(_single(checked(given)), names)

    settings = or_exit(single)
    _log_to_stderr(settings)
    from unilect.server import lifecycle as http
    from unilect.server.reload import Source
    from unilect.web.site import reachable

    source = Source(given.origin, single)

    def started(urls: list[str]) -> None:
        ready = {"url": f"{reachable(urls[0])}/v1", "model": next(iter(settings.models))}
        print(json.dumps({"ready": ready}), flush=True)

    or_exit(lambda: http.run(settings, _registry(settings), started, source), origin=given.origin)


def chat(
    url: str | None,
    model: str | None,
    api_key: str | None,
    system: str | None,
    source: str | None,
    config: Path | None = None,
    engine: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Chat in the terminal, with the server at a URL or with one of our own; see `unilect.cli._chat.run`."""
    own = {"SOURCE": source, "--config": config} | {_flag(name): 1 for name in engine or ()}
    given = [name for name, value in own.items() if value is not None]
    if url is not None and given:
        fail(
            f"--url names a server that runs already, and {given[0]} is for a server that this command starts: leave one of them out."
        )
    from unilect.cli import _chat as terminal

    arguments = [source] if source else [] if config else [f"{sources.DEMO}:"]
    arguments += ["--config", str(config)] if config else []
    for name, value in (engine or {}).items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [_flag(name), str(one)]
    try:
        code = or_exit(lambda: terminal.run(url, model, api_key, system, arguments))
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _single(settings: Config) -> Config:
    """
    Raises:
        ConfigError: It has not one model, which is what a worker serves.
    """
    if len(settings.models) != 1:
        names = ", ".join(settings.models) or "none"
        raise ConfigError(
            f"worker: serves one model, but the configuration has {names}. Name one: `unilect worker NAME=SOURCE`."
        )
    return settings


def _named(settings: Config, names: Sequence[str]) -> Config:
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


def _with_flags(
    tables: Mapping[str, ModelConfig], flags: Mapping[str, Any]
) -> dict[str, ModelConfig]:
    """
    The models with the flags that they have.

    Raises:
        ConfigError: A value is wrong, or no model has such a flag.
    """
    found, fields = Mistakes(), {field.name: field for field in structs.fields(ModelConfig)}
    try:
        kinds = {name: sources.kinds(table) for name, table in tables.items()}
    except ConfigError:  # told with its model, where that is made
        return dict(tables)
    for option, value in flags.items():
        flag, of_flag = _flag(option), Mistakes()
        convert(fields[option].type, value, (option,), of_flag)
        for error in of_flag.errors:
            found.add(str(error).replace(option, flag, 1))
        if not any(has(option, of_model.values()) for of_model in kinds.values()):
            found.add(f"{flag}: applies to {in_words(OPTIONS[option])}; no model here is one. Leave it out.")  # fmt: skip
    found.raise_all()
    placed = config_paths.placed(flags, None)
    return {
        name: structs.replace(
            table, **{o: v for o, v in placed.items() if has(o, kinds[name].values())}
        )
        for name, table in tables.items()
    }


def _log_to_stderr(settings: Config) -> None:
    log_to_stderr(settings.log_level, settings.log_format, lambda: in_hand().request_id)
    for noisy in ("asyncio", "aiohttp", "huggingface_hub", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def or_exit(step: Callable[[], Any], code: int = 1, origin: Origin | None = None) -> Any:
    """What a step returns; a mistake ends the process with what is wrong on stderr."""
    try:
        return step()
    except ConfigError as error:
        errors = error.each if origin is None else origin.told(error.each)
        if len(errors) == 1:
            fail(str(errors[0]), code)
        fail(f"{len(errors)} mistakes:\n  " + "\n  ".join(map(str, errors)), code)


def fail(message: str, code: int = 1) -> NoReturn:
    """End with one sentence on stderr, or a line for each of several; without the credentials of a URL in it."""
    _say(message, "critical")
    raise SystemExit(code)


def _say(message: str, level: str) -> None:
    """Say something on stderr, without the credentials of a URL; as the log does where that is JSON."""
    sink = sink_of(logging.getLogger())
    if sink is not None and sink.form == "json":
        sink.add(redacted(message), level)
    else:
        print(f"unilect: {redacted(message)}", file=sys.stderr)
