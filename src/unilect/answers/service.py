"""
The service between dialects and backends: adapt, lease, generate, account.

It knows no wire format. Whatever happens to a request (an error, a client that leaves, a cancellation), its lease is released
and its account is closed, exactly once.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from unilect.accounting.account import Accounts
from unilect.adapt import emulation, tools
from unilect.adapt.enforcement import ConstraintEnforcer, output_constraints
from unilect.adapt.images import Images, other_images
from unilect.adapt.plan import Fitted, adapt, adapt_inputs, is_plain
from unilect.answers.attempts import Attempts, Lease
from unilect.answers.calls import Calls, stopping
from unilect.answers.resume import Continuation
from unilect.api.backend import (
    Backend,
    Batches,
    Capabilities,
    Generates,
)
from unilect.api.parameters.constraints import rename_param
from unilect.api.parameters.rules import Settings, refusal
from unilect.core.errors import ContextLengthExceeded, UnilectError
from unilect.core.events import Event, Usage
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    EmbeddingRequest,
    Embeddings,
    TextRequest,
)
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import BATCH, Push, current_request
from unilect.scheduling.fair_queue import QueuedBackend

FLEX = "flex"  # the `service_tier` of who can wait
_Read = TypeVar("_Read", EmbeddingRequest, RerankRequest)
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
        push: As `Context.push`, of who reads the batches, and notes those that it gets by it; set before the first batch.
    """

    def __init__(
        self,
        registry: Registry,
        model: Model,
        request: TextRequest,
        accounts: Accounts,
        images: Images,
    ) -> None:
        self.model = self.answering = model
        self.left_out: tuple[str, ...] = ()
        self.optional: Mapping[str, str] = {}
        self.limit_name: str | None = None
        self.attempts = 0
        self.streams = bool(request.stream)
        self.push: Push | None = None
        self._request, self._registry, self._images = request, registry, images
        self._fitted = Fitted(request)
        self._not_enforced: list[str] = []
        # as they were when the request came to a model: a reload changes nothing of an answer that goes on
        self._settings: dict[Model, Settings] = {}
        self._attempts = Attempts(
            model,
            self._fit,
            request,
            other=registry.get,
            check_native=self._check_native,
        )
        self._context = current_request()
        if request.service_tier == FLEX:
            self._context.priority = BATCH
        self._context.price = model.price
        self._account = accounts.open(self._context, model.name, request)

    @property
    def usage(self) -> Usage:
        """The usage of the answer so far; final after the last batch."""
        return self._account.usage

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of what was left out, and of parameters that were ignored or lowered; final when the first batch has come."""
        names = [*self.left_out]
        for name in self._fitted.ignored:
            names.append(self.optional.get(name, name))
        for lowered in (self._fitted.lowered, self._context.lowered):
            names.append(lowered and (self.limit_name or lowered))
        return tuple(dict.fromkeys(filter(None, names + self._not_enforced)))

    async def batches(self) -> Batches:
        """
        The events of the answer. Iterate once, inside `aclosing`.

        A backend that fails is followed by the next one, which makes what the client has not: of a whole answer, which is one batch, all.

        Raises:
            UnilectError: Before the first batch or between batches.
        """
        whole = list[Event]()
        try:
            async with self._account as account:
                with self._attempts as attempts:
                    if (known := self.model.static_capabilities) is not None:
                        self._fit(self.model, known)  # what is refused loads no model
                    while lease := await attempts.lease():
                        if whole:
                            whole.clear()
                            account.discard()
                        with lease:
                            answer = self._answer(lease)
                            if attempts.lost is not None and attempts.continuation is not None:
                                answer = attempts.continuation.rest(answer, attempts.lost)
                            try:  # as `aclosing`, at half of its price
                                async for batch in answer:
                                    if self.streams:
                                        yield self.note(batch)
                                    else:
                                        account.see(batch)
                                        whole += batch
                            finally:
                                await answer.aclose()
            if whole:
                yield account.add_thoughts(whole) if account.thoughts else whole
        except UnilectError as error:
            rename_param(error, self._fitted.names)
            if isinstance(error, ContextLengthExceeded) and error.param is None:
                error.param = "messages" if isinstance(self._request, ChatRequest) else "prompt"
            raise
        finally:  # whoever is pushed to holds this: no work for the garbage collector
            self.push = self._context.push = None

    def note(self, batch: list[Event]) -> list[Event]:
        """
        Take note of the next batch of a stream; returns it as the client gets it.

        Raises:
            UnilectError: The answer must end here.
        """
        account, attempts = self._account, self._attempts
        account.see(batch)
        attempts.begun = account.first_token_s is not None
        if attempts.continuation is not None:
            attempts.continuation.see(batch)
        return account.add_thoughts(batch) if account.thoughts else batch

    def _answer(self, lease: Lease[Fitted]) -> Batches:
        """Generate the answer on a leased backend."""
        self.answering, self._fitted = lease.model, lease.fitted
        self._context.set_backend(lease.model.name, lease.member.source)
        self._context.push = None if self._attempts.lost else self.push
        request = lease.fitted.request
        if is_plain(request):
            return lease.backend.generate(request)
        if not lease.can.image_urls and other_images(request):
            return self._with_images(lease, request)
        return self._generate(lease, request)

    async def _with_images(self, lease: Lease[Fitted], request: TextRequest) -> Batches:
        """Generate the answer to a request whose images are fetched first."""
        assert isinstance(request, ChatRequest)
        request = await self._images.inline(request)
        async with aclosing(self._generate(lease, request)) as batches:
            async for batch in batches:
                yield batch

    def _generate(self, lease: Lease[Fitted], request: TextRequest) -> Batches:
        """Generate the answer behind the stages that make up for what the backend lacks for this request."""
        can, checker = lease.can, self._registry.checker
        prompted = tools.plan(request, can)
        enforced = can.schema_keywords is not None and bool(output_constraints(request))
        several = (can.fans_out or prompted is not None) and emulation.several(request)
        if not (prompted or enforced or several):
            return lease.backend.generate(request)
        self._context.push = None
        backend: Generates = lease.backend
        at_once = emulation.PARTS_AT_ONCE
        if isinstance(backend, QueuedBackend):
            # one more waits, so that the place of one that ends goes to the next by the order of the queue
            backend, at_once = backend.in_parts(), backend.places + 1
        if prompted is not None:
            backend = tools.PromptedTools(backend, prompted, checker, self._note_attempts)
        if enforced:
            unsupported = self._settings[lease.model].unsupported
            backend = ConstraintEnforcer(backend, checker, unsupported, self._not_enforced.append)
        if several:
            return emulation.generate(backend, request, lease.member.backend, at_once, self._registry.room)  # fmt: skip
        return backend.generate(request)

    def _fit(self, model: Model, can: Capabilities) -> Fitted:
        """Make the request fit for a backend; of an answer that its client has a part of, what is asked for is the rest. Errors as `adapt`."""
        if (settings := self._settings.get(model)) is None:
            settings = model.own_settings if model.own_defaults else model.settings
            self._settings[model] = settings
        fitted = adapt(self._request, model, settings, can, self.optional, self._context.allowed)
        attempts = self._attempts
        if not self.streams or (can.resumes is None and attempts.lost is None):
            return fitted
        attempts.continuation = attempts.continuation or Continuation()
        rest = attempts.continuation.build_request(fitted.request, can, attempts.lost)
        return fitted if rest is fitted.request else fitted._replace(request=rest)

    def _check_native(self, model: Model, can: Capabilities) -> None:
        """
        Raises:
            UnilectError: The backend cannot answer such a request, or not without what unilect makes up for.
        """
        if tools.plan(self._fit(model, can).request, can) is not None:
            raise refusal("tools")

    def _note_attempts(self, attempts: int) -> None:
        """Take note of how many attempts an answer has taken."""
        self.attempts = max(self.attempts, attempts)


class Service(Calls):
    """Answers requests."""

    def run(self, request: TextRequest) -> Run:
        """
        Take a request in. Nothing is started before the run's batches are asked for.

        Raises:
            ModelNotFound: No model of that name.
            BackendUnavailable: The server is stopping.
        """
        if not self.ready:
            raise stopping()
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

        async def ask(backend: Backend | QueuedBackend, fitted: EmbeddingRequest) -> Embeddings:
            return await backend.embed(fitted)

        return await self._answer_whole(request, ask)

    async def rerank(self, request: RerankRequest) -> tuple[Model, Ranking, tuple[str, ...]]:
        """
        Rank the documents of a request.

        Returns:
            The model that answered, its scores, and the parameters that were ignored.

        Raises:
            UnsupportedOperation: The model is no reranker.
            UnilectError: As the backend.
        """

        async def ask(backend: Backend | QueuedBackend, fitted: RerankRequest) -> Ranking:
            return await backend.rerank(fitted)

        return await self._answer_whole(request, ask)

    async def _answer_whole(
        self, request: _Read, ask: Callable[[Backend | QueuedBackend, _Read], Awaitable[_Answer]]
    ) -> tuple[Model, _Answer, tuple[str, ...]]:
        """The model that answered a request of which nothing is streamed, what `ask` has it say, and the parameters that were ignored."""
        if not self.ready:
            raise stopping()
        model = self.model(request.model)
        # no fallback: its vectors and its scores differ
        context = current_request()
        context.price = model.price
        fit = partial(adapt_inputs, request)
        async with self.accounts.open(context, model.name, request) as account:
            with Attempts(model, fit, request) as attempts:
                if (known := model.static_capabilities) is not None:
                    fit(model, known)
                while lease := await attempts.lease():
                    context.set_backend(lease.model.name, lease.member.source)
                    with lease:
                        fitted, ignored = lease.fitted
                        answer = await ask(lease.backend, fitted)
            account.see([Usage(answer.prompt_tokens, 0)])
        return model, answer, ignored
