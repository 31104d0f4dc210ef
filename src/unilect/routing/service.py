"""
Where a dialect and a backend meet: lease, judge, generate, meter.

It knows no wire format. Whatever happens to a request (an error, a client that leaves, a cancellation), its lease is given
back and its meter is finished, exactly once.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Literal, TypeVar

from unilect.backend import Backend, Batches, Capabilities, Generates, embeds
from unilect.context import in_hand
from unilect.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    UnilectError,
)
from unilect.events import Event, Usage, tells
from unilect.gateway.metrics import Metrics
from unilect.parameters import constraints as foreign_constraints
from unilect.parameters.rules import resolve_parameters
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings, ImagePart
from unilect.routing import _emulation as emulation
from unilect.routing._enforcement import Enforced, bonds
from unilect.routing._failover import Failover, Lease
from unilect.routing.registry import Model, Registry

log = logging.getLogger("unilect")
_Value = TypeVar("_Value")


class Run:
    """
    One request on its way.

    Attributes:
        model: The model that was asked for.
        answering: The model that answers: the same, or its fallback; final when the first batch has come.
        ignored: Parameters that were ignored; final when the first batch has come.
        streams: The client reads the answer as it comes.
        usage: What the answer has used so far; final after the last batch.
    """

    def __init__(
        self,
        registry: Registry,
        model: Model,
        request: ChatRequest | CompletionRequest,
        metrics: Metrics,
    ) -> None:
        self.model = self.answering = model
        self.ignored: tuple[str, ...] = ()
        self.streams = bool(request.stream)
        self._request = request
        self._checker = registry.checker
        self._names: dict[str, str] = {}
        self._failover = Failover(model, request, registry.get, self._fitted)
        self._context = in_hand()
        self._meter = metrics.start(self.model.name, self._context.endpoint)
        self._context.asked(self.model.name, self._meter)

    @property
    def usage(self) -> Usage:
        """What the answer has used so far."""
        return self._meter.usage

    async def batches(self) -> Batches:
        """
        The events of the answer. Iterate once, inside `aclosing`.

        A backend that fails is followed by the next one as long as the client has seen nothing: before the first batch of a
        stream, and all through a whole answer, which is one batch.

        Raises:
            UnilectError: Before the first batch or between batches.
        """
        whole: list[Event] = []
        try:
            with self._meter as meter, self._failover as failover:
                if (known := self.model.known_cold) is not None:
                    self._fitted(self.model, known)  # what is refused loads no model
                async for lease in failover:
                    whole.clear()
                    with lease:
                        async with aclosing(self._answer(lease)) as batches:
                            async for batch in batches:
                                meter.see(batch)
                                if self.streams:
                                    lease.begun = lease.begun or tells(batch)
                                    yield batch
                                else:
                                    whole += batch
                if whole:
                    yield whole
        except UnilectError as error:
            self._name_as_asked(error)
            raise

    def _answer(self, lease: Lease) -> Batches:
        """What a leased backend answers; errors as `_fitted`."""
        self.answering = model = lease.model
        self._context.leased(model.name, lease.source)
        backend: Generates = lease.backend
        capabilities = backend.capabilities
        request = self._fitted(model, capabilities)
        if capabilities.schema_keywords is not None and bonds(request):
            backend = Enforced(backend, self._checker, model.unsupported, self._ignore)
        if capabilities.fans_out and emulation.needed(request):
            return emulation.generate(backend, request, lease.bare)
        return backend.generate(request)

    def _fitted(self, model: Model, can: Capabilities) -> ChatRequest | CompletionRequest:
        """
        The request as it is for a model that can do so much.

        Raises:
            UnilectError: The model cannot answer such a request.
        """
        request, self._names = foreign_constraints.normalize_aliases(self._request, can)
        request = model.with_defaults(model.prepare(request))
        request, self.ignored = resolve_parameters(request, can, model.unsupported)
        _check_kind(request, model, can)
        return request

    def _name_as_asked(self, error: UnilectError) -> None:
        """Have an error name the parameters that the client has sent."""
        foreign_constraints.told_as(error, self._names)
        if isinstance(error, ContextLengthExceeded) and error.param is None:
            error.param = "messages" if isinstance(self._request, ChatRequest) else "prompt"

    def _ignore(self, name: str) -> None:
        """Take note of something that is ignored, once."""
        if name not in self.ignored:
            self.ignored += (name,)


class Service:
    """
    Answers requests.

    Args:
        registry: The models.
        metrics: Where everything is counted.
        unknown_model: A name that no model has is an error, or means the default model.

    Attributes:
        ready: True while requests are taken; false once the server is stopping.
    """

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        unknown_model: Literal["error", "default"] = "error",
    ) -> None:
        self._unknown_model = unknown_model
        self.registry = registry
        self.metrics = metrics
        registry.forgotten = metrics.forget
        self.ready = True

    def run(self, request: ChatRequest | CompletionRequest) -> Run:
        """
        Take a request in. Nothing is started before the run's batches are asked for.

        Raises:
            ModelNotFound: No model of that name.
            BackendUnavailable: The server is stopping.
        """
        self._check_ready()
        model = self.model(request.model)
        return Run(self.registry, model, request, self.metrics)

    def model(self, name: str | None) -> Model:
        """
        The model that answers to a name, or to none.

        Raises:
            ModelNotFound: There is none, and this listener does not take the default one then.
        """
        try:
            return self.registry.get(name)
        except ModelNotFound:
            if self._unknown_model == "default":
                return self.registry.get(None)
            raise

    async def embed(self, request: EmbeddingRequest) -> tuple[Model, Embeddings, tuple[str, ...]]:
        """
        Embed the inputs of a request.

        Returns:
            The model that answered, its vectors, and the parameters that were ignored.

        Raises:
            UnilectError: As the backend.
        """
        self._check_ready()
        model = self.model(request.model)
        # no fallback: its vectors differ
        context = in_hand()
        with (
            self.metrics.start(model.name, context.endpoint) as meter,
            Failover(model, request, None, partial(_fitted, request)) as failover,
        ):
            context.asked(model.name, meter)
            if (known := model.known_cold) is not None:
                _fitted(request, model, known)
            async for lease in failover:
                context.leased(lease.model.name, lease.source)
                with lease:
                    fitted, ignored = _fitted(request, lease.model, lease.backend.capabilities)
                    embeddings = await embeds(lease.backend).embed(fitted)
            meter.see([Usage(embeddings.prompt_tokens, 0)])
            return model, embeddings, ignored

    async def call(
        self, name: str | None, ask: Callable[[Model, Backend], Awaitable[_Value]]
    ) -> _Value:
        """
        What a started backend of a model says to a call that streams nothing, such as `tokenize`; it is counted like any other.

        Args:
            ask: Asks it; another one, too, where one fails.

        Raises:
            UnilectError: No such model, or no backend of it can be started; and whatever `ask` raises.
        """
        self._check_ready()
        model = self.model(name)
        context = in_hand()
        with self.metrics.start(model.name, context.endpoint) as meter, Failover(model) as failover:
            context.asked(model.name, meter)
            async for lease in failover:
                context.leased(lease.model.name, lease.source)
                with lease:
                    value = await ask(model, lease.bare)
            return value

    async def described(self, name: str | None) -> Model:
        """
        A model of which only is told what it can do. What runs here is not loaded for that, nor kept from being idle: its files say
        enough. A server elsewhere is asked.

        Raises:
            UnilectError: No such model, or its server cannot be asked.
        """
        model = self.model(name)
        if not model.required:
            await self.call(name, _nothing)
        return model

    def _check_ready(self) -> None:
        if not self.ready:
            raise BackendUnavailable("The server is stopping. Try again soon.", retry_after_s=5)


async def _nothing(model: Model, backend: Backend) -> None:
    """Ask a backend nothing but to be there."""


def _fitted(
    request: EmbeddingRequest, model: Model, can: Capabilities
) -> tuple[EmbeddingRequest, tuple[str, ...]]:
    """The request as it is for a model that can do so much, and the parameters that were ignored."""
    fitted = resolve_parameters(request, can, model.unsupported)
    if not can.embeddings:
        raise _not_for(model, "embeddings", can)
    return fitted


def _check_kind(
    request: ChatRequest | CompletionRequest, model: Model, capabilities: Capabilities
) -> None:
    if isinstance(request, ChatRequest):
        if not capabilities.chat:
            # what writes text, and cannot chat, does not know how turns are written
            if capabilities.completions:
                raise _no_template(model)
            raise _not_for(model, "chat completions", capabilities)
        if not capabilities.vision:
            _check_no_image(request, model)
    elif not capabilities.completions:
        raise _not_for(model, "completions", capabilities)


def _check_no_image(request: ChatRequest, model: Model) -> None:
    for number, message in enumerate(request.messages):
        if isinstance(message.content, list) and any(
            isinstance(part, ImagePart) for part in message.content
        ):
            where = f"messages[{number}].content"
            raise InvalidRequest(
                f"`{where}` holds an image, and the model `{model.name}` reads text only.",
                param=where,
            )


def _not_for(model: Model, what: str, capabilities: Capabilities) -> InvalidRequest:
    why = f": {capabilities.why_not[what]}" if what in capabilities.why_not else ""
    return InvalidRequest(
        f"The model `{model.name}` does not answer {what}{why}. GET /v1/models lists the models.",
        param="model",
    )


def _no_template(model: Model) -> InvalidRequest:
    return InvalidRequest(
        f"The model `{model.name}` has no chat template, so it answers no chat completions. Use /v1/completions, or "
        "configure `chat_template` for it: the name of a format such as `chatml`, or a Jinja file.",
        param="model",
    )
