"""The command line: flags become calls, nothing else."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="unilect",
    help="Makes any local language model answer the OpenAI API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]SOURCE...", help="Models to serve; the bundled one if none."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; flags are stronger.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="The port [8000]; 0 for a free one.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="A key that clients must send; may be repeated.")
    ] = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Listen beyond loopback without keys.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error [info].")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens for each request.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Requests at the same time [4].")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads for each engine.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers on the GPU; -1 for all.")] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="A LoRA adapter, path[=scale]; may be repeated.")
    ] = None,
    mmproj: Annotated[str | None, typer.Option(help="The projector of a model that sees.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="A Jinja template, or its path.")
    ] = None,
) -> None:
    """Serve models at http://127.0.0.1:8000/v1."""
    from unilect import commands

    server = {
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "insecure_no_auth": insecure_no_auth or None,
        "log_level": log_level,
    }
    engine: dict[str, Any] = {
        "context": context,
        "parallel": parallel,
        "threads": threads,
        "gpu_layers": gpu_layers,
        "lora": lora or None,
        "mmproj": mmproj,
        "chat_template": chat_template,
    }
    commands.serve(models or [], config, server, engine)


@app.command()
def models(
    config: Annotated[Path | None, typer.Option(help="A TOML file.")] = None,
) -> None:
    """List the models of a configuration."""
    from unilect import commands

    commands.list_models(config)


@app.command()
def chat(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="A model to start a server for; the bundled one."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that runs already: http://host:port/v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name [the first].")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="UNILECT_API_KEY", help="The key of the server at --url.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
) -> None:
    """Chat with a model in the terminal."""
    from unilect import commands

    commands.chat(url, model, api_key, system, source)


@app.command(context_settings={"allow_interspersed_args": False})
def compat(
    name: Annotated[str, typer.Argument(help="llamacpp, chatglm, fastchat or alpaca.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Its command line; --help lists its flags."),
    ] = None,
) -> None:
    """Serve as an older server, with its command line: put this before its arguments."""
    from unilect import commands

    commands.compat(name, arguments or [])


@app.command()
def worker(
    source: Annotated[str, typer.Argument(metavar="[NAME=]SOURCE", help="The model to serve.")],
    host: Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="The port [8000]; 0 for a free one.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="A key that clients must send; may be repeated.")
    ] = None,
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
) -> None:
    """Serve one model for a unilect on another machine, or for a FastChat controller."""
    from unilect import commands

    server: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "fastchat_register": fastchat_controller,
        "fastchat_worker_address": worker_address,
        "fastchat_worker_concurrency": limit_worker_concurrency,
    }
    commands.worker(source, server, [name for name in (model_names or "").split(",") if name])


config_app = typer.Typer(no_args_is_help=True, help="Work with configuration files.")
app.add_typer(config_app, name="config")


@config_app.command("check")
def config_check(
    config: Annotated[Path | None, typer.Argument(help="A TOML file.")] = None,
) -> None:
    """Check a configuration file."""
    from unilect import commands

    commands.check_config(config)
