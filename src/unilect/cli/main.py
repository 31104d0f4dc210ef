"""The command line: flags become calls, nothing else."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from unilect.cli import _foreign_flags as foreign_flags


class _Group(TyperGroup):
    """The commands; one that other servers have is told with what to type here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of these arguments."""
        hint = foreign_flags.of_command(args[0]) if args and args[0] not in self.commands else ""
        if hint:
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """A command; a flag that other servers have is told with what to type here."""

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
    help="Makes any local language model answer the OpenAI API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help="A TOML file; flags are stronger."),
]
Host: TypeAlias = Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")]
Port: TypeAlias = Annotated[int | None, typer.Option(help="The port [8000]; 0 for a free one.")]
ApiKey: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A key that clients must send; may be repeated.")
]
ServersKey: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="UNILECT_API_KEY", help="The key of the server at --url."),
]


def _engine(
    context: Annotated[int | None, typer.Option(help="Tokens for each request.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Requests at the same time [4].")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads for each engine.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers on the GPU; -1 for all.")] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="A LoRA adapter, path[=scale]; may be repeated.")
    ] = None,
    mmproj: Annotated[str | None, typer.Option(help="The projector of a model that sees.")] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="A format's name, such as chatml (docs/templates.md has all), a Jinja template, or its path."
        ),
    ] = None,
) -> None:
    """Flags about engines: `_with_engine_flags` gives them to a command."""


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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Make any local language model answer the OpenAI API."""


@app.command(cls=_Command)
@_with_engine_flags
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]SOURCE...", help="Models to serve; the bundled one if none."
        ),
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
    commands.serve(models or [], config, server, engine)


@app.command(cls=_Command)
def models(
    config: ConfigFile = None,
    url: Annotated[
        str | None, typer.Option(help="A running server instead: http://host:port/v1.")
    ] = None,
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
        typer.Argument(metavar="[SOURCE]", help="A model to start a server for; the bundled one."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that runs already: http://host:port/v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name [the first].")] = None,
    api_key: ServersKey = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    config: ConfigFile = None,
    *,
    engine: dict[str, Any],
) -> None:
    """Chat with a model in the terminal."""
    from unilect.cli import _commands as commands

    commands.chat(url, model, api_key, system, source, config, engine)


@app.command(context_settings={"allow_interspersed_args": False})
def compat(
    name: Annotated[str, typer.Argument(help="llamacpp, chatglm, fastchat or alpaca.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Its command line; --help lists its flags."),
    ] = None,
) -> None:
    """Serve as an older server, with its command line: put this before its arguments."""
    from unilect.cli import _commands as commands

    commands.compat(name, arguments or [])


@app.command(cls=_Command)
@_with_engine_flags
def worker(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[NAME=]SOURCE", help="The model to serve; the file's if none."),
    ] = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    fastchat_controller: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Register with this FastChat controller, as a worker."),
    ] = None,
    worker_address: Annotated[
        str | None, typer.Option(metavar="URL", help="Where that controller reaches this worker.")
    ] = None,
    model_names: Annotated[
        str | None, typer.Option(metavar="A,B", help="What the model is called there.")
    ] = None,
    limit_worker_concurrency: Annotated[
        int | None, typer.Option(help="Requests from there that are answered at a time.")
    ] = None,
    *,
    engine: dict[str, Any],
) -> None:
    """Serve one model for a unilect on another machine, or for a FastChat controller."""
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
    commands.worker(source, config, server, engine, names)


config_app = typer.Typer(no_args_is_help=True, help="Work with configuration files.")
app.add_typer(config_app, name="config")


@config_app.command("check")
def config_check(
    config: Annotated[Path | None, typer.Argument(readable=False, help="A TOML file.")] = None,
) -> None:
    """Check a configuration file."""
    from unilect.cli import _commands as commands

    commands.check_config(config)
