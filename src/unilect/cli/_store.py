"""The work of the commands for the store."""

import asyncio
import json
from pathlib import Path

from msgspec import structs

from unilect.cli._commands import fail, or_exit
from unilect.cli._screen import tell
from unilect.config import load as config_load
from unilect.config.server import process_environment
from unilect.store.upkeep import Found, Upkeep


def check(config: Path | None, as_json: bool) -> None:
    """Print what a store holds; what is wrong with it ends the process with exit code 1."""
    found: Found = or_exit(lambda: asyncio.run(_upkeep(config).look()))
    if as_json:
        tell(json.dumps(structs.asdict(found)))
    else:
        tell("\n".join(_lines(found)))
    if found.problems:
        fail(
            f"{found.place}: damaged. Stop the servers that use it, and put a backup in its place or move it away."
        )


def migrate(config: Path | None) -> None:
    """Bring tables up to date, and say from what they were."""
    before, now = or_exit(lambda: asyncio.run(_upkeep(config).migrate()))
    if before == now:
        tell(f"The tables are up to date (revision {now}).")
    else:
        tell(f"The tables have revision {now} now ({before or 'there were none'}).")


def backup(config: Path | None, file: Path) -> None:
    """Copy a store, and say how large the copy is."""
    size = or_exit(lambda: _upkeep(config).copy_to(file))
    tell(f"{file}: {size} bytes")


def _upkeep(config: Path | None) -> Upkeep:
    return Upkeep(config_load.load(config).store, process_environment())


def _lines(found: Found) -> list[str]:
    size = "" if found.size_bytes is None else f", {found.size_bytes / 1024**2:.1f} MiB"
    lines = [f"{found.place}{size}"]
    if not found.version:
        return [*lines, "there are no tables yet; a server makes them when it first uses the store"]
    if found.version > found.newest:
        lines.append(f"the tables have revision {found.version}, of a newer version of unilect")
    elif found.version < found.newest:
        lines.append(
            f"the tables have revision {found.version}; `unilect store migrate`, or a server, makes it {found.newest}"
        )
    lines += [f"{count} {name}" for name, count in found.counts.items()]
    if found.problems:
        return [*lines, *(f"wrong: {problem}" for problem in found.problems)]
    return [*lines, "sound" if found.size_bytes is not None else "readable"]
