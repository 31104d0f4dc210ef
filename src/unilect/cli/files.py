"""The commands about files of models: `unilect pull|fit|list|show|rm`."""

import click

from unilect.cli import _completion as completion
from unilect.cli._options import Command, as_json, runs


@click.command(
    cls=Command,
    examples=(
        "unilect pull org/repo",
        "unilect pull org/repo:Q4_K_M hf:org/name https://host/x.gguf",
        "unilect pull org/repo --dry-run",
    ),
)
@click.argument(
    "given",
    metavar="SOURCE...",
    nargs=-1,
    required=True,
    help="Models of the Hugging Face hub, or web addresses of GGUF files.",
)
@click.option("--dry-run", is_flag=True, help="Print the files and their sizes, and fetch nothing.")
@runs("_pull", "pull")
def pull() -> None:
    """
    Fetch models before they are served.

    A download that was cut off goes on where it was.
    """


@click.command(
    cls=Command,
    examples=(
        "unilect fit org/repo",
        "unilect fit model.gguf --context 32768 --parallel 2",
        "unilect fit org/repo --memory 24GiB --json",
    ),
)
@click.argument(
    "source",
    shell_complete=completion.sources,
    help="Model file, folder of them, repository of the Hugging Face hub, or web address.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens per request [as many as fit, at most 8192].",
)
@click.option(
    "--parallel", type=click.IntRange(1, 256), metavar="N", help="Requests side by side [4]."
)
@click.option("--memory", metavar="SIZE", help="Memory to fit into, such as 24GiB [all of it].")
@as_json
@runs("_fit", "fit")
def fit() -> None:
    """
    Tell what memory models take, before a download.

    Only the heads of files are read: a few megabytes of each.
    """


@click.command("list", cls=Command, examples=("unilect list", "unilect list --json"))
@as_json
@runs("_files", "list_files")
def list_files() -> None:
    """
    List the models on this machine.

    Each name can be served: `unilect serve NAME`.
    """


@click.command(
    "show",
    cls=Command,
    examples=("unilect show org/repo/file.gguf", "unilect show model.gguf --json"),
)
@click.argument(
    "name", shell_complete=completion.sources, help="As `unilect list` prints it, or a path."
)
@as_json
@runs("_files", "show")
def show_file() -> None:
    """
    Show the facts of a model on this machine.

    They are read from its files: family, parameters, context, quantization, chat template.
    """


@click.command(
    "rm", cls=Command, examples=("unilect rm org/repo/file.gguf", "unilect rm org/repo --yes")
)
@click.argument(
    "names",
    metavar="NAME...",
    nargs=-1,
    required=True,
    shell_complete=completion.local_models,
    help="As `unilect list` prints it.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@runs("_files", "remove")
def remove_files() -> None:
    """
    Remove models that were fetched.

    Only what is in the caches of unilect and of the hub's client goes.
    """
