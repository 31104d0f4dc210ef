"""The command line: flags become calls, nothing else."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from unilect.cli import _foreign_flags as foreign_flags
from unilect.cli import fleet, keys, store


class _Group(TyperGroup):
    """The commands; for a command of another server the error names the one to use here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of these arguments."""
        hint = foreign_flags.of_command(args[0]) if args and args[0] not in self.commands else ""
        if hint:
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """A command; for a flag of another server the error names the one to use here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse its arguments."""
        own = {name for parameter in self.params for name in parameter.opts}
        for arg in args[: args.index("--")] if "--" in args else args:
            flag = arg.partition("=")[0]
            if flag not in own and (hint := foreign_flags.of_flag(flag)):
                ctx.fail(f"No such option: {flag}. {hint}")
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="unilect",
    cls=_Group,
    help="Serve any local language model with an OpenAI-compatible API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help="TOML configuration file; flags override it."),
]
Host: TypeAlias = Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")]
Port: TypeAlias = Annotated[int | None, typer.Option(help="Port [8000]; 0 picks a free one.")]
ApiKey: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="API key for clients; may be repeated.")
]
Url: TypeAlias = Annotated[
    str | None, typer.Option(help="Base URL of a running server: http://host:port/v1.")
]
ServersKey: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="UNILECT_API_KEY", help="API key for the server at --url."),
]


def _engine(
    context: Annotated[int | None, typer.Option(help="Context size per request.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Concurrent requests [4].")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads per engine.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers on the GPU; -1: all.")] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter, path[=scale]; may be repeated.")
    ] = None,
    mmproj: Annotated[str | None, typer.Option(help="Projector of a vision model.")] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="Name of a prompt format such as chatml (docs/templates.md), a Jinja template, or its path."
        ),
    ] = None,
) -> None:
    """Engine flags: `_with_engine_flags` adds them to a command."""


def _with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of `_engine` behind its own; it gets those that are given as `engine`."""
    own, more = inspect.signature(command), inspect.signature(_engine)
    parameters = [one for one in own.parameters.values() if one.name != "engine"]
    parameters += more.parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        engine = {name: given.pop(name) for name in more.parameters}
        command(**given, engine={name: v for name, v in engine.items() if v not in (None, [])})

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"unilect {version('unilect')}")
        raise typer.Exit


@app.callback()
def unilect(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Serve any local language model with an OpenAI-compatible API."""


@app.command(cls=_Command)
@_with_engine_flags
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=]SOURCE...", help="Models to serve [the bundled one]."),
    ] = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Listen beyond loopback without keys.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error [info].")
    ] = None,
    *,
    engine: dict[str, Any],
) -> None:
    """Serve models at http://127.0.0.1:8000/v1."""
    from unilect.cli import _commands as commands

    server = {
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "insecure_no_auth": insecure_no_auth or None,
        "log_level": log_level,
    }
    commands.serve(commands.Given(models or [], config, server, engine))


@app.command(cls=_Command)
def models(
    config: ConfigFile = None,
    url: Url = None,
    api_key: ServersKey = None,
) -> None:
    """List the models of a configuration, or with --url those of a running server."""
    from unilect.cli import _commands as commands

    commands.list_models(config, url, api_key)


@app.command(cls=_Command)
@_with_engine_flags
def chat(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="Model to serve for this chat [the bundled one]."),
    ] = None,
    url: Url = None,
    model: Annotated[str | None, typer.Option(help="Model name [the first model].")] = None,
    api_key: ServersKey = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    config: ConfigFile = None,
    *,
    engine: dict[str, Any],
) -> None:
    """Chat with a model in the terminal."""
    from unilect.cli import _commands as commands

    commands.chat(url, model, api_key, system, source, config, engine)


@app.command(cls=_Command)
def connect(
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLIENT]",
            help="codex, claude, opencode, aider ...; without it, all are listed.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Base URL of the running server [http://127.0.0.1:8000/v1].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name [the first model].")] = None,
    api_key: ServersKey = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the client's configuration file, too.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --write: replace settings with other values.")
    ] = False,
) -> None:
    """Print the lines with which a client (Codex, Zed, LangChain ...) uses a running server."""
    from unilect.cli import _commands as commands

    commands.connect(client, url, model, api_key, write, replace)


@app.command(context_settings={"allow_interspersed_args": False})
def compat(
    name: Annotated[str, typer.Argument(help="llamacpp, chatglm, fastchat, alpaca or ollama.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENTS]...",
            help="Its command line; --help lists its flags.",
        ),
    ] = None,
) -> None:
    """Replace an older server: accepts its command line and serves its API."""
    from unilect.cli import _commands as commands

    commands.compat(name, arguments or [])


@app.command(cls=_Command)
@_with_engine_flags
def worker(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[NAME=]SOURCE", help="Model to serve [the configuration's]."),
    ] = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    fastchat_controller: Annotated[
        str | None,
        typer.Option(metavar="URL", help="FastChat controller to register with."),
    ] = None,
    worker_address: Annotated[
        str | None,
        typer.Option(metavar="URL", help="URL at which the controller reaches this worker."),
    ] = None,
    model_names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Model names on the controller.")
    ] = None,
    limit_worker_concurrency: Annotated[
        int | None, typer.Option(help="Concurrent requests from the controller.")
    ] = None,
    *,
    engine: dict[str, Any],
) -> None:
    """Serve one model to a unilect on another machine, or to a FastChat controller."""
    from unilect.cli import _commands as commands

    server: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "fastchat_register": fastchat_controller,
        "fastchat_worker_address": worker_address,
        "fastchat_worker_concurrency": limit_worker_concurrency,
    }
    names = [name for name in (model_names or "").split(",") if name]
    models = [] if source is None else [source]
    commands.worker(commands.Given(models, config, server, engine), names)


@app.command(cls=_Command)
def usage(
    config: ConfigFile = None,
    by: Annotated[
        str, typer.Option(metavar="A,B", help="Sums for each value of these: key, model, day.")
    ] = "key,model,day",
    since: Annotated[
        str, typer.Option(help="Since when: 7d, 12h, or a day such as 2026-11-01 (UTC).")
    ] = "30d",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Print what keys have used: requests, tokens and cost, from the ledger in the store."""
    from unilect.cli import _usage

    _usage.show(config, by, since, as_json, as_csv)


@app.command(cls=_Command)
def reload(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", readable=False, help="The server's TOML file; its [admin] is asked."
        ),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(min=2, help="Send SIGHUP to this server instead.")
    ] = None,
) -> None:
    """Have a running server reload its configuration file: all of it, or nothing, and the reason (exit code 1)."""
    from unilect.cli import _admin

    _admin.reload(config, pid)


@app.command(cls=_Command)
def ps(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", readable=False, help="The server's TOML file; its [admin] is asked."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models and the running requests of a server."""
    from unilect.cli import _admin

    _admin.show(config, as_json)


app.add_typer(keys.app, name="keys")
app.add_typer(store.app, name="store")
app.add_typer(fleet.app, name="fleet")
config_app = typer.Typer(no_args_is_help=True, help="Commands for configuration files.")
app.add_typer(config_app, name="config")


@config_app.command("check")
def config_check(
    config: Annotated[Path | None, typer.Argument(readable=False, help="TOML file.")] = None,
) -> None:
    """Check a configuration file."""
    from unilect.cli import _commands as commands

    commands.check_config(config)
