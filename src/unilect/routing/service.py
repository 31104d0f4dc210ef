"""
Where a dialect and a backend meet: lease, judge, generate, meter.

It knows no wire format. Whatever happens to a request (an error, a client that leaves, a cancellation), its lease is given
back and its meter is finished, exactly once.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from unilect.backend import (
    Batches,
    Capabilities,
    Generates,
    embeds,
    reranks,
)
from unilect.context import BATCH, in_hand
from unilect.errors import (
    ContextLengthExceeded,
    UnilectError,
    UnsupportedOperation,
)
from unilect.events import Event, Usage
from unilect.gateway.account import Accounts
from unilect.parameters import constraints as foreign_constraints
from unilect.parameters.rules import limited, refusal, resolve_parameters
from unilect.ranking import Ranking, RerankRequest
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings
from unilect.routing import _emulation as emulation
from unilect.routing import _tools as tools
from unilect.routing._enforcement import Enforced, bonds
from unilect.routing._failover import Failover, Lease
from unilect.routing._fair_queue import QueuedBackend
from unilect.routing._held import forget
from unilect.routing._kinds import check_kind, not_for
from unilect.routing._resume import WHOLE, Continuation
from unilect.routing._settings import Settings
from unilect.routing._thoughts import ThoughtTokens
from unilect.routing.calls import Calls
from unilect.routing.images import Images, other_images
from unilect.routing.registry import Model, Registry

FLEX = "flex"  # the `service_tier` of who can wait
_NOTHING: tuple[str, ...] = ()
_Value = TypeVar("_Value")
_Asked = TypeVar("_Asked", EmbeddingRequest, RerankRequest)
_Answer = TypeVar("_Answer", Embeddings, Ranking)


class Run:
    """
    One request on its way.

    Attributes:
        model: The model that was asked for.
        answering: The model that answers: the same, or its fallback; final when the first batch has come.
        left_out: What the client asked for and its dialect has left out; a dialect sets it before the first batch.
        optional: Parameters that are left out where the backend lacks them, instead of refused: what the dialect calls each, or nothing
            for one that is not told. A dialect sets it, too.
        limit_name: What the dialect calls the limit of tokens, where it has another name for it than the request.
        attempts: How many answers a backend gave before one was valid, where unilect validates it; else 0.
        streams: The client reads the answer as it comes.
        usage: What the answer has used so far; final after the last batch.
    """

    def __init__(
        self,
        registry: Registry,
        model: Model,
        request: ChatRequest | CompletionRequest,
        accounts: Accounts,
        images: Images,
    ) -> None:
        self.model = self.answering = model
        self._images = images
        self._ignored = self.left_out = _NOTHING
        self.optional: Mapping[str, str] = {}
        self.limit_name: str | None = None
        self.attempts = 0
        self.streams = bool(request.stream)
        self._request = request
        self._checker, self._room = registry.checker, registry.room
        self._names: dict[str, str] = {}
        self._settings: tuple[Model, Settings] | None = None
        self._continuation = Continuation(True) if self.streams else WHOLE
        judges = self._check_native, self._asked
        self._failover = Failover(
            model, request, registry.get, *judges, continuation=self._continuation
        )
        self._context = in_hand()
        if request.service_tier == FLEX:
            self._context.priority = BATCH
        self._context.price = model.price
        self._meter = accounts.open(self._context, model.name, request)

    @property
    def usage(self) -> Usage:
        """What the answer has used so far."""
        return self._meter.usage

    @property
    def ignored(self) -> tuple[str, ...]:
        """What was left out, and parameters that were ignored or lowered; final when the first batch has come."""
        lowered = self._context.lowered and (self.limit_name or self._context.lowered)
        if not lowered or lowered in self._ignored:
            return self._ignored
        return (*self._ignored, lowered)

    async def batches(self) -> Batches:
        """
        The events of the answer. Iterate once, inside `aclosing`.

        A backend that fails is followed by the next one, which makes what the client has not: of a whole answer, which is one batch, all.

        Raises:
            UnilectError: Before the first batch or between batches.
        """
        whole, thoughts = list[Event](), ThoughtTokens()
        try:
            async with self._meter as meter:
                with self._failover as failover:
                    if (known := self.model.known_cold) is not None:
                        self._fitted(self.model, known)  # what is refused loads no model
                    async for lease in failover:
                        forget(whole, self._context.meter)
                        with lease:
                            answer = self._continuation.rest(self._answer(lease))
                            try:  # as `aclosing`, at half of its price
                                async for batch in answer:
                                    meter.see(batch)
                                    if self.streams:
                                        self._continuation.see(batch)
                                        yield thoughts.counted(batch)
                                    else:
                                        whole += batch
                            finally:
                                await answer.aclose()
            if whole:
                yield thoughts.counted(whole)
        except UnilectError as error:
            self._name_as_asked(error)
            raise

    def _answer(self, lease: Lease) -> Batches:
        """What a leased backend answers; errors as `_fitted`."""
        self.answering = model = lease.model
        self._context.leased(model.name, lease.source)
        capabilities = lease.backend.capabilities
        request = lease.judged(self._asked, capabilities)
        if emulation.needed(request, capabilities):
            return self._emulated(lease, request)
        return lease.backend.generate(request)

    def _emulated(self, lease: Lease, request: ChatRequest | CompletionRequest) -> Batches:
        """What a leased backend answers with all that stands in front of it for this request."""
        backend: Generates = lease.backend
        at_once = emulation.PARTS_AT_ONCE
        if isinstance(backend, QueuedBackend):
            # one more waits, so that the place of one that ends goes to the next by the order of the queue
            backend, at_once = backend.in_parts(), backend.places + 1
        can = backend.capabilities
        if isinstance(request, ChatRequest) and not can.image_urls and other_images(request):
            return self._with_images(lease, request)
        if (made := tools.plan(request, can)) is not None:
            backend = tools.Prompted(backend, made, self._checker, self._note)
        if can.schema_keywords is not None and bonds(request):
            unsupported = self._settings_of(lease.model).unsupported
            backend = Enforced(backend, self._checker, unsupported, self._ignore)
        if (can.fans_out or made is not None) and emulation.several(request):
            return emulation.generate(backend, request, lease.bare, at_once, self._room)
        return backend.generate(request)

    async def _with_images(self, lease: Lease, request: ChatRequest) -> Batches:
        """What it answers to a request whose images are at hand."""
        request = await self._images.filled(request)
        async with aclosing(self._emulated(lease, request)) as batches:
            async for batch in batches:
                yield batch

    def _check_native(self, model: Model, can: Capabilities) -> None:
        """
        Raises:
            UnilectError: The model cannot answer such a request, or not without what unilect makes up for.
        """
        if tools.plan(self._fitted(model, can), can) is not None:
            raise refusal("tools")

    def _asked(self, model: Model, can: Capabilities) -> ChatRequest | CompletionRequest:
        """What of the answer a backend is asked for; errors as `_fitted` and `Continuation.asked`."""
        request = self._fitted(model, can)
        return self._continuation.asked(request, can) if self.streams else request

    def _fitted(self, model: Model, can: Capabilities) -> ChatRequest | CompletionRequest:
        """
        The request as it is for a model that can do so much.

        Raises:
            UnilectError: The model cannot answer such a request.
        """
        request, self._names = foreign_constraints.normalize_aliases(self._request, can)
        settings = self._settings_of(model)
        request = settings.applied(request, can)
        request, ignored = resolve_parameters(request, can, settings.unsupported, self.optional)
        request, lowered = self._limited(request, can.context)
        self._ignored = self.left_out
        if ignored or lowered:
            told = [self.optional.get(name, name) for name in ignored]
            told.append(lowered and (self.limit_name or lowered))
            self._ignored += tuple(filter(None, told))
        check_kind(request, model, can)
        return request

    def _settings_of(self, model: Model) -> Settings:
        """A model's settings as they were when the request came to it: a reload changes nothing of an answer that goes on."""
        if self._settings is None or self._settings[0] is not model:
            self._settings = model, model.settings
        return self._settings[1]

    def _limited(
        self, request: ChatRequest | CompletionRequest, context: int | None
    ) -> tuple[ChatRequest | CompletionRequest, str]:
        """The request for no more tokens than a context, and the caller's limits, leave; the parameter that was lowered, if any."""
        limit, allowed = request.token_limit, self._context.allowed
        if limit is None and allowed is not None and (context is None or allowed < context):
            name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"  # fmt: skip
            return request.changed(**{name: allowed}), name
        if limit is None or context is None or limit <= context:
            return request, ""
        return limited(request, context)

    def _name_as_asked(self, error: UnilectError) -> None:
        """Have an error name the parameters that the client has sent."""
        foreign_constraints.told_as(error, self._names)
        if isinstance(error, ContextLengthExceeded) and error.param is None:
            error.param = "messages" if isinstance(self._request, ChatRequest) else "prompt"

    def _note(self, attempts: int) -> None:
        """Take note of how many attempts an answer has taken."""
        self.attempts = max(self.attempts, attempts)

    def _ignore(self, name: str) -> None:
        """Take note of something that is ignored, once."""
        if name not in self._ignored:
            self._ignored += (name,)


class Service(Calls):
    """Answers requests."""

    def run(self, request: ChatRequest | CompletionRequest) -> Run:
        """
        Take a request in. Nothing is started before the run's batches are asked for.

        Raises:
            ModelNotFound: No model of that name.
            BackendUnavailable: The server is stopping.
        """
        self._check_ready()
        model = self.model(request.model)
        return Run(self.registry, model, request, self.accounts, self.images)

    async def embed(self, request: EmbeddingRequest) -> tuple[Model, Embeddings, tuple[str, ...]]:
        """
        Embed the inputs of a request.

        Returns:
            The model that answered, its vectors, and the parameters that were ignored.

        Raises:
            UnilectError: As the backend.
        """

        async def ask(backend: Generates, fitted: EmbeddingRequest) -> Embeddings:
            return await embeds(backend).embed(fitted)

        return await self._answered(request, ask)

    async def rerank(self, request: RerankRequest) -> tuple[Model, Ranking, tuple[str, ...]]:
        """
        Rank the documents of a request.

        Returns:
            The model that answered, its scores, and the parameters that were ignored.

        Raises:
            UnsupportedOperation: The model is no reranker.
            UnilectError: As the backend.
        """

        async def ask(backend: Generates, fitted: RerankRequest) -> Ranking:
            return await reranks(backend).rerank(fitted)

        return await self._answered(request, ask)

    async def _answered(
        self, request: _Asked, ask: Callable[[Generates, _Asked], Awaitable[_Answer]]
    ) -> tuple[Model, _Answer, tuple[str, ...]]:
        """The model that answered a request of which nothing is streamed, what `ask` has it say, and the parameters that were ignored."""
        self._check_ready()
        model = self.model(request.model)
        # no fallback: its vectors and its scores differ
        context = in_hand()
        context.price = model.price
        async with self.accounts.open(context, model.name, request) as account:
            with Failover(model, request, None, partial(_fitted, request)) as failover:
                if (known := model.known_cold) is not None:
                    _fitted(request, model, known)
                async for lease in failover:
                    context.leased(lease.model.name, lease.source)
                    with lease:
                        fitted, ignored = _fitted(request, lease.model, lease.backend.capabilities)
                        answer = await ask(lease.backend, fitted)
            account.see([Usage(answer.prompt_tokens, 0)])
        return model, answer, ignored


def _fitted(request: _Asked, model: Model, can: Capabilities) -> tuple[_Asked, tuple[str, ...]]:
    """
    The request as it is for a model that can do so much, and the parameters that were ignored.

    Raises:
        UnilectError: The model does not answer such a request.
    """
    if isinstance(request, RerankRequest) and not can.rerank:
        raise UnsupportedOperation(
            f"The model `{model.name}` is no reranker: it does not rank documents. Use a model that does; "
            "GET /v1/models/{model} says `rerank` of each."
        )
    fitted = resolve_parameters(request, can, model.unsupported)
    if isinstance(request, EmbeddingRequest) and not can.embeddings:
        raise not_for(model, "embeddings", can)
    return fitted
