"""
The nodes of the cluster that live, as Ray tells: what the answers of a node that is gone wait for will never come.

Replies come straight from the replica's process, over a connection that says nothing when a machine loses its power or its network.

Source: https://docs.ray.io/en/latest/ray-core/api/doc/ray.nodes.html
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import ray
from ray.exceptions import RayError

from unilect.core.errors import EngineDied

LOOK_S = 1.0
_SILENT_S = 15.0  # without a word of the cluster's head, which other nodes may share


class Nodes:
    """
    The nodes, and the calls that each has taken.

    Args:
        loop: Of the calls.
        own: The id of this process's node.

    Attributes:
        deaths: How many nodes were lost since the start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, own: str) -> None:
        self.deaths = 0
        self._loop = loop
        self._own = own
        self._heard = time.monotonic()
        self._dead: set[str] = set()
        self._calls: dict[str, set[asyncio.Timeout]] = {}

    def watch(self) -> None:
        """
        Look at them in a thread, once a second; another one ends this process when its node is gone, or when nothing is heard of the
        cluster: it is started again, and connects anew.

        Ray ends a driver so only after some losses: one whose cluster was started anew at the same address waits for ever.
        """
        threading.Thread(target=self._look, daemon=True).start()
        threading.Thread(target=self._end_with_own, daemon=True).start()

    @asynccontextmanager
    async def until_lost(self, node: str) -> AsyncIterator[None]:
        """
        Wait within the block for the rest of a call that a node has taken.

        Raises:
            EngineDied: The node is gone.
        """
        try:
            async with asyncio.timeout(None) as rest:
                if node in self._dead:
                    rest.reschedule(0.0)
                calls = self._calls.setdefault(node, set())
                calls.add(rest)
                try:
                    yield
                finally:
                    calls.discard(rest)
                    if not calls:
                        self._calls.pop(node, None)
        except TimeoutError as error:
            if not rest.expired():
                raise
            raise EngineDied(
                "The node of the model's replica is gone. Send the request again."
            ) from error

    def end_calls(self, nodes: set[str]) -> None:
        """End the calls of nodes that are gone."""
        self.deaths += len(nodes)
        self._dead |= nodes
        for node in nodes:
            for rest in self._calls.get(node, ()):
                rest.reschedule(0.0)

    def _look(self) -> None:
        known = set[str]()
        while True:
            with suppress(RayError, RuntimeError, OSError, ValueError):
                nodes = ray.nodes()
                alive = any(one["NodeID"] == self._own and one["Alive"] for one in nodes)
                self._heard = time.monotonic() if alive else 0.0
                dead = {one["NodeID"] for one in nodes if not one["Alive"]}
                if new := dead - known:
                    known |= new
                    self._loop.call_soon_threadsafe(self.end_calls, new)
            time.sleep(LOOK_S)

    def _end_with_own(self) -> None:
        while time.monotonic() - self._heard < _SILENT_S:
            time.sleep(LOOK_S)
        print(
            "the node of this process is gone, or its cluster does not answer",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
