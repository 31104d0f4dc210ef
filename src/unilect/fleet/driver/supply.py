"""
The way of model files over Ray: an actor beside each gateway reads the files that its models name, and replicas ask it for pieces.

The actor is pinned to its gateway's node and ends with it. Ray starts it again where it dies, with what it was made with. A piece is an
object of its own, so that no file has to fit into the object store.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unilect.fleet.files import PIECE_BYTES, Item

NAMESPACE = "unilect"
_PREFIX = "files "
_ANSWER_S = 60.0
_AT_ONCE = 8  # pieces for several nodes


class Supplier:
    """
    The files that a gateway supplies, and no others.

    Args:
        paths: The files' paths by digest.
    """

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths

    def piece(self, digest: str, offset: int, size: int) -> bytes | None:
        """Return a piece of a file; None where it is not one of these, or cannot be read any longer."""
        if (path := self._paths.get(digest)) is None:
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                return os.pread(file.fileno(), min(size, PIECE_BYTES), offset)
        except OSError:
            return None


class Offers:
    """A gateway's side: the files of its models, and the actor that has them all."""

    def __init__(self) -> None:
        self._items: dict[str, Sequence[Item]] = {}
        self._paths: dict[str, str] = {}
        self._actor: Any = None
        self._starts = 0

    def offer(self, model: str, items: Sequence[Item]) -> None:
        """
        Have the files of a model given to the nodes that lack them, in place of what it had before.

        Raises:
            RayError: The actor cannot be started.
        """
        self._items[model] = items
        paths = {
            file.digest: str(item.base(Path(item.path)) / file.name)
            for each in self._items.values()
            for item in each
            for file in item.files
        }
        if paths == self._paths:
            return
        before, self._actor = self._actor, None
        if paths:
            self._starts += 1
            node = ray.get_runtime_context().get_node_id()
            kind: Any = ray.remote(Supplier)
            self._actor = kind.options(
                name=f"{_PREFIX}{node} {os.getpid()} {self._starts}",
                namespace=NAMESPACE,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=_AT_ONCE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(paths)
        self._paths = paths
        if before is not None:
            ray.kill(before)  # who was given a piece by it asks its successor for the next one


class SupplierClient:
    """A replica's side: pieces from whichever gateway has the file. Called in a thread."""

    def __init__(self) -> None:
        self._actor: Any = None

    def __call__(self, digest: str, offset: int, size: int) -> bytes:
        """
        Return a piece of a file.

        Raises:
            ConnectionError: No gateway that has it answers.
        """
        why = "none is there"
        last = [] if self._actor is None else [self._actor]
        for actor in chain(last, self._others()):
            try:
                piece = ray.get(actor.piece.remote(digest, offset, size), timeout=_ANSWER_S)
            except RayError as error:
                why = type(error).__name__
                continue
            if piece is not None:
                self._actor = actor
                return bytes(piece)
        self._actor = None
        raise ConnectionError(why)

    def _others(self) -> Iterator[Any]:
        """Yield the actors of all gateways; looked up only where the last one did not help."""
        for one in list_named_actors(all_namespaces=True):
            if one["namespace"] == NAMESPACE and one["name"].startswith(_PREFIX):
                try:
                    yield ray.get_actor(one["name"], namespace=NAMESPACE)
                except ValueError:  # it has ended meanwhile
                    continue
