"""
A process and all that it has started: who they are, what they take, and where they listen.

Source: https://docs.kernel.org/filesystems/proc.html (stat), proc_net_tcp, unix(7)
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_INODE = re.compile(r"socket:\[(\d+)\]")
_STAT_BYTES = 4096
_LISTENS = "0A"  # of the states of TCP
_ACCEPTS = 0x10000  # of the flags of a unix socket


class Stat(NamedTuple):
    """
    The kernel's figures of a process.

    Attributes:
        parent: Its parent's id.
        is_dead: It has ended, and its parent has not asked how.
        cpu_s: Processor time, in seconds.
        resident: Memory, with the files that it maps, in bytes.
    """

    parent: int
    is_dead: bool
    cpu_s: float
    resident: int


def read_stat(pid: int | str) -> Stat | None:
    """Read the kernel's figures of a process; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(_STAT_BYTES).rpartition(b") ")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        return Stat(int(fields[1]), fields[0] in (b"Z", b"X"), cpu_s, int(fields[21]) * _PAGE)
    except (OSError, ValueError, IndexError):
        return None


def descendants(pid: int) -> dict[int, Stat]:
    """Return the living processes that a process has started, and those that these have, without itself."""
    children: dict[int, list[tuple[int, Stat]]] = {}
    for name in _numbers("/proc"):
        if (stat := read_stat(name)) is not None:
            children.setdefault(stat.parent, []).append((int(name), stat))
    found, left = dict[int, Stat](), [pid]
    while left:
        for child, stat in children.get(left.pop(), ()):
            if child not in found:
                found[child] = stat
                left.append(child)
    return {child: stat for child, stat in found.items() if not stat.is_dead}


def listening_ports(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports that some processes listen on."""
    inodes = _sockets_of(pids)
    found = set[int]()
    for table in ("tcp", "tcp6"):
        for fields in _rows(f"/proc/net/{table}"):
            if len(fields) > 9 and fields[3] == _LISTENS and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def listening_sockets(pids: Iterable[int]) -> set[str]:
    """Return the paths of the unix sockets that some processes listen on."""
    inodes = _sockets_of(pids)
    return {
        fields[7]
        for fields in _rows("/proc/net/unix")
        if len(fields) > 7 and int(fields[3], 16) & _ACCEPTS and fields[6] in inodes
    }


def _sockets_of(pids: Iterable[int]) -> set[str]:
    found = set[str]()
    for pid in pids:
        for name in _numbers(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if inode := _INODE.fullmatch(target):
                found.add(inode[1])
    return found


def _rows(table: str) -> Iterator[list[str]]:
    try:
        with Path(table).open(errors="replace") as file:
            next(file, None)
            for line in file:
                yield line.split()
    except OSError:
        return


def _numbers(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]
    except OSError:
        return []
