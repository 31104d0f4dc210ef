"""
Two network namespaces with a cable between them, for tests of networks that fail; nothing outside of them is touched.

Needs root and iproute2.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SERVER_ADDRESS, CLIENT_ADDRESS = "10.201.0.1", "10.201.0.2"
_NUMBERS = itertools.count()


class Namespaces:
    """
    A namespace for a server, one for its clients, and their cable.

    Attributes:
        server, client: Their names.
    """

    def __init__(self) -> None:
        name = f"unilect-{os.getpid()}-{next(_NUMBERS)}"
        self.server, self.client = (f"{name}-{side}" for side in "sc")

    def command(self, namespace: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def cut(self) -> None:
        """Pull the cable out: what either side sends is lost, and neither is told."""
        _ip("-n", self.client, "link", "set", "cable", "down")


@contextmanager
def namespaces() -> Iterator[Namespaces]:
    """
    Two namespaces, until the block ends.

    Raises:
        OSError: They cannot be made here.
    """
    made = Namespaces()
    try:
        for name in (made.server, made.client):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", made.server, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", made.client)  # fmt: skip
        for name, address in ((made.server, SERVER_ADDRESS), (made.client, CLIENT_ADDRESS)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
        yield made
    finally:
        for name in (made.server, made.client):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "needs iproute2"
    try:
        with namespaces():
            return ""
    except OSError as error:
        return f"needs network namespaces: {error}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
