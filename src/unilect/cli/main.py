"""The command line: flags become calls, nothing else."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from unilect.cli import _foreign_flags as foreign_flags
from unilect.cli import fleet, keys, store
from unilect.cli._options import FILE, Command, Group, as_json, config_file


class _Command(Command):
    """A command; for a flag of another server the error names the one to use here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse its arguments."""
        own = {name for parameter in self.params for name in parameter.opts}
        for arg in args[: args.index("--")] if "--" in args else args:
            flag = arg.partition("=")[0]
            if flag not in own and (hint := foreign_flags.of_flag(flag)):
                ctx.fail(f"No such option {flag!r}. {hint}")
        return super().parse_args(ctx, args)


class _Commands(Group):
    """The commands; for a command of another server the error names the one to use here."""

    command_class = _Command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command of these arguments."""
        hint = foreign_flags.of_command(args[0]) if args and args[0] not in self.commands else ""
        if hint:
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)


_config = config_file()
_servers_config = config_file("its server is asked")
_server = click.option(
    "--server", metavar="PORT", help="Port, URL, process id or admin socket of the server."
)
_host = click.option("--host", help="Address to listen on [127.0.0.1].")
_port = click.option("--port", type=int, help="Port [8000]; 0 picks a free one.")
_api_key = click.option("--api-key", multiple=True, help="API key for clients; may be repeated.")
_url = click.option("--url", help="Base URL of a running server: http://host:port/v1.")
_model = click.option("--model", help="Model name [the first model].")
_servers_key = click.option(
    "--api-key",
    envvar="UNILECT_API_KEY",
    show_envvar=True,
    help="API key for the server at --url.",
)
_ENGINE_FLAGS = {
    "context": click.option("--context", type=int, help="Context size per request."),
    "parallel": click.option("--parallel", type=int, help="Concurrent requests [4]."),
    "threads": click.option("--threads", type=int, help="CPU threads per engine."),
    "gpu_layers": click.option("--gpu-layers", type=int, help="Layers on the GPU; -1: all."),
    "lora": click.option(
        "--lora", multiple=True, help="LoRA adapter, path[=scale]; may be repeated."
    ),
    "mmproj": click.option("--mmproj", help="Projector of a vision model."),
    "chat_template": click.option(
        "--chat-template",
        help="Name of a prompt format such as chatml (docs/templates.md), a Jinja template, or its path.",
    ),
}


def _engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the flags of engines behind its own; it gets those that are given as `engine`."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        engine = {name: given.pop(name) for name in _ENGINE_FLAGS}
        engine["lora"] = list(engine["lora"])
        command(**given, engine={name: v for name, v in engine.items() if v not in (None, [])})

    for option in reversed(_ENGINE_FLAGS.values()):
        run = option(run)
    return run


@click.group("unilect", cls=_Commands)
@click.version_option(
    package_name="unilect", message="unilect %(version)s", help="Show the version."
)
def app() -> None:
    """Serve any local language model with an OpenAI-compatible API."""


@app.command()
@click.argument(
    "models",
    metavar="[[NAME=]SOURCE]...",
    nargs=-1,
    help="Models to serve [the bundled one].",
)
@_config
@_host
@_port
@_api_key
@click.option("--insecure-no-auth", is_flag=True, help="Listen beyond loopback without keys.")
@click.option("--log-level", help="debug, info, warning or error [info].")
@_engine_flags
def serve(
    models: tuple[str, ...],
    config: Path | None,
    host: str | None,
    port: int | None,
    api_key: tuple[str, ...],
    insecure_no_auth: bool,
    log_level: str | None,
    engine: dict[str, Any],
) -> None:
    """Serve models at http://127.0.0.1:8000/v1."""
    from unilect.cli import _commands as commands

    server = {
        "host": host,
        "port": port,
        "api_keys": list(api_key) or None,
        "insecure_no_auth": insecure_no_auth or None,
        "log_level": log_level,
    }
    commands.serve(commands.Given(list(models), config, server, engine))


@app.command()
@_config
@_url
@_servers_key
def models(config: Path | None, url: str | None, api_key: str | None) -> None:
    """List the models of a configuration, or with --url those of a running server."""
    from unilect.cli import _commands as commands

    commands.list_models(config, url, api_key)


@app.command()
@click.argument("source", required=False, help="Model to serve for this chat [the bundled one].")
@_url
@_model
@_servers_key
@click.option("--system", help="System prompt.")
@_config
@_engine_flags
def chat(
    source: str | None,
    url: str | None,
    model: str | None,
    api_key: str | None,
    system: str | None,
    config: Path | None,
    engine: dict[str, Any],
) -> None:
    """Chat with a model in the terminal."""
    from unilect.cli import _commands as commands

    commands.chat(url, model, api_key, system, source, config, engine)


@app.command()
@click.argument(
    "client",
    required=False,
    help="codex, claude, opencode, aider ...; without it, all are listed.",
)
@click.option("--url", help="Base URL of the running server [http://127.0.0.1:8000/v1].")
@_model
@_servers_key
@click.option("--write", is_flag=True, help="Write the client's configuration file, too.")
@click.option("--replace", is_flag=True, help="With --write: replace settings with other values.")
def connect(
    client: str | None,
    url: str | None,
    model: str | None,
    api_key: str | None,
    write: bool,
    replace: bool,
) -> None:
    """Print the lines with which a client (Codex, Zed, LangChain ...) uses a running server."""
    from unilect.cli import _commands as commands

    commands.connect(client, url, model, api_key, write, replace)


# the flags are the other server's own
@app.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("name", help="llamacpp, chatglm, fastchat, alpaca or ollama.")
@click.argument("arguments", nargs=-1, help="Its command line; --help lists its flags.")
def compat(name: str, arguments: tuple[str, ...]) -> None:
    """Replace an older server: accepts its command line and serves its API."""
    from unilect.cli import _commands as commands

    commands.compat(name, list(arguments))


@app.command()
@click.argument(
    "source",
    metavar="[[NAME=]SOURCE]",
    required=False,
    help="Model to serve [the configuration's].",
)
@_config
@_host
@_port
@_api_key
@click.option("--fastchat-controller", metavar="URL", help="FastChat controller to register with.")
@click.option(
    "--worker-address",
    metavar="URL",
    help="URL at which the controller reaches this worker.",
)
@click.option("--model-names", metavar="A,B", help="Model names on the controller.")
@click.option(
    "--limit-worker-concurrency", type=int, help="Concurrent requests from the controller."
)
@_engine_flags
def worker(
    source: str | None,
    config: Path | None,
    host: str | None,
    port: int | None,
    api_key: tuple[str, ...],
    fastchat_controller: str | None,
    worker_address: str | None,
    model_names: str | None,
    limit_worker_concurrency: int | None,
    engine: dict[str, Any],
) -> None:
    """Serve one model to a unilect on another machine, or to a FastChat controller."""
    from unilect.cli import _commands as commands

    server: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": list(api_key) or None,
        "fastchat_register": fastchat_controller,
        "fastchat_worker_address": worker_address,
        "fastchat_worker_concurrency": limit_worker_concurrency,
    }
    names = [name for name in (model_names or "").split(",") if name]
    models = [] if source is None else [source]
    commands.worker(commands.Given(models, config, server, engine), names)


@app.command()
@_config
@click.option(
    "--by",
    metavar="A,B",
    default="key,model,day",
    show_default=True,
    help="Sums for each value of these: key, model, day.",
)
@click.option(
    "--since",
    default="30d",
    show_default=True,
    help="Since when: 7d, 12h, or a day such as 2026-11-01 (UTC).",
)
@as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def usage(config: Path | None, by: str, since: str, as_json: bool, as_csv: bool) -> None:
    """Print what keys have used: requests, tokens and cost, from the ledger in the store."""
    from unilect.cli import _usage

    _usage.show(config, by, since, as_json, as_csv)


@app.command()
@_servers_config
@_server
@click.option("--pid", type=click.IntRange(min=2), help="Send SIGHUP to this server instead.")
def reload(config: Path | None, server: str | None, pid: int | None) -> None:
    """Have a running server reload its configuration file: all of it, or nothing, and the reason (exit code 1)."""
    from unilect.cli import _admin

    _admin.reload(config, pid, server)


@app.command()
@_servers_config
@_server
@as_json
def ps(config: Path | None, server: str | None, as_json: bool) -> None:
    """List the models and the running requests of your servers."""
    from unilect.cli import _admin

    _admin.show(config, as_json, server)


@app.command()
@click.argument("model", help="The model's name.")
@_servers_config
@_server
def stop(model: str, config: Path | None, server: str | None) -> None:
    """Stop a model once no request runs in it; its next request starts it again."""
    from unilect.cli import _admin

    _admin.stop(config, model, server)


@app.command()
@click.argument(
    "request", required=False, help="Id of the request, as its client and the log have it."
)
@_servers_config
@_server
@as_json
def why(request: str | None, config: Path | None, server: str | None, as_json: bool) -> None:
    """Say why a request failed; without an id, list the last failures."""
    from unilect.cli import _admin

    _admin.explain(config, request, as_json, server)


@app.command()
@click.argument("page", required=False, help="Such as keys, or backends/gguf.")
def docs(page: str | None) -> None:
    """Show a page of the documentation, or list all."""
    from unilect.cli import _docs

    _docs.show(page)


app.add_command(keys.app, "keys")
app.add_command(store.app, "store")
app.add_command(fleet.app, "fleet")


@app.group("config", cls=Group)
def config_app() -> None:
    """Commands for configuration files."""


@config_app.command("check")
@click.argument("config", required=False, type=FILE, help="TOML file.")
def config_check(config: Path | None) -> None:
    """Check a configuration file."""
    from unilect.cli import _commands as commands

    commands.check_config(config)
