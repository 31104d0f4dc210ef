"""
A model whose engines are replicas on a Ray cluster: started, scaled, watched and replaced by Ray Serve, without its HTTP proxy.

Source: https://docs.ray.io/en/latest/serve/model_composition.html (handles), and `wire` for what is said.
"""

import asyncio
import hashlib
import time
from contextlib import aclosing
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from unilect.api.backend import (
    Backend,
    BackendSpec,
    Batches,
    Capabilities,
    Description,
    NativeFacts,
)
from unilect.config.fleet import FleetConfig, cache_folder, resources_of
from unilect.config.model import Replicas
from unilect.config.server import process_environment
from unilect.core.errors import BackendUnavailable, ConfigError, EngineDied
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.fleet import wire
from unilect.fleet.files import list_items, with_absolute_paths
from unilect.fleet.link import Link, link_of
from unilect.runtime.context import cache_owner, current_request
from unilect.runtime.extras import install
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.wire import frames

_MARGIN_S = 10.0  # of a limit that the driver keeps itself
_PAUSE_S = 0.1
_INPUTS_AT_ONCE = 64  # of embeddings
_Value = TypeVar("_Value")


class RayBackend(Backend):
    """
    A model on the cluster.

    Args:
        deployment: How it is to run there.
        link: The connection.
        sends: Nodes may lack the model's files, and get them from here.

    Attributes:
        capabilities: As its engine's; unknown before the start.
    """

    def __init__(self, deployment: wire.Deployment, link: Link, sends: bool = False) -> None:
        self._deployment = deployment
        self._sends = sends
        self._config = deployment.config
        self._link = link
        self._life = 0  # of the connection, for which the model is known to be there
        self._stopped = False  # and not started again since
        self._facts = wire.Facts(Capabilities(is_final=False))  # until its first start
        self._starting: asyncio.Task[None] | None = None
        self.children = (link.child,)
        self.capabilities = self._facts.capabilities

    async def start(self) -> None:
        """Have the model on the cluster; see `Backend`. One task does it for all who wait, and outlives each of them."""
        try:
            await self._ensure_started()
        except EngineDied as error:
            raise BackendUnavailable(
                "The connection to the cluster was lost while the model started. Try again.",
                retry_after_s=1,
            ) from error

    async def _ensure_started(self) -> None:
        """
        Start it unless it is up.

        Raises:
            EngineDied: The connection was lost meanwhile.
            UnilectError: As `start`.
        """
        if self._is_up:
            return
        if self._starting is None or self._starting.done():
            self._starting = spawn_detached(
                self._bring_up(), f"the start of {self._deployment.name}"
            )
        await join_shared(self._starting)

    @property
    def _is_up(self) -> bool:
        """True if the running process of the connection has brought the model to the cluster."""
        child = self._link.child
        return child.alive and self._life == child.starts

    async def _bring_up(self) -> None:
        self._stopped = False
        life = await self._link.start(self._deployment.name)
        await self._deploy()
        self._facts = await self._value(wire.Facts, wire.FACTS, None, self._config.start_timeout_s)
        self.capabilities = self._of_all(self._facts.capabilities)
        self._life = life

    async def _deploy(self) -> None:
        body = frames.raw(await self._with_files())
        request = wire.DriverRequest("deploy", self._deployment.name, body)
        await self._link.value(request, self._config.start_timeout_s + _MARGIN_S)

    async def restore(self) -> None:
        """Have the cluster keep to these settings again; see `Backend`."""
        if self._is_up:
            await self._deploy()

    def _of_all(self, one: Capabilities) -> Capabilities:
        """
        Scale the capabilities of one replica to all: the rest of the requests waits here, where turns are fair. An engine without a limit
        of its own has `parallel`.
        """
        most = self._deployment.replicas.max
        each = one.max_in_flight or (None if one.slots else self._config.most_parallel)
        return replace(
            one, slots=one.slots and one.slots * most, max_in_flight=each and each * most
        )

    async def _with_files(self) -> wire.Deployment:
        """
        Return the deployment with what nodes may have to be sent: read whole here, once for each version of a file.

        Raises:
            BackendUnavailable: It cannot be read.
        """
        deployment = self._deployment
        if not self._sends:
            return deployment
        notes = cache_folder(process_environment())
        try:
            items = await asyncio.to_thread(list_items, deployment.config, notes)
        except ConfigError as error:
            raise BackendUnavailable(
                "The model's files cannot be read. Try again, or ask the operator.",
                reason=f"models.{deployment.name}: {error}",
            ) from error
        return replace(deployment, files=items)

    def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        return self._answer(request)

    async def _answer(self, request: TextRequest) -> Batches:
        operation, config, taken = wire.kind_of(request), self._config, False
        until = time.monotonic() + config.start_timeout_s
        # other gateways' requests may be before it
        turn_s = config.queue_timeout_s + config.timeout_s
        while True:
            try:
                await self._ensure_started()
                call = self._request(operation, request, _session(request))
                replies = self._link.replies(call, self._taken_within_s, turn_s, config.timeout_s)
                async with aclosing(replies):
                    async for reply in replies:
                        taken = True
                        if reply.events:
                            yield frames.events_of(reply)
                return
            except EngineDied:  # of a connection that was lost before a replica had the call, nobody has noticed anything
                if self._stopped:
                    raise BackendUnavailable(
                        "The model was stopped. Try again.", retry_after_s=5
                    ) from None
                if taken or time.monotonic() > until:
                    raise
            await asyncio.sleep(_PAUSE_S)  # the end of the process is noticed meanwhile

    def describe(self) -> Description:
        """Describe the model; see `Backend`."""
        return self._facts.description

    def native_facts(self) -> NativeFacts:
        """Return the facts of llama.cpp on the model; see `Backend`."""
        return self._facts.native

    async def aclose(self) -> None:
        """Leave the model to the cluster; see `Backend`."""
        self._life, self._stopped = 0, True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._link.stop(self._deployment.name)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed some inputs after others: the vectors of all may be more than a frame holds; see `Backend`."""
        inputs, vectors, tokens = request.inputs, list[list[float]](), 0
        for first in range(0, len(inputs), _INPUTS_AT_ONCE):
            part: Any = inputs[first : first + _INPUTS_AT_ONCE]
            some = await self._call(Embeddings, "embed", replace(request, input=part))
            vectors += some.vectors
            tokens += some.prompt_tokens
        return Embeddings(vectors, tokens)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        return await self._call(Ranking, "rerank", request)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; see `Backend`."""
        return await self._call(list[int], "tokenize", text, special)

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text without special tokens in it; see `Backend`."""
        return await self._call(list[int], "tokenize_plain", text, special)

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        return await self._call(str, "detokenize", tokens)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        return await self._call(list[bytes], "pieces", tokens)

    async def render(self, request: ChatRequest) -> str:
        """Return the prompt of a chat; see `Backend`."""
        return await self._call(str, "render", request)

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Count the tokens that the model would read; see `Backend`."""
        return await self._call(int, f"count_tokens:{wire.kind_of(request)}", request)

    async def _call(self, returns: type[_Value], method: str, *arguments: Any) -> _Value:
        await self.start()
        return await self._value(returns, method, arguments, self._config.timeout_s)

    async def _value(
        self, returns: type[_Value], operation: str, arguments: Any, timeout_s: float
    ) -> _Value:
        request = self._request(operation, arguments)
        value = await self._link.value(request, self._taken_within_s, timeout_s)
        return msgspec.msgpack.decode(value, type=returns)

    @property
    def _taken_within_s(self) -> float:
        """The seconds within which a replica takes a call: the first one must start, and then have a place."""
        config = self._config
        return config.start_timeout_s + config.queue_timeout_s + _MARGIN_S

    def _request(self, operation: str, arguments: Any, session: str = "") -> wire.DriverRequest:
        owner = "" if self._config.share_cache else cache_owner()
        body = wire.encode_arguments(arguments)
        call = frames.Call(operation, body, owner=owner, request_id=current_request().request_id)
        return wire.DriverRequest("call", self._deployment.name, frames.raw(call), session)


def _session(request: TextRequest) -> str:
    """
    Hash the part that the turns of one conversation share: the caller, and all up to the first message of the user.

    So they come to the same replica, which has the conversation in its cache, through whichever gateway.
    """
    hashed = hashlib.sha256(cache_owner().encode())
    if isinstance(request, ChatRequest):
        for message in request.messages:
            hashed.update(msgspec.msgpack.encode((message.role, message.content)))
            if message.role == "user":
                break
    else:
        hashed.update(repr(request.prompts[0][:1000])[:1000].encode(errors="replace"))
    return hashed.hexdigest()[:32]


def backend(spec: BackendSpec) -> Backend:
    """
    Make the backend of a model with `replicas`.

    Raises:
        ConfigError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ConfigError(f"replicas: requires Ray. Install it with `{install('fleet')}`.")
    config, replicas = spec.config, spec.config.replicas or 1
    fleet: FleetConfig = spec.shared.get(FleetConfig, FleetConfig())
    deployment = wire.Deployment(
        spec.name,
        version("unilect"),
        with_absolute_paths(replace(config, replicas=None, resources={}, accelerator=None)),
        Replicas(min=replicas, max=replicas) if isinstance(replicas, int) else replicas,
        resources_of(spec.name, config),
        cache_bytes=int(fleet.file_cache_gib * 2**30),
        several_callers=spec.several_callers,
    )
    return RayBackend(deployment, link_of(spec.shared, fleet), sends=bool(fleet.address))
