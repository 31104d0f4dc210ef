"""
A model whose engines are replicas on a Ray cluster: placed, scaled, watched and replaced by Ray Serve, without its HTTP proxy.

Source: https://docs.ray.io/en/latest/serve/model_composition.html (handles), and `wire` for what is said.
"""

import asyncio
import hashlib
import time
from contextlib import aclosing
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

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
from unilect.config.model import ModelConfig, Replicas
from unilect.config.server import process_environment
from unilect.core.errors import BackendUnavailable, ConfigError, EngineDied
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
    TextRequest,
)
from unilect.fleet import wire
from unilect.fleet.files import Digests, absolute, named_by
from unilect.fleet.link import Link, link_of
from unilect.runtime.context import cache_owner, current_request
from unilect.runtime.extras import install
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.wire import frames

_TOLD_WITHIN_S = 10.0  # of a limit that the process in the middle keeps itself
_PAUSE_S = 0.1
_INPUTS_AT_ONCE = 64  # of embeddings
_PLACES_BESIDE = 4  # calls that count tokens and the like, beside the answers


class RayBackend(Backend):
    """
    A model on the cluster.

    Args:
        deployment: How it is to run there.
        config: Its settings.
        link: The connection.
        sends: Nodes may lack the model's files, and get them from here.

    Attributes:
        capabilities: As its engine's; unknown before the start.
    """

    def __init__(
        self, deployment: wire.Deployment, config: ModelConfig, link: Link, sends: bool = False
    ) -> None:
        self._deployment = deployment
        self._sends = sends
        self._config = config
        self._link = link
        self._life = 0  # of the connection, for which the model is known to be there
        self._stopped = False  # and not started again since
        self._facts: wire.Facts | None = None
        self._starting: asyncio.Task[None] | None = None
        self.children = (link.child,)
        self.capabilities = Capabilities(settled=False)

    async def start(self) -> None:
        """Have the model on the cluster; see `Backend`. One task does it for all who wait, and outlives each of them."""
        try:
            await self._started()
        except EngineDied as error:
            raise BackendUnavailable(
                "The connection to the cluster was lost while the model started. Try again.",
                retry_after_s=1,
            ) from error

    async def _started(self) -> None:
        """
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
        return self._facts is not None and child.alive and self._life == child.starts

    async def _bring_up(self) -> None:
        self._stopped = False
        life = await self._link.start(self._deployment.name)
        await self._deploy()
        told = await self._ask(wire.FACTS, None, self._config.start_timeout_s)
        self._facts = wire.read(wire.Facts, told)
        self.capabilities = self._of_all(self._facts.capabilities)
        self._life = life

    async def _deploy(self) -> None:
        body = frames.raw(await self._with_files())
        asked = wire.Asked("deploy", self._deployment.name, body=body)
        await self._link.value(asked, self._config.start_timeout_s + _TOLD_WITHIN_S)

    async def restore(self) -> None:
        """Have the cluster keep to these settings again; see `Backend`."""
        if self._is_up:
            await self._deploy()

    def _of_all(self, one: Capabilities) -> Capabilities:
        """
        Scale the capabilities of one replica to all: the rest of the requests waits here, where turns are fair. An engine without a limit
        of its own has `parallel`.
        """
        most = self._deployment.most
        each = one.max_in_flight or (None if one.slots else self._deployment.parallel)
        return replace(
            one, slots=one.slots and one.slots * most, max_in_flight=each and each * most
        )

    async def _with_files(self) -> wire.Deployment:
        """
        The deployment, with what nodes may have to be sent: read whole here, once for each version of a file.

        Raises:
            BackendUnavailable: It cannot be read.
        """
        made = self._deployment
        if not self._sends:
            return made
        config = msgspec.json.decode(made.config, type=ModelConfig)
        digests = Digests(cache_folder(process_environment()))
        try:
            return replace(made, files=await asyncio.to_thread(named_by, config, digests))
        except ConfigError as error:
            raise BackendUnavailable(
                "The model's files cannot be read. Try again, or ask the operator.",
                reason=f"models.{made.name}: {error}",
            ) from error

    def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        return self._answer(request)

    async def _answer(self, request: TextRequest) -> Batches:
        operation = "chat" if isinstance(request, ChatRequest) else "completion"
        until, taken = time.monotonic() + self._config.start_timeout_s, False
        timeout_s = self._config.timeout_s
        turn_s = (
            self._config.queue_timeout_s + timeout_s
        )  # other gateways' requests may be before it
        while True:
            try:
                await self._started()
                asked = self._asked(operation, request, _session(request))
                replies = self._link.replies(asked, self._taken_within_s, turn_s, timeout_s)
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
        return Description() if self._facts is None else self._facts.description

    def native_facts(self) -> NativeFacts:
        """Return the facts of llama.cpp on the model; see `Backend`."""
        return NativeFacts() if self._facts is None else self._facts.native

    async def aclose(self) -> None:
        """Leave the model to the cluster; see `Backend`."""
        self._life, self._stopped = 0, True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._link.stop(self._deployment.name)

    async def _call(self, name: str, *given: Any) -> Any:
        await self.start()
        told = await self._ask(name, given, self._config.timeout_s)
        return msgspec.msgpack.decode(told, type=wire.METHODS[name][1])

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors of some inputs after those of others: all at once may be more than a frame holds."""
        inputs, vectors, tokens = request.inputs, list[list[float]](), 0
        for first in range(0, len(inputs), _INPUTS_AT_ONCE):
            part: Any = inputs[first : first + _INPUTS_AT_ONCE]
            told: Embeddings = await self._call("embed", replace(request, input=part))
            vectors += told.vectors
            tokens += told.prompt_tokens
        return Embeddings(vectors, tokens)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        ranking: Ranking = await self._call("rerank", request)
        return ranking

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text; see `Backend`."""
        ids: list[int] = await self._call("tokenize", text, special)
        return ids

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """The same without special tokens in it; see `Backend`."""
        ids: list[int] = await self._call("tokenize_plain", text, special)
        return ids

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids; see `Backend`."""
        text: str = await self._call("detokenize", tokens)
        return text

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        pieces: list[bytes] = await self._call("pieces", tokens)
        return pieces

    async def render(self, request: ChatRequest) -> str:
        """The prompt of a chat; see `Backend`."""
        prompt: str = await self._call("render", request)
        return prompt

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """The number of tokens that the model would read; see `Backend`."""
        count: int = await self._call("count_tokens", _counted(request))
        return count

    async def _ask(self, operation: str, given: Any, timeout_s: float) -> Any:
        asked = self._asked(operation, given)
        return msgspec.Raw(await self._link.value(asked, self._taken_within_s, timeout_s))

    @property
    def _taken_within_s(self) -> float:
        """The seconds within which a replica takes a call: the first one must start, and then have a place."""
        config = self._config
        return config.start_timeout_s + config.queue_timeout_s + _TOLD_WITHIN_S

    def _asked(self, operation: str, given: Any, session: str = "") -> wire.Asked:
        owner = "" if self._config.share_cache else cache_owner()
        call = frames.Call(
            operation, wire.given(given), owner=owner, request_id=current_request().request_id
        )
        return wire.Asked("call", self._deployment.name, session, frames.raw(call))


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


def _counted(of: TextRequest | Prompt) -> wire.Counted:
    if isinstance(of, ChatRequest):
        return wire.Counted(chat=of)
    if isinstance(of, CompletionRequest):
        return wire.Counted(completion=of)
    return wire.Counted(prompt=of)


def check_installed() -> None:
    """Refuse `replicas`, with a ConfigError, where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"replicas: requires Ray. Install it with `{install('fleet')}`.")


def backend(spec: BackendSpec) -> Backend:
    """
    The backend of a model with `replicas`.

    Raises:
        ConfigError: Ray is not installed.
    """
    check_installed()
    config = spec.config
    replicas, parallel = config.replicas or 1, config.parallel
    if isinstance(replicas, int):
        replicas = Replicas(min=replicas, max=replicas)
    plain = absolute(replace(config, replicas=None, resources={}, accelerator=None))
    fleet: FleetConfig = spec.shared.get(FleetConfig, FleetConfig())
    deployment = wire.Deployment(
        spec.name,
        version("unilect"),
        plain.sources[0],
        msgspec.json.encode(plain),
        config.threads or 1,
        replicas.min,
        replicas.max,
        replicas.up_after_s,
        replicas.down_after_s,
        parallel,
        parallel + _PLACES_BESIDE,
        resources_of(spec.name, config),
        config.start_timeout_s,
        cache_bytes=int(fleet.file_cache_gib * 2**30),
        several_callers=spec.several_callers,
    )
    link = link_of(spec.shared, fleet)
    return RayBackend(deployment, config, link, sends=bool(fleet.address))
