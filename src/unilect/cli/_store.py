"""The work of the commands for the store."""

import asyncio
import json
from pathlib import Path

from msgspec import structs

from unilect.cli._screen import tell
from unilect.config import load as config_load
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError
from unilect.store.upkeep import StoreReport, Upkeep


def check(config: Path | None, as_json: bool) -> None:
    """Print what a store holds; what is wrong with it ends the process with exit code 1."""
    report = asyncio.run(_upkeep(config).inspect())
    if as_json:
        tell(json.dumps(structs.asdict(report)))
    else:
        tell("\n".join(_lines(report)))
    if report.problems:
        raise ConfigError(
            f"{report.place}: damaged. Stop the servers that use it, and put a backup in its place or move it away."
        )


def migrate(config: Path | None) -> None:
    """Make tables where there are none, and say from what they were."""
    before, now = asyncio.run(_upkeep(config).migrate())
    if before == now:
        tell(f"The tables are up to date (revision {now}).")
    else:
        tell(f"The tables have revision {now} now ({before or 'there were none'}).")


def backup(config: Path | None, file: Path) -> None:
    """Copy a store, and say how large the copy is."""
    size = _upkeep(config).copy_to(file)
    tell(f"{file}: {size} bytes")


def _upkeep(config: Path | None) -> Upkeep:
    return Upkeep(config_load.load(config).store, process_environment())


def _lines(report: StoreReport) -> list[str]:
    size = "" if report.size_bytes is None else f", {report.size_bytes / 1024**2:.1f} MiB"
    lines = [f"{report.place}{size}"]
    if not report.version:
        return [*lines, "there are no tables yet; a server makes them when it first uses the store"]
    if report.version != report.newest:
        lines.append(f"the tables have revision {report.version}, of a newer version of unilect")
    lines += [f"{count} {name}" for name, count in report.counts.items()]
    if report.problems:
        return [*lines, *(f"wrong: {problem}" for problem in report.problems)]
    return [*lines, "sound" if report.size_bytes is not None else "readable"]
