"""The commands for clusters: `unilect fleet start|join|status|drain|remove|stop`."""

import click

from unilect.cli._options import FILE, Group, as_json, config_file, runs

_LONGEST_S = 1_000_000  # twelve days
_config = config_file("its [fleet] is used")
_resources = click.option(
    "--resources",
    metavar="NAME=N,...",
    help="What the machine offers, such as cpu=8,gpu=1,memory=24GiB [what it has].",
)
_first_port = click.option(
    "--port", type=int, metavar="N", help="First of the 9 ports of Ray [6379]."
)
_address = click.option(
    "--address", metavar="HOST:PORT", help="Head of the cluster [that of this machine]."
)


def _seconds(ctx: click.Context, option: click.Parameter, value: float) -> float:
    """Check a length of time; `inf` and `nan` are numbers to Python."""
    if not 0 <= value <= _LONGEST_S:
        raise click.BadParameter(f"{value:g} is not in the range 0<=x<={_LONGEST_S}.", ctx, option)
    return value


_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=float,
    callback=_seconds,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest time to wait for it.",
)


@click.group(
    cls=Group,
    examples=(
        "unilect fleet start --config unilect.toml --listen 10.0.0.1",
        "unilect fleet join 10.0.0.1",
    ),
)
def app() -> None:
    """Run models with `replicas` on several machines."""


@app.command(examples=("unilect fleet start --config unilect.toml --listen 10.0.0.1",))
@_config
@click.option(
    "--listen", metavar="ADDRESS", help="Address of this machine at which others join [none can]."
)
@_first_port
@_resources
@click.option(
    "--address", metavar="HOST:PORT", help="Start no cluster, and serve into this one, which runs."
)
@runs("_fleet", "start")
def start() -> None:
    """
    Start a cluster, and serve models into it.

    This machine is its head, until SIGTERM.
    """


@app.command(examples=("unilect fleet join 10.0.0.1 --token-file token",))
@click.argument("head", metavar="HEAD[:PORT]", help="As `fleet start` has printed it.")
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="File with the cluster's token [UNILECT_FLEET_TOKEN, or as at the last time].",
)
@_resources
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="Address of this machine for the others [the one that reaches the head].",
)
@_first_port
@runs("_fleet", "join")
def join() -> None:
    """Make this machine a node of a cluster, until SIGTERM."""


@app.command(examples=("unilect fleet status", "unilect fleet status --json"))
@_config
@_address
@as_json
@runs("_fleet", "status")
def status() -> None:
    """
    List the nodes, models and replicas of a cluster.

    Their memory and load are listed, too.
    """


@app.command(examples=("unilect fleet drain 10.0.0.2",))
@click.argument("which", metavar="NODE", help="Its address, host name, or the beginning of its id.")
@_config
@_address
@_timeout
@runs("_fleet", "drain")
def drain() -> None:
    """
    Have a node hand its replicas over and leave.

    It takes nothing new, and finishes what it answers.
    """


@app.command(examples=("unilect fleet remove small",))
@click.argument("model", help="Its name, as `fleet status` shows it.")
@_config
@_address
@_timeout
@runs("_fleet", "remove")
def remove() -> None:
    """
    Take a model off the cluster that no gateway has.

    Its replicas finish what they answer, and end.
    """


@app.command(examples=("unilect fleet stop",))
@runs("_fleet", "stop")
def stop() -> None:
    """
    Stop this user's nodes on this machine.

    They are what `fleet start` and `fleet join` run. Running answers finish.
    """
