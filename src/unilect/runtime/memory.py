"""
Free memory, of the machine and of the container that unilect may run in.

Source: https://docs.kernel.org/filesystems/proc.html (meminfo), https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.*);
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
"""

import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from unilect.runtime.child_limits import field_of, read_kernel_file

MIB = 2**20
#: The files of a control group's limit and use, and the field of what can be dropped at once, in each version of them.
_FILES_2 = ("memory.max", "memory.current", "inactive_file")
_FILES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")

_NO_LIMIT = 2**62  # version 1 writes the largest number there is, where version 2 writes `max`


class TooLargeError(ValueError):
    """A model that can never fit into the memory of this machine."""


class Group(NamedTuple):
    """A control group that this process is in: its limit in bytes, and what is left of it; None where that is not told."""

    limit: int
    left: int | None


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without evicting anything, within the limits of cgroups; None where the system does not say."""
    free = field_of(root / "proc" / "meminfo", "MemAvailable:")
    if free is None:
        return None
    return min([free * 1024, *(one.left for one in _groups(root) if one.left is not None)])


def total_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory, free or not, within the limits of cgroups; None where the system does not say."""
    total = field_of(root / "proc" / "meminfo", "MemTotal:")
    return None if total is None else min([total * 1024, *(one.limit for one in _groups(root))])


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


class Resident(NamedTuple):
    """The bytes of a process that are in memory: its own, and those of files that it maps."""

    own: int
    mapped: int


def resident(pid: int) -> Resident:
    """Measure the memory of a process; zeros where the system does not tell."""
    told = Path(f"/proc/{pid}/smaps_rollup")
    total, own = field_of(told, "Rss:"), field_of(told, "Anonymous:")
    return (
        Resident(0, 0)
        if total is None or own is None
        else Resident(own * 1024, (total - own) * 1024)
    )


def own_bytes(pid: int) -> int:
    """Measure the memory of a process without the files that it maps, in bytes; 0 where the system does not tell."""
    try:
        pages, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (pages - shared) * resource.getpagesize()


@cache
def processor_words(root: Path = Path("/")) -> frozenset[str]:
    """Return the processor's features, as the system lists them; none where it does not."""
    try:
        with (root / "proc" / "cpuinfo").open() as file:
            lines = (line.partition(":") for line in file)
            found = (text for name, _, text in lines if name.strip() in ("flags", "Features"))
            return frozenset(next(found, "").split())
    except OSError:
        return frozenset()


def _groups(root: Path) -> Iterator[Group]:
    """
    Yield the control groups that limit this process, of both versions, from its own up; a container sees its own as the only one.

    Usage and limits of version 1 include the groups below, as version 2 does where `use_hierarchy` is set, its default since Linux 5.11.
    """
    top = root / "sys" / "fs" / "cgroup"
    try:
        lines = read_kernel_file(root / "proc" / "self" / "cgroup").splitlines()
    except OSError:
        lines = []
    paths = {kinds: path for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") > 1)}  # fmt: skip
    for kinds, path in ({"": "/"} | paths).items():
        if kinds == "":
            yield from _chain(top, path, _FILES_2)
        elif "memory" in kinds.split(","):
            yield from _chain(top / "memory", path, _FILES_1)
    if not any("memory" in kinds.split(",") for kinds in paths):
        yield from _chain(top / "memory", "/", _FILES_1)


def _chain(top: Path, path: str, files: tuple[str, str, str]) -> Iterator[Group]:
    """Yield a group and those above it that have a limit."""
    for limits, uses, tells in _files_of(top, path, files):
        limit = _number(limits)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = _number(uses)
        dropped = field_of(tells, files[2]) or 0
        yield Group(limit, None if used is None else max(0, limit - used + dropped))


@cache  # a server with a hundred models looks some hundred times at its start, and most of a look would be paths
def _files_of(top: Path, path: str, files: tuple[str, str, str]) -> list[tuple[Path, Path, Path]]:
    """Return the files of a group and of those above it, each with its limit, its use, and what can be dropped."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = (top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))
    return [(one / files[0], one / files[1], one / "memory.stat") for one in folders]


def _number(file: Path) -> int | None:
    """Return the only number of a file; None where there is none, as in `max`."""
    try:
        return int(read_kernel_file(file))
    except (OSError, ValueError):
        return None
