"""Tests of unilect.fleet.driver.serve_internals without a cluster: the private names of Ray that are used are there, and mean what they are used for."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from support.servers.clusters import need_serve

need_serve()

from ray import serve
from ray.serve import context
from ray.serve._private import client, constants, controller, replica

from unilect.fleet.driver import serve_internals


def test_a_port_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function with which Serve binds a replica's port is given an address on loopback."""
    bound = list[str]()
    parameters = inspect.signature(replica.add_port_to_grpc_server).parameters
    assert ["server", "address"] == list(parameters)
    monkeypatch.setattr(replica, "add_port_to_grpc_server", lambda _, address: bound.append(address))  # fmt: skip
    serve_internals.bind_to_loopback()

    replica.add_port_to_grpc_server(None, "[::]:0")

    assert ["127.0.0.1:0"] == bound


def test_a_version() -> None:
    """A deployment gets the version that it is given."""

    @serve.deployment
    class Some:
        pass

    assert "1" == serve_internals.with_version(Some, "1")._version


def test_what_serve_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of Serve's client is one of its functions; a deployment that it does not have is None."""

    class Client:
        def get_deployment_info(self, name: str, app: str) -> Any:
            raise KeyError(name)

    taken = inspect.signature(client.ServeControllerClient.get_deployment_info).parameters
    assert ["self", "name", "app_name"] == list(taken)
    monkeypatch.setattr(context, "_get_global_client", Client)

    assert serve_internals.find_settings("engine", "app") is None


def test_the_names() -> None:
    """The actors of Serve, and their methods, have the names by which they are called."""
    assert ("SERVE_CONTROLLER_ACTOR", "serve") == (constants.SERVE_CONTROLLER_NAME, constants.SERVE_NAMESPACE)  # fmt: skip
    assert hasattr(controller.ServeController, "get_serve_instance_details")
    assert hasattr(replica.ReplicaActor, "get_num_ongoing_requests")
    assert "_blocking" in inspect.signature(serve.delete).parameters


def test_where_private_parts_are() -> None:
    """Two modules import private parts of Ray: this one, and the one that connects to a head."""
    fleet = Path(serve_internals.__file__).parents[1]
    private = re.compile(r"^(?:from|import) ray[\w.]*(?:\._| import .*\b_)", re.MULTILINE)

    assert ["serve_internals.py", "state.py"] == sorted(
        file.name for file in fleet.rglob("*.py") if private.search(file.read_text())
    )
