"""Tests of unilect.engines.process.tree."""

import os
import socket
import subprocess
from pathlib import Path

from unilect.engines.process.tree import (
    descendants,
    listening_ports,
    listening_sockets,
    read_stat,
)


def test_descendants() -> None:
    """What a process has started is found through all generations, also in another session, and not what has ended."""
    script = (
        'setsid sh -c \'tail -n 1 -f "$0" & wait\' "$0" & wait'  # says a line once it is itself
    )
    with subprocess.Popen(["sh", "-c", script, __file__], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found, below = descendants(os.getpid()), descendants(process.pid)
        assert process.pid in found
        assert {*below} & {one.parent for one in below.values()}
        for pid in below:
            os.kill(pid, 9)
    assert process.pid not in descendants(os.getpid())


def test_stat() -> None:
    """The kernel's figures of this process are told, and none of a process that is not there."""
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (os.getppid(), False) == (stat.parent, stat.is_dead)
    assert stat.resident > 2**20
    assert stat.cpu_s > 0
    assert read_stat(2**22 + 1) is None


def test_listening(tmp_path: Path) -> None:
    """The ports and sockets that a process listens on are found, by IPv4, IPv6 and path, and no others."""
    own = [os.getpid()]
    with socket.socket() as four, socket.socket(socket.AF_UNIX) as unix, socket.socket() as idle:
        four.bind(("127.0.0.1", 0))
        idle.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "a.sock"))
        four.listen()
        unix.listen()
        ports = listening_ports(own)
        assert four.getsockname()[1] in ports
        assert idle.getsockname()[1] not in ports
        assert str(tmp_path / "a.sock") in listening_sockets(own)
        assert not listening_ports([]) | listening_ports([2**22 + 1])
    if socket.has_ipv6:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
            assert six.getsockname()[1] in listening_ports(own)
