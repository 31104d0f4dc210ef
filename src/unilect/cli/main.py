"""The command line: flags become calls, nothing else. Help lists the commands in the order of their definition here."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from unilect.cli import _completion as completion
from unilect.cli import files, fleet, keys, store
from unilect.cli._options import FILE, Command, Commands, Group, as_json, config_file, flags, runs
from unilect.cli.bench.options import bench
from unilect.config.model import ModelConfig
from unilect.config.server import Config

_config = config_file()
_servers_config = config_file("its server is asked")
_since = click.option(
    "--since",
    default="30d",
    show_default=True,
    help="Since when: 7d, 12h, or a day such as 2026-11-01 (UTC).",
)
_server = click.option(
    "--server", metavar="PORT", help="Port, URL, process id or admin socket of the server."
)
_url = click.option("--url", help="Base URL of a running server: http://host:port/v1.")
_model = click.option("--model", help="Model name [the first model].")
_servers_key = click.option(
    "--api-key", envvar="UNILECT_API_KEY", show_envvar=True, help="API key for the server at --url."
)
_a_model = click.argument("model", shell_complete=completion.models, help="The model's name.")
_server_flags = flags(
    Config, ("host", "port", "api_keys", "insecure_no_auth", "memory", "log_level"), "server"
)
_worker_flags = flags(
    Config,
    (
        "host",
        "port",
        "api_keys",
        "fastchat_register",
        "fastchat_worker_address",
        "fastchat_worker_concurrency",
    ),
    "server",
)
_engine_flags = flags(
    ModelConfig, (name for name, one in ModelConfig.declared.items() if one.flag), "engine"
)


@click.group(
    "unilect",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
    examples=("unilect serve", "unilect serve model.gguf --context 8192", "unilect chat"),
)
@click.version_option(
    package_name="unilect", message="unilect %(version)s", help="Show the version."
)
def app() -> None:
    """Serve any local language model with an OpenAI-compatible API."""


@app.command(
    examples=(
        "unilect serve model.gguf --context 8192",
        "unilect serve small=a.gguf big=gguf:org/repo:Q4_K_M",
        "unilect serve far=http://gpu:8000/v1 --config unilect.toml",
    )
)
@click.argument(
    "models",
    metavar="[[NAME=]SOURCE]...",
    nargs=-1,
    shell_complete=completion.sources,
    help="Models to serve, before those of the configuration [the bundled one].",
)
@_config
@_server_flags
@_engine_flags
@runs("_commands", "serve")
def serve() -> None:
    """
    Serve models at http://127.0.0.1:8000/v1.

    Flags about engines are for the models of the command line, and without any for those of the configuration.
    """


@app.command(
    examples=(
        "unilect chat model.gguf",
        "unilect chat --url http://127.0.0.1:8000/v1 --model NAME",
        'echo "What is the capital of France?" | unilect chat',
    )
)
@click.argument(
    "source",
    required=False,
    shell_complete=completion.sources,
    help="Model to serve for this chat [the bundled one].",
)
@_url
@_model
@_servers_key
@click.option("--system", help="System prompt.")
@click.option(
    "--history/--no-history",
    default=True,
    help="Keep your messages for the arrow keys of later chats.",
)
@_config
@_engine_flags
@runs("_chat", "chat")
def chat() -> None:
    """Chat with a model in the terminal."""


@app.command(examples=("unilect connect", "unilect connect codex", "unilect connect zed --write"))
@click.argument(
    "client",
    required=False,
    shell_complete=completion.clients,
    help="codex, claude, opencode, aider ...; without it, all are listed.",
)
@click.option("--url", help="Base URL of the running server [http://127.0.0.1:8000/v1].")
@_model
@_servers_key
@click.option("--write", is_flag=True, help="Write the client's configuration file, too.")
@click.option("--replace", is_flag=True, help="With --write: replace settings with other values.")
@runs("connect.command", "connect")
def connect() -> None:
    """
    Print the settings of a client for a running server.

    Without a client the clients are listed: Codex, Claude Code, Zed, LangChain ...
    """


@app.command(
    examples=(
        "unilect models --config unilect.toml",
        "unilect models --url http://127.0.0.1:8000/v1",
    )
)
@_config
@_url
@_servers_key
@runs("_commands", "list_models")
def models() -> None:
    """List the models of a configuration, or of a server."""


for command in (files.pull, files.fit, files.list_files, files.show_file, files.remove_files):
    app.add_command(command)


@app.group("config", cls=Group, examples=("unilect config check unilect.toml",))
def config_app() -> None:
    """Check a configuration file, or import another's."""


@config_app.command("check", examples=("unilect config check unilect.toml",))
@click.argument("config", required=False, type=FILE, help="TOML file.")
@runs("_commands", "check_config", code=2)
def config_check() -> None:
    """
    Check a configuration file, and say what it is.

    Nothing is started; all mistakes are listed (exit code 2).
    """


@config_app.command(
    "import",
    examples=(
        "unilect config import llama-swap.yaml --output unilect.toml",
        "unilect config import Modelfile",
        "unilect config import start.sh --from llama-server",
    ),
)
@click.argument(
    "file", type=FILE, help="llama-swap's, LiteLLM's or llama-server's file, or a Modelfile."
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(("llama-swap", "llama-server", "litellm", "ollama")),
    help="Whose it is [told from the file].",
)
@click.option("--output", type=FILE, help="File to write, a new one [stdout].")
@runs("imports.command", "import_config", code=2)
def config_import() -> None:
    """
    Make a configuration of another program's.

    A setting without a counterpart is named in a comment.
    """


@app.command(examples=("unilect ps", "unilect ps --config unilect.toml --json"))
@_servers_config
@_server
@as_json
@runs("_admin", "show")
def ps() -> None:
    """List the models and the requests of your servers."""


@app.command(examples=("unilect why", "unilect why req_0123456789", "unilect why small"))
@click.argument(
    "request",
    required=False,
    metavar="[REQUEST|MODEL]",
    help="Id of the request, as its client and the log have it; or the name of a model.",
)
@_servers_config
@_server
@as_json
@runs("_admin", "explain")
def why() -> None:
    """
    Say why a request failed, or a model was loaded.

    Without an id or a name the last failures are listed.
    """


@app.command(examples=("unilect page", "unilect page --open"))
@click.option("--open", "opens", is_flag=True, help="Open it in this machine's browser, too.")
@_servers_config
@_server
@runs("_admin", "page")
def page() -> None:
    """
    Print the address of the page that steers a server.

    It has a key, which the browser keeps in its tab until the server ends.
    """


@app.command(examples=("unilect top", "unilect top --server 8000"))
@_servers_config
@_server
@runs("_top", "watch")
def top() -> None:
    """
    Watch the models and the requests of your servers.

    The screen is drawn again every second, until q or Ctrl-C.
    """


@app.command(examples=("unilect logs", "unilect logs small --follow"))
@click.argument("model", required=False, shell_complete=completion.models, help="Of this one only.")
@click.option("-f", "--follow", is_flag=True, help="Print what comes, too, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, 999_999),
    default=200,
    show_default=True,
    help="Number of last lines.",
)
@_servers_config
@_server
@runs("_admin", "logs")
def logs() -> None:
    """
    Print what the engines of a server have written.

    The server's own log is on its stderr.
    """


@app.command(examples=("unilect load small",))
@_a_model
@_servers_config
@_server
@runs("_admin", "load")
def load() -> None:
    """
    Load a model now, and wait for it.

    One that was drained takes requests again.
    """


@app.command(examples=("unilect stop small", "unilect stop small --server 8000"))
@_a_model
@_servers_config
@_server
@runs("_admin", "stop")
def stop() -> None:
    """
    Stop a model once no request runs in it.

    Its next request starts it again. `unilect unload` does the same.
    """


@app.command(examples=("unilect drain small",))
@_a_model
@_servers_config
@_server
@runs("_admin", "drain")
def drain() -> None:
    """
    Send a model no more requests, and stop it.

    `unilect load` ends that.
    """


@app.command(examples=("unilect reload --config unilect.toml", "unilect reload --pid 1234"))
@_servers_config
@_server
@click.option("--pid", type=click.IntRange(min=2), help="Send SIGHUP to this server instead.")
@runs("_admin", "reload")
def reload() -> None:
    """
    Have a running server reload its configuration.

    It takes all of the file, or nothing and says why (exit code 1).
    """


@app.command(
    "try",
    context_settings={"allow_interspersed_args": False},  # the flags are the other program's own
    examples=(
        "unilect try -- llama-server -m model.gguf",
        "unilect try --name coder -- vllm serve org/name --port {port} --api-key {key}",
        "unilect try --env HF_TOKEN -- transformers serve org/name",
    ),
)
@click.option("--name", help="Model name [the program's].")
@click.option("--model", help="The model's name on the server, where it has several.")
@click.option("--env", "variables", metavar="NAME", multiple=True, help="Variable of the environment for it.")  # fmt: skip
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, help="Its command line.")  # fmt: skip
@runs("_try", "try_command")
def try_server() -> None:
    """
    Run another server once, and print its table.

    It is measured and asked, and stopped in the end. docs/backends/command.md
    """


app.add_command(keys.app, "keys")


@app.command(
    examples=("unilect usage --config unilect.toml --by key", "unilect usage --since 7d --csv")
)
@_config
@click.option(
    "--by",
    metavar="A,B",
    default="key,model,day",
    show_default=True,
    help="Sums for each value of these: key, model, day.",
)
@_since
@as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@runs("_usage", "show")
def usage() -> None:
    """
    Print the requests, tokens and cost of each key.

    They are read from the ledger in the store.
    """


app.add_command(bench)


@app.command(examples=("unilect plan --config unilect.toml --memory 32GiB --memory 64GiB",))
@_config
@click.option(
    "--memory",
    metavar="SIZE",
    multiple=True,
    help="Such as 32GiB; may be repeated [this machine's, and twice that].",
)
@_since
@as_json
@runs("_plan", "show")
def plan() -> None:
    """
    Replay past requests with another memory.

    It tells how often each model would have been loaded. The requests are read from the ledger in the store.
    """


@app.command(
    examples=(
        'unilect worker big.gguf --host 0.0.0.0 --port 8001 --api-key "$WORKER_KEY"',
        "unilect worker m=model.gguf --fastchat-controller http://127.0.0.1:21001",
    )
)
@click.argument(
    "source",
    metavar="[[NAME=]SOURCE]",
    required=False,
    shell_complete=completion.sources,
    help="Model to serve [the configuration's].",
)
@_config
@_worker_flags
@click.option("--model-names", metavar="A,B", help="Model names on the controller.")
@_engine_flags
@runs("_commands", "worker")
def worker() -> None:
    """
    Serve one model to a gateway on another machine.

    The gateway is a unilect, or a FastChat controller.
    """


@app.command(examples=("unilect docs", "unilect docs quickstart", "unilect docs backends/gguf"))
@click.argument("page", required=False, help="Such as keys, or backends/gguf.")
@runs("_docs", "show")
def docs() -> None:
    """Show a page of the documentation, or list all."""


app.add_command(fleet.app, "fleet")
app.add_command(store.app, "store")


class _Compat(Command):
    """A command whose flags are another server's."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Offer that server's flags once it is named."""
        name = ctx.params.get("name")
        return (
            completion.older_flags(name, incomplete)
            if name
            else super().shell_complete(ctx, incomplete)
        )


@app.command(
    cls=_Compat,
    context_settings={"allow_interspersed_args": False},  # the flags are the other server's own
    examples=(
        "unilect compat llamacpp -m model.gguf -ngl 99 -c 8192 --port 8080",
        "unilect compat ollama --model model.gguf",
        "unilect compat fastchat --help",
    ),
)
@click.argument(
    "name",
    required=False,
    shell_complete=completion.older_servers,
    help="llamacpp, chatglm, fastchat, alpaca or ollama; without it, they are listed.",
)
@click.argument(
    "arguments",
    nargs=-1,
    shell_complete=completion.files,
    help="Its command line; --help lists its flags.",
)
@runs("_commands", "compat")
def compat() -> None:
    """Serve in another server's place, with its flags."""


@app.command("completion", examples=('eval "$(unilect completion bash)"', "unilect completion fish | source"))  # fmt: skip
@click.argument("shell", type=click.Choice(completion.SHELLS), help="Your shell.")
def print_completion(shell: str) -> None:
    """
    Print the script of completion in bash, zsh or fish.

    Write its line into the shell's start file, such as ~/.bashrc.
    """
    click.echo(completion.script(app, shell))


@app.command("help", hidden=True)
@click.argument("words", nargs=-1)
def show_help(words: tuple[str, ...]) -> None:
    """Print the help of a command."""
    app.main([*words, "--help"], prog_name="unilect")
