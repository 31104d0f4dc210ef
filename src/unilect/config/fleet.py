"""The settings of the fleet: the table `[fleet]` of a configuration, and what a model with `replicas` may ask of its nodes."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from unilect.config import paths
from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig
from unilect.config.option import Table, option
from unilect.config.sizes import parse_size

_ADDRESS = re.compile(r"(?:ray://)?([^\s/:@]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})")
_RESOURCE = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,4})?", re.ASCII)


class FleetConfig(Table, frozen=True, kw_only=True):
    """The Ray cluster of models with `replicas`: the table `[fleet]`."""

    address: str = option(
        "",
        "The cluster that models with `replicas` run on: `HOST:PORT` of its head, where this machine has joined it. Empty: a cluster "
        "of this machine alone, which starts and ends with the server.",
        example="192.168.1.10:6379",
    )
    token_file: str | None = option(
        None,
        "File with the token that the nodes of the cluster know. Default: the one that `unilect fleet start` or `join` has written.",
        path=paths.plain,
        example="/etc/unilect/fleet-token",
    )
    file_cache_gib: Annotated[float, Meta(ge=0, le=1_000_000)] = option(
        100.0,
        "How much each node keeps of the model files that were sent to it, in GiB: the least recently used go first. Files in use "
        "stay, also beyond this.",
    )


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of files that were sent to this machine; None where its user has no such folder."""
    folder = paths.cache_folder(environment)
    return None if folder is None else folder / "fleet"


def head_of(config: FleetConfig) -> str:
    """
    Return host and port of the cluster's head; empty for none.

    Raises:
        ConfigError: The address is none.
    """
    if not config.address:
        return ""
    found = _ADDRESS.fullmatch(config.address)
    if found is None or not 0 < int(found[2]) <= 65535:
        raise OptionError(
            ("fleet", "address"),
            f"`{config.address}` is no HOST:PORT. Write the address that `unilect fleet start` has printed, "
            "such as 192.168.1.10:6379.",
        )
    return f"{found[1]}:{found[2]}"


def check_replicas(name: str, config: ModelConfig) -> None:
    """
    Check what a model with `replicas` cannot be.

    Raises:
        ConfigError: All are told.
    """
    found, path = ErrorCollector(), ("models", name)
    if config.replicas is None:
        return
    if len(config.sources) > 1:
        found.add(
            f"models.{name}: replicas: takes one source, and this model has {len(config.sources)}. Leave one, or leave replicas out.",
            (*path, "replicas"),
        )
    if not isinstance(config.replicas, int | None) and config.replicas.min > config.replicas.max:
        found.add(
            f"models.{name}: replicas: min ({config.replicas.min}) is more than max ({config.replicas.max}). Change one of them.",
            (*path, "replicas"),
        )
    if config.idle_stop_s is not None:
        found.add(
            f"models.{name}: idle_stop_s: has no effect on replicas; write `replicas = {{ min = 0, max = N }}` instead.",
            (*path, "idle_stop_s"),
        )
    with found:
        resources_of(name, config)
    found.raise_all()


def resources_of(name: str, config: ModelConfig) -> dict[str, Any]:
    """
    Return what the cluster keeps for each replica, as Ray names it: `num_cpus`, `num_gpus`, `memory` in bytes, `resources`.

    Raises:
        ConfigError: One is not a number, or no size.
    """
    found, told = ErrorCollector(), dict[str, Any]()
    others = dict[str, float]()
    for key, given in config.resources.items():
        if key == "memory":
            if (size := parse_size(given)) is None:
                found.add(
                    f"models.{name}: resources: memory: {given!r} is no size. Write bytes, or a text such as `24GiB`.",
                    ("models", name, "resources"),
                )
            else:
                told["memory"] = size
        elif isinstance(given, bool | str) or not 0 <= given < math.inf:
            found.add(
                f"models.{name}: resources: {key}: {given!r} is no number. Write how much of it a replica needs, such as 1 or 0.5.",
                ("models", name, "resources"),
            )
        elif key in ("cpu", "gpu"):
            told[f"num_{key}s"] = given
        else:
            others[key] = given
    found.raise_all()
    told.setdefault("num_cpus", config.threads or 1)
    if others:
        told["resources"] = others
    if config.accelerator:
        told["accelerator_type"] = config.accelerator
    return told


def resources_here(text: str) -> dict[str, float]:
    """
    Parse what a node offers, as `--resources` has it: `gpu=1,memory=24GiB,NAME=2`; memory in bytes.

    Raises:
        ConfigError: A part is no NAME=NUMBER; all are told.
    """
    found, told = ErrorCollector(), dict[str, float]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, given = part.partition("=")
        number = parse_size(given) if name == "memory" else _number(given)
        if not _RESOURCE.fullmatch(name) or name in told or number is None:
            found.add(
                f"--resources: `{part[:80]}` is none. Write NAME=NUMBER once for each, such as `gpu=1,memory=24GiB,licence=2`."
            )
        else:
            told[name] = number
    found.raise_all()
    return told


def _number(text: str) -> float | None:
    """Parse a number of something; None where it is none. Ray counts in ten thousandths."""
    if not _COUNT.fullmatch(text):
        return None
    number = float(text)
    return int(number) if number.is_integer() else number
