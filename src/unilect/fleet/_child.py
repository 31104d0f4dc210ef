"""
The process that holds the gateway's connection to a Ray cluster: it brings models there and hands calls to their replicas.

It is a process of its own because a driver of Ray ends with the raylet of its node; the gateway does not, and starts it again.
Frames pass through it unread.
"""

import asyncio
import logging
import threading
import traceback
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from unilect import frames
from unilect.engines.process import child
from unilect.errors import BackendError, BackendUnavailable, EngineDied, UnilectError
from unilect.fleet import wire
from unilect.fleet._replica import FAILED, Replica
from unilect.fleet._supply import NAMESPACE, Offers

_BACKLOG = 2048
_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_STARTS = 2  # attempts of Ray to start a replica before it gives a model up
_DRAIN_S = 3600.0  # the longest answer that a replica may finish before it is stopped
_CHECK_S = 2.0
_SURGE_PERCENT = 100  # replicas more than there should be, while others are replaced
_FULL = 0.75  # of the requests that a replica takes: from then on there should be another one
_UP_AFTER_S, _DOWN_AFTER_S = 2.0, 60.0

_SERVED: Any = serve.deployment(
    Replica,
    name="engine",
    graceful_shutdown_timeout_s=_DRAIN_S,
    graceful_shutdown_wait_loop_s=0.5,
    health_check_period_s=_CHECK_S,
    max_constructor_retry_count=_STARTS,
    max_surge_percent=_SURGE_PERCENT,
    request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
)


class Middle:
    """
    One connection to a cluster.

    Args:
        settings: `address`: of the cluster; empty to start one on this machine, which ends with this process.
            `object_store_bytes`: of one that is started.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._handles: dict[str, Any] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._loop = asyncio.new_event_loop()
        self._offers = Offers() if settings["address"] else None  # no other machine can join else
        own = {
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": settings["object_store_bytes"],
        }
        ray.init(
            address=settings["address"] or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=False,
            **({} if settings["address"] else own),
        )
        serve.start(proxy_location="Disabled")

    def start(self, socket_path: str) -> dict[str, Any]:
        """Serve, in a thread."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(
            asyncio.start_unix_server(self._serve, socket_path, backlog=_BACKLOG)
        )
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return {"nodes": len(ray.nodes())}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question, until it is answered or who asks has left."""
        work = left = None
        try:
            asked = msgspec.msgpack.decode(await frames.read(reader), type=wire.Asked)
            work = asyncio.create_task(self._answer(asked, writer))
            left = asyncio.create_task(reader.read(1))
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                await writer.drain()
        except UnilectError as error:
            writer.write(frames.of_error(error))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except RayActorError:
            died = EngineDied("The model's replica died during the answer. Send the request again.")
            writer.write(frames.of_error(died))
        except (BackPressureError, DeploymentUnavailableError) as failure:
            writer.write(frames.of_error(BackendUnavailable(str(failure), retry_after_s=5)))
        except (RayError, RayServeException) as failure:
            writer.write(frames.of_error(BackendError(_first_line(failure))))
        except Exception as failure:  # noqa: BLE001 - a flaw of one call is not the end of the others
            traceback.print_exc()
            writer.write(frames.of_error(BackendError(_first_line(failure))))
        finally:
            for task in (work, left):
                if task is not None:
                    task.cancel()
            writer.close()

    async def _answer(self, asked: wire.Asked, writer: asyncio.StreamWriter) -> None:
        if asked.what == "ping":
            writer.write(wire.value(True))
        elif asked.what == "deploy":
            deployment = wire.read(wire.Deployment, asked.body)
            async with self._locks.setdefault(deployment.name, asyncio.Lock()):
                await asyncio.to_thread(self._deploy, deployment, bytes(asked.body))
            writer.write(wire.value(True))
        else:
            async for item in self._items(asked):
                writer.write(item)
                await writer.drain()

    async def _items(self, asked: wire.Asked) -> AsyncIterator[bytes]:
        """What a replica says to a call; it is told when nobody listens any longer."""
        if (handle := self._handles.get(asked.model)) is None:
            raise BackendUnavailable("The model is not on the cluster. Try again.", retry_after_s=1)
        answer = handle.options(session_id=asked.session).answer.remote(bytes(asked.body))
        whole = False
        try:
            async for item in answer:
                yield item
            whole = True
        finally:
            if not whole:
                answer.cancel()

    def _deploy(self, made: wire.Deployment, body: bytes) -> None:
        """
        Have a model on the cluster as it is told, with as many replicas as it needs at least.

        Raises:
            BackendUnavailable: It does not start; the message says why.
        """
        app = app_of(made.name)
        if self._offers is not None:
            self._offers.offer(made.name, made.files)
        deployment = _SERVED.options(
            max_ongoing_requests=made.in_flight, ray_actor_options=made.resources, **_scale(made)
        )
        known = serve.status().applications.get(app)
        if known is None or known.status != "RUNNING":
            try:
                serve.run(deployment.bind(body), name=app, route_prefix=None)
            except (RuntimeError, RayError, RayServeException) as error:
                raise BackendUnavailable(self._why(app, error)) from error
        handle = serve.get_app_handle(app)
        self._handles[made.name] = handle.options(stream=True)

    def _why(self, app: str, error: BaseException) -> str:
        """Our own words out of Ray's report of a failed start, where they are there."""
        found = serve.status().applications.get(app)
        told = [str(error)]
        if found is not None:
            told += [found.message, *(one.message for one in found.deployments.values())]
        for text in told:
            if (at := text.find(FAILED)) >= 0:
                return text[at + len(FAILED) :].splitlines()[0]
        return f"Ray cannot start the model: {_first_line(error)}"


def _scale(made: wire.Deployment) -> dict[str, Any]:
    """How many replicas, as Serve is told."""
    if made.least == made.most:
        return {"num_replicas": made.least}
    scaling = AutoscalingConfig(
        min_replicas=made.least,
        max_replicas=made.most,
        initial_replicas=max(1, made.least),
        target_ongoing_requests=max(1.0, made.in_flight * _FULL),
        upscale_delay_s=_UP_AFTER_S,
        downscale_delay_s=_DOWN_AFTER_S,
    )
    return {"autoscaling_config": scaling}


def app_of(model: str) -> str:
    """The name of a model's application on the cluster."""
    return f"unilect {model}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:500]


def serve_calls(settings: dict[str, Any]) -> dict[str, Any]:
    """Connect, and answer calls."""
    try:
        return Middle(settings).start(settings["socket_path"])
    except (ConnectionError, RuntimeError, RayError) as error:
        raise ValueError(f"Ray cannot be reached or started: {_first_line(error)}") from error


if __name__ == "__main__":
    child.run(serve_calls, at_end=ray.shutdown)
