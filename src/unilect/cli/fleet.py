"""The commands for clusters: `unilect fleet start|join|status|drain|remove|stop`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from unilect.cli.keys import AsJson

app = typer.Typer(no_args_is_help=True, help="Commands for models on several machines.")

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", readable=False, help="TOML configuration file; its [fleet] is used."),
]
Resources: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=N,...",
        help="What the machine offers, such as cpu=8,gpu=1,memory=24GiB [what it has].",
    ),
]
FirstPort: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="First of the 9 ports of Ray [6379].")
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Head of the cluster [that of this machine]."),
]


@app.command()
def start(
    config: ConfigFile = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of this machine at which others join [none can].",
        ),
    ] = None,
    port: FirstPort = None,
    resources: Resources = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Start no cluster, and serve into this one, which runs."
        ),
    ] = None,
) -> None:
    """Start a cluster with this machine as its head, and serve the models of a configuration, until SIGTERM."""
    from unilect.cli import _fleet

    _fleet.start(config, listen, port, resources, address)


@app.command()
def join(
    head: Annotated[
        str, typer.Argument(metavar="HEAD[:PORT]", help="As `fleet start` has printed it.")
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the cluster's token [UNILECT_FLEET_TOKEN, or as at the last time].",
        ),
    ] = None,
    resources: Resources = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of this machine for the others [the one that reaches the head].",
        ),
    ] = None,
    port: FirstPort = None,
) -> None:
    """Make this machine a node of a cluster, until SIGTERM."""
    from unilect.cli import _fleet

    _fleet.join(head, token_file, resources, listen, port)


@app.command()
def status(config: ConfigFile = None, address: Address = None, as_json: AsJson = False) -> None:
    """List the nodes, models and replicas of a cluster, with their memory and load."""
    from unilect.cli import _fleet

    _fleet.status(config, address, as_json)


@app.command()
def drain(
    node: Annotated[
        str, typer.Argument(help="Its address, host name, or the beginning of its id.")
    ],
    config: ConfigFile = None,
    address: Address = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="The longest time to wait for it.")
    ] = 600.0,
) -> None:
    """Have a node hand its replicas over and leave: it takes nothing new, and finishes what it answers."""
    from unilect.cli import _fleet

    _fleet.drain(config, address, node, timeout)


@app.command()
def remove(
    model: Annotated[str, typer.Argument(help="Its name, as `fleet status` shows it.")],
    config: ConfigFile = None,
    address: Address = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="The longest time to wait for it.")
    ] = 600.0,
) -> None:
    """Take a model off the cluster that no gateway has any more: its replicas finish what they answer, and end."""
    from unilect.cli import _fleet

    _fleet.remove(config, address, model, timeout)


@app.command()
def stop() -> None:
    """Stop what `fleet start` and `fleet join` of this user run on this machine; running answers finish."""
    from unilect.cli import _fleet

    _fleet.stop()
