"""The work of the commands for clusters."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

from msgspec import structs

from unilect.cli import _commands as commands
from unilect.cli._given import Given, load_checked
from unilect.cli._screen import fail, tell, tell_table
from unilect.cli._start_screen import own_address
from unilect.config import load as config_load
from unilect.config.fleet import FleetConfig, head_of, resources_here
from unilect.config.server import Config, process_environment
from unilect.core.errors import ConfigError
from unilect.engines.process.child_process import python_command
from unilect.fleet import node, running, token
from unilect.fleet.environment import is_alone, ray_environment
from unilect.runtime.child_environment import child_environment
from unilect.runtime.extras import install
from unilect.runtime.logs import json_line

_ASK = "unilect.fleet.driver.ask"
_ASK_TIMEOUT_S = 90.0  # beside what is waited for
_STOP_TIMEOUT_S = 900.0
_AGAIN_S = 5.0  # between two attempts to join again


class _Cluster(NamedTuple):
    """
    A cluster to be asked.

    Attributes:
        address: Of its head.
        token_file: Its token; None where none is known.
    """

    address: str
    token_file: Path | None


def start(
    config: Path | None,
    listen: str | None,
    port: int | None,
    resources: str | None,
    address: str | None,
) -> None:
    """Start a head and serve, or serve into a cluster that runs; until SIGTERM."""
    _need_ray()
    if address is not None:
        own = {"--listen": listen, "--port": port, "--resources": resources}
        if more := [flag for flag, value in own.items() if value is not None]:
            raise ConfigError(
                f"--address names a cluster that runs already, and {more[0]} is for one that this command starts: leave one of them out."
            )
        into = _head(address)
        commands.serve((), config, {}, {}, lambda settings: _into(settings, into, None))
        return
    settings = load_checked(Given((), config, {}, {}))
    wanted, why = _head_settings(settings.fleet, listen, port, resources), list[str]()

    def leave(reason: str) -> None:
        why.append(reason)
        os.kill(os.getpid(), signal.SIGTERM)

    with _node(wanted) as head:
        tell(_start_screen(wanted, settings.log_format), flush=True)
        head.watch(leave)
        commands.serve(
            (), config, {}, {}, lambda settings: _into(settings, wanted.address, wanted.token)
        )
        if why:
            fail(why[0])


def join(
    head: str, token_file: Path | None, resources: str | None, listen: str | None, port: int | None
) -> None:
    """
    Be a node until SIGTERM, or until the node was drained. Where Ray ends it, as it does with one that had no network for a while, or
    with its head, the node joins again as soon as it can.
    """
    _need_ray()
    wanted = _node_settings(head, token_file, resources, listen, port)
    told, why = "", _be_node(wanted)
    while why:
        if why != told:
            tell(f"unilect: {why} It joins again when it can.", on_stderr=True, flush=True)
        told = why
        time.sleep(_AGAIN_S)
        try:
            why = _be_node(wanted)
        except ConfigError as error:
            why = str(error)
    tell("This node was drained, and has left the cluster.")


def _be_node(wanted: node.NodeSettings) -> str:
    """
    Be a node until it ends by itself.

    Returns:
        Why it has; empty where it was drained.

    Raises:
        ConfigError: It does not start, and why.
    """
    with _node(wanted) as one:
        tell(f"{wanted.host} is a node of the cluster at {wanted.address}.")
        tell(f"{_ports(wanted)}   stop: Ctrl-C", flush=True)
        why = SimpleQueue[str]()
        one.watch(why.put)
        return why.get()


def status(config: Path | None, address: str | None, as_json: bool) -> None:
    """Print the nodes, models and replicas of a cluster."""
    told = _ask(_cluster(config, address), {"what": "status"})
    if as_json:
        tell(json.dumps(told))
        return
    rows = [
        (
            one["id"][:8],
            f"{one['address']}{' (head)' if one['head'] else ''}",
            one["host"],
            one["state"],
            one["unilect"] or "-",
            _resources(one),
            _gib(one.get("memory_free_bytes"), one.get("memory_bytes")),
            "-" if one.get("load") is None else f"{one['load']:.1f}",
        )
        for one in told["nodes"]
    ]
    tell_table(("NODE", "ADDRESS", "HOST", "STATE", "UNILECT", "FREE", "MEMORY", "LOAD"), rows)
    tell()
    if told["models"] is None:
        tell("Models are shown on machines of the cluster only; this one has not joined it.")
        return
    nodes = {one["id"]: one["address"] for one in told["nodes"]}
    lines = [line for model in told["models"] for line in _model_rows(model, nodes)]
    tell_table(("MODEL", "STATUS", "REPLICA", "NODE", "STATE", "REQUESTS", "MEMORY"), lines)
    for model in told["models"]:
        if model["message"] and model["status"] != "running":
            tell(f"{model['name']}: {model['message']}")


def drain(config: Path | None, address: str | None, which: str, timeout_s: float) -> None:
    """Have a node leave, and wait until it has."""
    asked = {"what": "drain", "node": which, "timeout_s": timeout_s}
    told = _ask(_cluster(config, address), asked, timeout_s)
    tell(f"{told['node']} has left the cluster.")


def remove(config: Path | None, address: str | None, model: str, timeout_s: float) -> None:
    """Take a model off the cluster, and wait until its replicas are gone."""
    asked = {"what": "remove", "model": model, "timeout_s": timeout_s}
    told = _ask(_cluster(config, address), asked, timeout_s)
    tell(f"{told['model']} has left the cluster.")


def stop() -> None:
    """Stop the nodes of this user on this machine: gateways finish their answers first."""
    found = running.list_running(process_environment())
    if not found:
        raise ConfigError(
            "no `unilect fleet start` and no `unilect fleet join` of this user runs here."
        )
    for one in reversed(found):  # those that have joined a head here, before it
        what = "head" if one.is_head else f"node of {one.address}"
        if not running.end(one, _STOP_TIMEOUT_S):
            raise ConfigError(
                f"{one.host} ({what}, process {one.pid}) has not ended in time; it still answers. Wait for its requests, and run this again."
            )
        tell(f"{one.host} ({what}) has stopped.")


def _need_ray() -> None:
    if find_spec("ray") is None:
        raise ConfigError(f"unilect fleet: requires Ray. Install it with `{install('fleet')}`.")


def _into(settings: Config, address: str, token_file: Path | None) -> Config:
    """Return a configuration whose models run in this cluster."""
    fleet = structs.replace(settings.fleet, address=address)
    if token_file is not None:
        fleet = structs.replace(fleet, token_file=str(token_file))
    return structs.replace(settings, fleet=fleet)


def _head(text: str) -> str:
    """Return HOST:PORT, where a port that is left out is Ray's."""
    address = text if ":" in text.removeprefix("ray://") else f"{text}:{node.FIRST_PORT}"
    try:
        return head_of(FleetConfig(address=address))
    except ConfigError as error:
        raise ConfigError(
            f"`{text}` is no HOST:PORT. Write the address that `unilect fleet start` has printed, such as 192.168.1.10:6379."
        ) from error


def _head_settings(
    fleet: FleetConfig, listen: str | None, port: int | None, resources: str | None
) -> node.NodeSettings:
    """
    Describe the head to start. A configuration that all machines share may name it as `fleet.address`: then this is where it listens.

    Raises:
        ConfigError: It cannot be.
    """
    host, _, told = head_of(fleet).rpartition(":")
    place = _numbers(listen or host or node.LOOPBACK)
    first = int(told or node.FIRST_PORT) if port is None else port
    file = _find_token(fleet.token_file, make=True)
    if file is None:
        raise ConfigError(
            "There is no folder for this user's data to keep the cluster's token in. Set HOME, or `token_file` in [fleet]."
        )
    try:
        return _settings(place, first, file, resources, "")
    except ConfigError as error:
        if listen is None and host and "--listen" in str(error):
            raise ConfigError(
                f"fleet.address: {host} is no address of this machine. Run this command on the machine that it names, or "
                f"`unilect fleet join {head_of(fleet)}` here."
            ) from error
        raise


def _node_settings(
    head: str, token_file: Path | None, resources: str | None, listen: str | None, port: int | None
) -> node.NodeSettings:
    address = _head(head)
    host = address.rpartition(":")[0]
    if is_alone(host):
        raise ConfigError(
            f"{address} is for its machine only, and no other can join there. Start the head with `unilect fleet start --listen ADDRESS`."
        )
    place = _numbers(listen) if listen else _way_to(host)
    file = _find_token(token_file)
    if file is None:
        raise ConfigError(
            "The token of the cluster is missing. Copy the file that `unilect fleet start` has named, and give it with --token-file, or "
            "set UNILECT_FLEET_TOKEN to its text."
        )
    if is_alone(place):
        raise ConfigError(
            f"--listen: is needed, since the way to {host} does not tell which address of this machine the others reach."
        )
    first = node.FIRST_PORT if port is None else port
    return _settings(place, first, file, resources, address)


def _settings(
    place: str, port: int, token_file: Path, resources: str | None, address: str
) -> node.NodeSettings:
    offered = resources_here(resources or "")
    wanted = node.NodeSettings(place, port, token_file, offered, address, version("unilect"))
    node.check(wanted)
    return wanted


def _find_token(named: Path | str | None, make: bool = False) -> Path | None:
    """
    Find the file of a cluster's token: the one that is named, else that of the variable, else this user's; None for none.

    Args:
        make: Make this user's where there is none.
    """
    if named is not None:
        return token.check(Path(named).absolute())
    environment = process_environment()
    default = token.default_file(environment)
    given = token.from_environment(environment, default, bool(running.list_running(environment)))
    if given is None and default is not None and (make or default.exists()):
        return token.ensure(default)
    return given


def _numbers(host: str) -> str:
    """Return an address in numbers, as Ray needs it."""
    try:
        return socket.gethostbyname(host) if ":" not in host else host
    except OSError as error:
        raise ConfigError(
            f"{host}: is not known here ({error.strerror}). Give an address of the machine."
        ) from error
    except UnicodeError as error:
        raise ConfigError(
            f"{host[:100]!r} is no host name. Write an address such as 192.168.1.10."
        ) from error


def _way_to(host: str) -> str:
    """Return the address of this machine from which another one is reached; nothing is sent."""
    try:
        return own_address(_numbers(host))
    except OSError as error:
        raise ConfigError(
            f"{host}: cannot be reached from this machine ({error.strerror}). Check the network and the address."
        ) from error


@contextmanager
def _node(wanted: node.NodeSettings) -> Iterator[node.Node]:
    """
    Run the node, which others on this machine find, until the block ends; SIGTERM and Ctrl-C end the block where nobody else handles them.

    Raises:
        ConfigError: It does not start, and why.
    """

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    one = node.Node(wanted)
    try:
        tell("Ray starts on this machine ...", on_stderr=True, flush=True)
        one.start()
        with running.announce(process_environment(), wanted.address, wanted.host, wanted.token):
            yield one
    finally:
        one.stop()


def _start_screen(wanted: node.NodeSettings, form: str) -> str:
    """Say where the head of a cluster is, and how it is joined; a line of JSON where the log is."""
    if form == "json":
        fields = {"address": wanted.address, "token_file": str(wanted.token)}
        told = f"the head of the cluster is at {wanted.address}"
        return json_line(told, "info", time.time(), fields)
    if wanted.host == node.LOOPBACK:
        return (
            f"The head of the cluster is at {wanted.address}, for this machine only: others cannot join. "
            "For them, start it with --listen ADDRESS."
        )
    return "\n".join(
        (
            f"The head of the cluster is at {wanted.address}. Another machine joins it with",
            f"  unilect fleet join {wanted.address} --token-file FILE",
            f"where FILE is a copy of {wanted.token} (or with its text in UNILECT_FLEET_TOKEN).",
            _ports(wanted),
        )
    )


def _ports(wanted: node.NodeSettings) -> str:
    """Say which ports are open now."""
    ports = sorted(wanted.ports)
    return (
        f"Ray listens on all addresses of this machine, at {ports[0]} to {ports[-1]} and {node.WORKERS[0]} to {node.WORKERS[1]}: "
        "let only the machines of the cluster reach these ports."
    )


def _cluster(config: Path | None, address: str | None) -> _Cluster:
    """
    Find the cluster that is meant: the one that is named, that of a configuration, or that of the nodes on this machine.

    Raises:
        ConfigError: There is none, or more than one.
    """
    here = running.list_running(process_environment())
    fleet = FleetConfig() if config is None and here else config_load.load(config).fleet
    meant = address or fleet.address
    if not meant and len({one.address for one in here}) == 1:
        return _Cluster(here[0].address, Path(here[0].token_file))
    if not meant:
        several = ", ".join(sorted({one.address for one in here}))
        why = f"this machine has nodes of several ({several})" if here else "none runs on this machine"  # fmt: skip
        raise ConfigError(
            f"Which cluster: {why}. Name its head with --address, or a configuration with --config."
        )
    where = _head(meant)
    known = [Path(one.token_file) for one in here if one.address == where]
    if known and fleet.token_file is None:
        return _Cluster(where, known[0])
    return _Cluster(where, _find_token(fleet.token_file))


def _ask(cluster: _Cluster, asked: dict[str, Any], more_s: float = 0.0) -> Any:
    """Return the answer of a cluster; ConfigError with the reason where it cannot answer."""
    _need_ray()
    host = cluster.address.rpartition(":")[0]
    try:
        done = subprocess.run(
            python_command(_ASK),
            input=json.dumps(asked | {"address": cluster.address}) + "\n",
            capture_output=True,
            text=True,
            env=child_environment() | ray_environment(host, cluster.token_file),
            timeout=_ASK_TIMEOUT_S + more_s,
            check=False,
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"the cluster at {cluster.address} does not answer. Check the address, or start its head with `unilect fleet start`."
        ) from None
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise ConfigError(
            f"the cluster at {cluster.address} cannot be asked: {last[:400]}"
        ) from None
    if "failed" in told:
        raise ConfigError(told["failed"])
    return told["answer"]


def _model_rows(model: dict[str, Any], nodes: dict[str, str]) -> Iterator[tuple[str, ...]]:
    head = (model["name"], f"{model['status']}, {model['wanted']} wanted")
    if not model["replicas"]:
        yield (*head, "-", "-", "-", "-", "-")
    for one in model["replicas"]:
        where = nodes.get(one["node"], "-")
        requests = "-" if one["requests"] is None else str(one["requests"])
        yield (*head, one["id"], where, one["state"], requests, _gib(one["memory_bytes"]))


def _resources(one: dict[str, Any]) -> str:
    """Return the free part of each resource: `CPU 1 of 2, GPU 0 of 1`; memory has a column of its own."""
    shown = {n: total for n, total in one["resources"].items() if "memory" not in n}
    return ", ".join(f"{n} {one['free'].get(n, 0):g} of {total:g}" for n, total in shown.items()) or "-"  # fmt: skip


def _gib(*sizes: float | None) -> str:
    """Write sizes in GiB: `3.1 of 8.0 GiB`."""
    if None in sizes:
        return "-"
    return " of ".join(f"{size / 1024**3:.1f}" for size in sizes if size is not None) + " GiB"
