"""
How much memory is free, on this machine and in the container that we may be in.

Source: https://docs.kernel.org/filesystems/proc.html (meminfo), https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.*)
"""

from pathlib import Path

MIB = 2**20


def free_bytes(root: Path = Path("/")) -> int | None:
    """What can be taken without anything being pushed out; None where the system does not tell."""
    free = _named(root / "proc" / "meminfo", "MemAvailable:")
    if free is None:
        return None
    group = root / "sys" / "fs" / "cgroup"
    limit, used = (_number(group / f"memory.{what}") for what in ("max", "current"))
    if limit is None or used is None:
        return free * 1024
    dropped = _named(group / "memory.stat", "inactive_file") or 0
    return max(0, min(free * 1024, limit - used + dropped))


def _named(file: Path, name: str) -> int | None:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    return next((int(line[1]) for line in lines if line and line[0] == name), None)


def _number(file: Path) -> int | None:
    """The only number of a file; None where there is none, as in `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
