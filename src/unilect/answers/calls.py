"""
The models of a server; calls that a started one answers without making anything: token counts, prompts, slots; and the tokens that a
request may use, for its limits.

A call counts as a request against the limits of its caller, and uses no tokens; the ledger has no row of it. A caller whose budget is used up
loads no model by it.

What a request may use is a bound from the length of its texts, or its prompt as the model counts it. A token has at least one byte, so a text
has at most as many tokens as bytes; a margin covers what a chat template adds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec
from msgspec import structs

from unilect.accounting.account import Accounts, RequestAccounting
from unilect.adapt import tools
from unilect.adapt.enforcement import ATTEMPTS, output_constraints
from unilect.adapt.images import Images, other_images
from unilect.adapt.plan import check_kind, is_plain
from unilect.answers.attempts import Attempts, any_backend
from unilect.api.backend import Backend, Capabilities
from unilect.api.parameters import constraints as foreign_constraints
from unilect.api.parameters.rules import resolve_parameters
from unilect.config.limits import Limits
from unilect.core.errors import (
    BackendUnavailable,
    ModelNotFound,
    PermissionDenied,
    UnilectError,
    join_names,
)
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    Call,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Prompt,
    Request,
    TextPart,
)
from unilect.limits.claims import TokenEstimate
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import current_request
from unilect.tools.forced import must_call

_TEMPLATE_TOKENS, _MESSAGE_TOKENS, _PAIR_TOKENS = 128, 16, 8
_TOOLS_TOKENS, _TOOL_TOKENS = 256, 128  # of what is written around all tools, and around each
_UNKNOWN_ROOM = 16_384  # of a model whose server does not tell its context
_COUNT_TIMEOUT_S = 5.0
_ENCODER = msgspec.json.Encoder()
_MOST_COUNTED = 64  # inputs of an embedding request
_ANSWERED = ChatRequest, CompletionRequest  # `A | B` would be made anew for each request
_Value = TypeVar("_Value")


class Calls:
    """
    Finds models, and asks them what is no answer.

    Args:
        registry: The models.
        accounts: What is counted, decided and kept of each request.
        unknown_model: A name that no model has is an error, or means the default model.
        images: Fetches the images of requests; without it none are fetched.

    Attributes:
        images: As given.
        ready: True while requests are taken; false once the server is stopping.
    """

    def __init__(
        self,
        registry: Registry,
        accounts: Accounts,
        unknown_model: Literal["error", "default"] = "error",
        images: Images | None = None,
    ) -> None:
        self.images = images or Images()
        self._unknown_model = unknown_model
        self.registry = registry
        self.accounts = accounts
        registry.forgotten = accounts.metrics.forget
        accounts.metrics.queues = registry.queues
        self.ready = True

    async def count_tokens(self, request: ChatRequest, counts: bool = True) -> int:
        """
        Count the tokens of a chat's prompt, as it would be answered.

        Args:
            counts: As of `call`.

        Raises:
            UnilectError: As `call`; or its backend does not tell tokens.
        """

        async def ask(model: Model, backend: Backend) -> int:
            can = backend.capabilities
            check_kind(request, model, can)
            whole = await self._at_hand(model.settings.apply(request, can), can)
            return await backend.count_tokens(tools.build_request(whole, can))

        return await self.call(request.model, ask, counts)

    async def count_prompt(self, request: ChatRequest) -> tuple[int, tuple[str, ...]]:
        """
        Count the tokens of the prompt of a chat; returns the parameters that are ignored, too.

        Raises:
            UnilectError: As `render_prompt`; or the backend does not tell tokens.
        """
        return await self._of_prompt(request, lambda backend, chat: backend.count_tokens(chat))

    async def render_prompt(self, request: ChatRequest) -> tuple[str, tuple[str, ...]]:
        """
        The prompt of a chat as the model reads it, and the parameters that are ignored.

        Raises:
            UnilectError: As `call`; the model answers no such chat; or its backend does not tell prompts.
        """
        return await self._of_prompt(request, lambda backend, chat: backend.render(chat))

    async def _of_prompt(
        self, request: ChatRequest, ask: Callable[[Backend, ChatRequest], Awaitable[_Value]]
    ) -> tuple[_Value, tuple[str, ...]]:
        """Ask a backend about a chat, which is judged as if it were to be answered; returns the ignored parameters, too."""
        names: dict[str, str] = {}

        async def prepare_and_ask(model: Model, backend: Backend) -> tuple[_Value, tuple[str, ...]]:
            can = backend.capabilities
            chat, told = foreign_constraints.normalize_aliases(request, can)
            names.update(told)
            chat = model.settings.apply(chat, can)
            chat, ignored = resolve_parameters(chat, can, model.settings.unsupported)
            check_kind(chat, model, can)
            chat = await self._at_hand(chat, can)
            return await ask(backend, tools.build_request(chat, can)), ignored

        try:
            return await self.call(request.model, prepare_and_ask)
        except UnilectError as error:
            raise foreign_constraints.rename_param(error, names) from error

    async def _at_hand(self, chat: ChatRequest, can: Capabilities) -> ChatRequest:
        """A chat with the images that its backend would not fetch; errors as `Images.inline`."""
        wants = can.vision and not can.image_urls and other_images(chat)
        return await self.images.inline(chat) if wants else chat

    def model(self, name: str | None, *, strict: bool = False) -> Model:
        """
        The model that answers to a name, or to none.

        Args:
            strict: A name that no model has is an error, whatever this listener takes.

        Raises:
            ModelNotFound: There is none, and this listener does not take the default one then.
            PermissionDenied: The caller may not use it.
        """
        try:
            found = self.registry.get(name)
        except ModelNotFound:
            if strict or self._unknown_model != "default":
                raise
            name, found = None, self.registry.get(None)
        context = current_request()
        if not context.may_use(found.name):
            asked = "the default model" if name is None else f"`{name[:100]}`"
            allowed = join_names(sorted(context.models or ()))
            told = f"model: this API key may not use {asked}; it may use {allowed}."
            raise PermissionDenied(told, param="model")
        return found

    @property
    def models(self) -> list[Model]:
        """The models that the caller may use, without those that are not to be listed."""
        context = current_request()
        return [
            one
            for one in self.registry.models.values()
            if context.may_use(one.name) and not one.unlisted
        ]

    async def call(
        self,
        name: str | None,
        ask: Callable[[Model, Backend], Awaitable[_Value]],
        counts: bool = True,
    ) -> _Value:
        """
        Ask a started backend of a model something that it makes no answer for, such as `tokenize`.

        The caller's limits have to have room for a request. It is measured, and no row of the ledger.

        Args:
            ask: Asks it; another one, too, where one fails.
            counts: It is a request for the limits; false where it is a part of one that counts besides, such as before its answer.

        Raises:
            UnilectError: No such model, or no backend of it can be started; the caller's limits; and whatever `ask` raises.
        """
        if not self.ready:
            raise stopping()
        model, context = self.model(name), current_request()
        context.price = model.price
        account = self.accounts.open(context, model.name, Call(counts=counts))
        return await self._ask(account, model, ask)

    async def inspect_model(self, name: str | None) -> Model:
        """
        A model of which only is told what it can do; no limit holds for that. What runs here is not loaded for it, nor kept from being
        idle: its files say enough. A server elsewhere is asked.

        Raises:
            UnilectError: No such model, or its server cannot be asked.
        """
        model, context = self.model(name), current_request()
        if not model.runs_locally:
            if not self.ready:
                raise stopping()
            account = self.accounts.open(context, model.name, Call(), is_recorded=False)
            await self._ask(account, model, _nothing)
        return model

    async def _ask(
        self,
        account: RequestAccounting,
        model: Model,
        ask: Callable[[Model, Backend], Awaitable[_Value]],
    ) -> _Value:
        """Ask a started backend of a model; errors as `call`."""
        context = current_request()
        async with account:
            with Attempts(model, any_backend) as attempts:
                while lease := await attempts.lease():
                    context.set_backend(lease.model.name, lease.member.source)
                    with lease:
                        value = await ask(model, lease.member.backend)
            return value


def stopping() -> BackendUnavailable:
    """Return the error for a request that comes while the server stops."""
    return BackendUnavailable("The server is stopping. Try again soon.", retry_after_s=5)


async def _nothing(model: Model, backend: Backend) -> None:
    """Ask a backend nothing but to be there."""


class TokenEstimator:
    """
    The sizes of requests.

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def size(self, model: str, request: Request) -> TokenEstimate:
        """The most tokens that a request may use, by the length of its texts."""
        chain = self._chain(model)
        if not isinstance(request, _ANSWERED):
            tokens, is_counted = _of_inputs(request)
            return TokenEstimate(
                prompt=tokens,
                choices=0,
                limit=None,
                room=0,
                knows_room=False,
                is_counted=is_counted,
            )
        room, knows_room = 0, bool(chain)
        for one in chain:  # the longest context, and whether all of them tell theirs
            context = one.pool.capabilities.context
            knows_room = knows_room and context is not None
            room = max(room, context or _UNKNOWN_ROOM)
        room = room or _UNKNOWN_ROOM
        request = chain[0].settings.apply(request) if chain else request
        plain = is_plain(request)
        attempts = 1 if plain else _attempts(chain, request)
        limit = request.token_limit
        if limit is not None and knows_room:
            limit = min(limit, room)
        if isinstance(request, ChatRequest):
            if is_counted := not plain and _has_more_than_text(request):
                prompts, prompt = 1, room  # nothing counts images
            else:
                prompts, prompt = 1, _of_chat(request)
        else:
            prompts, (prompt, is_counted) = len(request.prompts), _of_completion(request)
        return TokenEstimate(
            prompt=prompt * attempts,
            choices=prompts * max(request.n or 1, request.best_of or 1) * attempts,
            limit=limit,
            room=room,
            knows_room=knows_room,
            is_counted=is_counted,
        )

    async def count(self, model: str, request: Request, size: TokenEstimate) -> TokenEstimate:
        """The same with the prompt as the model counts it; as given where it does not, or not in time."""
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT_S):
                tokens = await self._count(self._registry.get(model), request)
        except (UnilectError, TimeoutError):
            return size  # what is wrong with the request is told when it is answered
        if tokens is None:
            return size
        attempts = _attempts(self._chain(model), request)
        return structs.replace(size, prompt=tokens * attempts, is_counted=True)

    def limits(self, model: str) -> Limits | None:
        """The limits of all requests to a model together; None where it has none, or is gone."""
        found = self._registry.models.get(model)
        return None if found is None else found.limits

    def _chain(self, name: str) -> list[Model]:
        """
        A model and those that may answer in its place, its fallback and who stands in while it is loaded, as far as the caller may use
        them; nothing of one that is gone meanwhile.
        """
        names, chain = [name], list[Model]()
        for at in names:
            with suppress(ModelNotFound):
                if (model := self._registry.get(at)) not in chain:
                    chain.append(model)
                    names += filter(None, (model.fallback, model.stays.while_loading))
        if len(chain) == 1:
            return chain
        may_use = current_request().may_use
        return chain[:1] + [model for model in chain[1:] if may_use(model.name)]

    async def _count(self, model: Model, request: Request) -> int | None:
        """
        The tokens of a prompt, as a backend of a model counts them; None where that is not what it would read.

        Raises:
            UnilectError: No backend of it counts.
        """
        request = model.settings.apply(request)
        with Attempts(model, any_backend) as attempts:
            while lease := await attempts.lease():
                with lease:
                    return await _count_with(lease.member.backend, request)
        return None


def _attempts(chain: list[Model], request: Request) -> int:
    """Return the most answers that may be generated for one that the client gets: an answer that is validated as a whole may be retried."""
    if not isinstance(request, _ANSWERED):
        return 1
    if output_constraints(request):
        return ATTEMPTS
    if isinstance(request, ChatRequest) and request.tools and must_call(request):
        plans = (tools.plan(request, one.capabilities) for one in chain)
        if any(made is not None and made.held for made in plans):
            return ATTEMPTS
    return 1


async def _count_with(backend: Backend, request: Request) -> int | None:
    if isinstance(request, ChatRequest):
        if _has_more_than_text(request):
            return None
        asked = tools.build_request(request, backend.capabilities)
        return await backend.count_tokens(asked)
    if isinstance(request, CompletionRequest):
        if request.fills_in or len(request.prompts) > _MOST_COUNTED:
            return None
        return await _sum(backend, request.prompts)
    if isinstance(request, EmbeddingRequest) and len(request.inputs) <= _MOST_COUNTED:
        return await _sum(backend, request.inputs)
    return None


async def _sum(backend: Backend, prompts: list[Prompt]) -> int:
    return sum([await backend.count_tokens(prompt) for prompt in prompts])


def _of_chat(request: ChatRequest) -> int:
    """Return a bound of the tokens of a chat's prompt, which has texts only."""
    template = (request.tools, request.functions, request.response_format, request.chat_template_kwargs)  # fmt: skip
    size = len(_ENCODER.encode(request.messages)) + _MESSAGE_TOKENS * len(request.messages)
    if request.tools:
        size += _TOOLS_TOKENS + _TOOL_TOKENS * len(request.tools)
    if any(template):
        size += 2 * len(_ENCODER.encode(template))  # a template may indent it
    return size + _TEMPLATE_TOKENS


def _of_completion(request: CompletionRequest) -> tuple[int, bool]:
    more = sum(len(one.text.encode()) + len(one.filename.encode()) for one in request.input_extra or ())  # fmt: skip
    more += len((request.suffix or "").encode()) + (_TEMPLATE_TOKENS if request.fills_in else 0)
    return sum(map(_bytes, request.prompts)) + more, False


def _of_inputs(request: Request) -> tuple[int, bool]:
    """A bound of the inputs of a request that is no chat and no completion."""
    if isinstance(request, RerankRequest):
        pairs = len(request.documents) * (len(request.query.encode()) + _PAIR_TOKENS)
        return pairs + sum(map(_bytes, request.texts)), True
    if isinstance(request, EmbeddingRequest):
        return sum(map(_bytes, request.inputs)), False
    return 1, True  # a call uses none, but is refused where none is left


def _bytes(prompt: Prompt) -> int:
    """The most tokens of a prompt: its bytes, or its ids, and what a model puts around it."""
    return _PAIR_TOKENS + len(prompt.encode() if isinstance(prompt, str) else prompt)


def _has_more_than_text(request: ChatRequest) -> bool:
    for message in request.messages:
        if isinstance(message.content, list):
            for part in message.content:
                if not isinstance(part, TextPart):
                    return True
    return False
