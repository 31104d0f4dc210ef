"""
The models of a server, and calls that a started one answers without making anything: token counts, prompts, slots.

A call counts as a request against the limits of its caller, and uses no tokens; the ledger has no row of it. A caller whose budget is used up
loads no model by it.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from unilect.accounting.account import Accounts, RequestAccounting
from unilect.adapt import tools
from unilect.adapt.images import Images, other_images
from unilect.adapt.plan import check_kind
from unilect.answers.attempts import Attempts, any_backend
from unilect.api.backend import Backend, Capabilities
from unilect.api.parameters import constraints as foreign_constraints
from unilect.api.parameters.rules import resolve_parameters
from unilect.core.errors import (
    BackendUnavailable,
    ModelNotFound,
    PermissionDenied,
    UnilectError,
    join_names,
)
from unilect.core.requests import Call, ChatRequest
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import current_request

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
            chat, ignored = resolve_parameters(chat, can, model.unsupported)
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
        self._check_ready()
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
            self._check_ready()
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
                async for lease in attempts:
                    context.set_backend(lease.model.name, lease.member.source)
                    with lease:
                        value = await ask(model, lease.member.backend)
            return value

    def _check_ready(self) -> None:
        if not self.ready:
            raise BackendUnavailable("The server is stopping. Try again soon.", retry_after_s=5)


async def _nothing(model: Model, backend: Backend) -> None:
    """Ask a backend nothing but to be there."""
