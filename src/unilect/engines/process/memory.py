"""
Free memory, of the machine and of the container that unilect may run in.

Source: https://docs.kernel.org/filesystems/proc.html (meminfo), https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.*)
"""

import resource
from collections.abc import Iterator
from pathlib import Path

from unilect.runtime.child_limits import field_of

MIB = 2**20


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without evicting anything, within the limits of cgroups; None where the system does not say."""
    free = field_of(root / "proc" / "meminfo", "MemAvailable:")
    if free is None:
        return None
    left = [free * 1024]
    for group in _groups(root):
        limit, used = (_number(group / f"memory.{what}") for what in ("max", "current"))
        if limit is not None and used is not None:
            dropped = field_of(group / "memory.stat", "inactive_file") or 0
            left.append(max(0, limit - used + dropped))
    return min(left)


def total_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory, free or not, within the limits of cgroups; None where the system does not say."""
    total = field_of(root / "proc" / "meminfo", "MemTotal:")
    if total is None:
        return None
    limits = (_number(group / "memory.max") for group in _groups(root))
    return min([total * 1024, *(limit for limit in limits if limit is not None)])


def resident_bytes(pid: int) -> int:
    """Return the bytes that a process has in memory, with the files that it maps; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def proportional_bytes(pid: int) -> int:
    """
    Measure the memory of a process in bytes, with its part of the pages that it shares: weights that two processes map count half for each.

    The kernel looks at every page, 10 ms for each GiB: not for the event loop. Where it does not tell, this is `resident_bytes`.

    Source: https://docs.kernel.org/filesystems/proc.html (smaps_rollup)
    """
    kib = field_of(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return resident_bytes(pid) if kib is None else kib * 1024


def own_bytes(pid: int) -> int:
    """Measure the memory of a process without the files that it maps, in bytes; 0 where the system does not tell."""
    try:
        pages, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (pages - shared) * resource.getpagesize()


def processor_words(root: Path = Path("/")) -> frozenset[str]:
    """Return the processor's features, as the system lists them; none where it does not."""
    try:
        with (root / "proc" / "cpuinfo").open() as file:
            lines = (line.partition(":") for line in file)
            found = (text for name, _, text in lines if name.strip() in ("flags", "Features"))
            return frozenset(next(found, "").split())
    except OSError:
        return frozenset()


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control groups that this process is in, from its own up; a container sees its own as the only one."""
    top = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    parts = [part for part in own.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:count])


def _number(file: Path) -> int | None:
    """Return the only number of a file; None where there is none, as in `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
