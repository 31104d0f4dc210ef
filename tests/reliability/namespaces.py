"""
Two network namespaces with a cable between them, for tests of networks that fail. Nothing outside of them is touched, but where the server's
is the test's own, which gets its end of the cable.

Needs root and iproute2.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SERVER_ADDRESS, CLIENT_ADDRESS = "10.201.0.1", "10.201.0.2"
#: by whether the server's namespace is that of the test
ADDRESSES = {False: (SERVER_ADDRESS, CLIENT_ADDRESS), True: ("10.202.0.1", "10.202.0.2")}
_NUMBERS = itertools.count()


class Namespaces:
    """
    A namespace for a server, one for its clients, and their cable.

    Attributes:
        server, client: Their names; empty for this process's own.
        cable: The name of the cable's end, on both sides.
    """

    def __init__(self, here: bool) -> None:
        number = next(_NUMBERS)
        name = f"unilect-{os.getpid()}-{number}"
        self.server, self.client = "" if here else f"{name}-s", f"{name}-c"
        self.cable = f"c{os.getpid()}x{number}"

    def command(self, namespace: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in a namespace."""
        return ["ip", "netns", "exec", namespace, *command] if namespace else [*command]

    def cut(self) -> None:
        """Pull the cable out: what either side sends is lost, and neither is told."""
        _ip(self.client, "link", "set", self.cable, "down")

    def mend(self) -> None:
        """Put it in again."""
        _ip(self.client, "link", "set", self.cable, "up")


@contextmanager
def namespaces(here: bool = False) -> Iterator[Namespaces]:
    """
    Two namespaces, until the block ends.

    Args:
        here: The server's is that of this process, with other addresses.

    Raises:
        OSError: They cannot be made here.
    """
    made = Namespaces(here)
    ours = [name for name in (made.server, made.client) if name]
    try:
        for name in ours:
            _ip("", "netns", "add", name)
            _ip(name, "link", "set", "lo", "up")
        _ip(made.server, "link", "add", made.cable, "type", "veth", "peer", made.cable, "netns", made.client)  # fmt: skip
        for name, address in zip((made.server, made.client), ADDRESSES[here], strict=True):
            _ip(name, "address", "add", f"{address}/24", "dev", made.cable)
            _ip(name, "link", "set", made.cable, "up")
        yield made
    finally:
        for name in ours:  # an end of the cable takes the other along
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


def _ip(namespace: str, *arguments: str) -> None:
    command = ["ip", *(["-n", namespace] if namespace else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
