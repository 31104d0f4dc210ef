"""
The process that answers one question about a cluster: reads it as a JSON line, `status`, `drain` or `remove`, prints the answer as one, and ends.

What nodes there are the head tells. Models, replicas and memory need a driver, which runs on machines of the cluster only.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unilect.fleet.driver import serve_internals
from unilect.fleet.driver.rollout import app_of
from unilect.fleet.driver.state import ClusterError, connect, drain_node, list_nodes

_TIMEOUT_S = 15.0
_LOOK_S = 0.5
# a node that has come back stands there twice until the head gives its former life up
_NOTICED_S = 25.0


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """
    Answer a question.

    Args:
        question: `what`, `address` of the head, for `drain` the `node`, for `remove` the `model`, and for both `timeout_s`.

    Raises:
        ClusterError: The cluster does not answer, or does not do it.
    """
    head = connect(question["address"])
    if question["what"] == "drain":
        return _drain(head, question["node"], question["timeout_s"])
    with _driver(question["address"]) as is_node:
        if question["what"] == "remove":
            if not is_node:
                raise ClusterError(
                    "Models are removed on machines of the cluster only; this one has not joined it."
                )
            return _remove(question["model"], question["timeout_s"])
        nodes = list_nodes(head)
        models = _models() if is_node else None
        if models is not None:
            _measure(nodes, models)
    return {"address": question["address"], "nodes": nodes, "models": models}


@contextmanager
def _driver(address: str) -> Iterator[bool]:
    """Connect to the cluster within the block; false where this machine is no node of it."""
    try:
        ray.init(
            address=address,
            namespace="unilect",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, RayError):
        yield False
        return
    try:
        yield True
    finally:
        ray.shutdown()


def _models() -> list[dict[str, Any]]:
    """List the models that Serve runs for gateways of unilect."""
    prefix, models = app_of(""), []
    for name, app in serve_internals.get_apps().items():
        if name.startswith(prefix):
            deployments = list(app["deployments"].values())
            replicas = [_replica(one) for each in deployments for one in each["replicas"]]
            models.append(
                {
                    "name": name.removeprefix(prefix),
                    "status": str(getattr(app["status"], "value", app["status"])).lower(),
                    "message": _lines(app["message"], deployments),
                    "wanted": sum(each["target_num_replicas"] for each in deployments),
                    "replicas": replicas,
                }
            )
    return models


def _lines(message: str, deployments: list[dict[str, Any]]) -> str:
    texts = [message, *(one.get("message", "") for one in deployments)]
    return next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")[:500]  # fmt: skip


def _replica(details: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": details["replica_id"],
        "node": details.get("node_id"),  # not yet known while it waits for a place
        "state": str(getattr(details["state"], "value", details["state"])).lower(),
        "pid": details.get("pid"),
        "requests": serve_internals.count_requests(details.get("actor_name") or ""),
        "memory_bytes": None,
    }


def _measure(nodes: list[dict[str, Any]], models: list[dict[str, Any]]) -> None:
    """Add what a small task on each node sees: its load, its memory, and that of its replicas."""
    replicas = [one for model in models for one in model["replicas"]]
    looks = {}
    for node in nodes:
        pids = [one["pid"] for one in replicas if one["node"] == node["id"] and one["pid"]]
        node |= {"load": None, "memory_bytes": None, "memory_free_bytes": None}
        if node["state"] == "alive":  # a node that is drained takes no task
            there = NodeAffinitySchedulingStrategy(node["id"], soft=False)
            looks[node["id"]] = ray.remote(num_cpus=0, max_retries=0)(_look).options(scheduling_strategy=there).remote(pids)  # fmt: skip
    ray.wait(list(looks.values()), num_returns=len(looks), timeout=_TIMEOUT_S)
    for node in nodes:
        try:
            facts = ray.get(looks[node["id"]], timeout=0.1)
        except (KeyError, RayError):  # it has left, or is too busy
            continue
        of_pids = facts.pop("resident")
        node |= facts
        for one in replicas:
            if one["node"] == node["id"]:
                one["memory_bytes"] = of_pids.get(one["pid"])


def _look(pids: list[int]) -> dict[str, Any]:
    """Run on a node. A replica's memory is that of its process and of the engines that it has as children."""
    import os
    from pathlib import Path

    def field(path: str, name: str) -> int:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)

    def resident(pid: int) -> int:
        children = []
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                children += thread.read_text().split()
            except OSError:
                continue
        return field(f"/proc/{pid}/status", "VmRSS:") + sum(resident(int(one)) for one in children)

    return {
        "load": os.getloadavg()[0],
        "memory_bytes": field("/proc/meminfo", "MemTotal:"),
        "memory_free_bytes": field("/proc/meminfo", "MemAvailable:"),
        "resident": {pid: resident(pid) for pid in pids},
    }


def _drain(head: Any, which: str, timeout_s: float) -> dict[str, Any]:
    """Drain the node of this address, name or id, and wait until it has left."""
    node = _find_node(head, which)
    if node["head"]:
        raise ClusterError(
            f"{which} is the head, with which the cluster ends. Stop it with `unilect fleet stop` on its machine."
        )
    if node["state"] == "alive":
        drain_node(head, node["id"])
    _wait(
        lambda: all(one["id"] != node["id"] for one in list_nodes(head)),
        timeout_s,
        f"{node['address']} takes nothing new, and has not left within {timeout_s:.0f} s: its replicas finish what they answer, and "
        "need a place on other nodes first. `unilect fleet status` shows them; the same command waits on.",
    )
    return {"node": node["address"], "id": node["id"]}


def _remove(name: str, timeout_s: float) -> dict[str, Any]:
    """Take a model off the cluster, and wait until its replicas have finished what they answer and are gone."""
    there = [model["name"] for model in _models()]
    if name not in there:
        shown = ", ".join(sorted(there)) or "it has none"
        raise ClusterError(f"{name} is no model of the cluster. Name one of these: {shown}.")
    serve_internals.delete_app(app_of(name))
    _wait(
        lambda: all(model["name"] != name for model in _models()),
        timeout_s,
        f"{name} takes nothing new, and is not gone within {timeout_s:.0f} s: its replicas finish what they answer. "
        "`unilect fleet status` shows them; the same command waits on.",
    )
    return {"model": name}


def _wait(is_done: Callable[[], bool], timeout_s: float, late: str) -> None:
    until = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > until:
            raise ClusterError(late)
        time.sleep(_LOOK_S)


def _find_node(head: Any, which: str) -> dict[str, Any]:
    """
    Find the node of this address, name or id.

    Raises:
        ClusterError: There is none, or more than one.
    """
    until = time.monotonic() + _NOTICED_S
    while True:
        nodes = list_nodes(head)
        matches = [
            node
            for node in nodes
            if which in (node["address"], node["host"])
            or (len(which) >= 4 and node["id"].startswith(which))
        ]
        if len(matches) == 1:
            return matches[0]
        if not matches or time.monotonic() > until:
            shown = ", ".join(f"{node['address']} ({node['id'][:8]})" for node in nodes)
            many = "several nodes" if matches else "no node"
            raise ClusterError(
                f"{which} is {many} of the cluster. Name one by its address or the beginning of its id: {shown}."
            )
        time.sleep(_LOOK_S)


def main() -> None:
    """Answer."""
    question, reply = json.loads(sys.stdin.readline()), dict[str, Any]()
    try:
        reply["answer"] = answer(question)
    except ClusterError as error:
        reply["failed"] = str(error)
    except RayError as error:
        reply["failed"] = f"The cluster does not answer: {str(error).splitlines()[0][:300]}"
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
