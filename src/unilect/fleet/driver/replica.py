"""
A replica of a model: a Ray Serve deployment that holds one of our engines, unchanged, and answers calls with frames.

The constructor returns when the model is loaded, so Ray sends nothing to a replica that is not ready, and replaces none before its
successor is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import Any

import msgspec

from unilect.api import backend
from unilect.config.fleet import cache_folder
from unilect.config.model import ModelConfig
from unilect.config.server import process_environment
from unilect.core.errors import BackendError, ConfigError, UnilectError, UnsupportedOperation
from unilect.core.events import Event
from unilect.fleet import wire
from unilect.fleet.files import Cache, with_places
from unilect.models import sources
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.wire import frames

log = logging.getLogger("unilect")
FAILED = "unilect cannot serve this model: "  # what follows it in Ray's report of a failed start is our reason


class StartFailed(Exception):
    """A replica that cannot start, in words for the operator; Ray reports it with its traceback."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{FAILED}{why}")


class Replica:
    """
    One engine.

    Args:
        body: A `wire.Deployment`, as msgpack.

    Attributes:
        node: The id of its node.
    """

    node = ""

    async def __init__(self, body: bytes) -> None:  # type: ignore[misc]  # Ray waits for it
        deployment = msgspec.msgpack.decode(body, type=wire.Deployment)
        if deployment.version != (here := version("unilect")):
            raise StartFailed(
                f"this node has unilect {here}, and the gateway {deployment.version}. Install the same on both."
            )
        try:
            config = await self._with_files(deployment)
            spec = sources.spec_of(deployment.name, config.sources[0], config, config.threads or 1)
            spec = msgspec.structs.replace(spec, several_callers=deployment.several_callers)
            self._backend = sources.backend(spec)
            await self._backend.start()
        except (UnilectError, ConfigError) as error:
            raise StartFailed(str(error)) from error

    async def _with_files(self, deployment: wire.Deployment) -> ModelConfig:
        """
        Return the settings with the paths of this node; what is not here is fetched first.

        Raises:
            ConfigError: It cannot be fetched or kept.
        """
        if not deployment.files:
            return deployment.config
        if (folder := cache_folder(process_environment())) is None:
            raise ConfigError(
                "the node has no folder for model files: there is neither HOME nor XDG_CACHE_HOME. Set one of them for `unilect fleet join`."
            )
        from unilect.fleet.driver.supply import SupplierClient  # Ray is there where a replica is

        # in use while this lives
        self._cache = Cache(folder, deployment.cache_bytes, deployment.config.start_timeout_s)
        places = await asyncio.to_thread(self._cache.places, deployment.files, SupplierClient())
        return with_places(deployment.config, places)

    async def answer(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the frames that answer a call: the node first, then batches, one for all that came since the last one was taken."""
        yield wire.value(self.node)
        try:
            call = frames.call_of(body)
            CURRENT_REQUEST.set(Context(request_id=call.request_id, caller=call.owner))
            if (kind := wire.GENERATES.get(call.operation)) is None:
                yield wire.value(await self._value(call))
                return
            generated = self._backend.generate(wire.decode_arguments(kind, call.body))
            async with aclosing(_gather(generated)) as batches:
                async for batch in batches:
                    yield frames.of_events(batch)
            yield frames.of_events([], last=True)
        except UnilectError as error:
            yield frames.of_error(error)
        except msgspec.DecodeError as error:
            yield frames.of_error(BackendError(f"A replica was sent an invalid call: {error}."))

    async def check_health(self) -> None:
        """Raise, for Ray, if the engine is not well and does not come back."""
        await self._backend.check()

    async def _value(self, call: frames.Call) -> Any:
        if call.operation == wire.FACTS:
            engine = self._backend
            return wire.facts_of(engine)
        method, kind = call.operation.partition(":")[0], wire.METHODS.get(call.operation)
        if kind is None:
            raise UnsupportedOperation(f"The model's backend has no `{method}`.")
        return await getattr(self._backend, method)(*wire.decode_arguments(kind, call.body))


async def _gather(batches: backend.Batches) -> backend.Batches:
    """Join the events that have come since the last batch was taken: a batch to another machine costs what 20 tokens cost to make."""
    ready, waiting = asyncio.Event(), list[Event]()

    async def pump() -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    waiting.extend(batch)
                    ready.set()
        finally:
            ready.set()

    pumping = asyncio.create_task(pump())
    try:
        over = False
        while not over:
            await ready.wait()
            ready.clear()
            over = pumping.done()
            batch = waiting.copy()
            waiting.clear()
            if batch:
                yield batch
        await pumping  # its error
    finally:
        pumping.cancel()
        with suppress(asyncio.CancelledError, UnilectError):
            await pumping
