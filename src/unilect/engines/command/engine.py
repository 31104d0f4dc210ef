"""
A server of any kind, which a command line starts: kept in a supervised child process, and asked through the backend of its protocol.

The child is the keeper of the server (`_keeper.py`). Each life of the server has a port or a socket, a key and an upstream of its own, whose
kind and capabilities are detected anew, since another program may stand behind the same words by then.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from unilect.api.backend import Backend, BackendSpec, Batches, Description, NativeFacts, SlotAction
from unilect.config import command_line
from unilect.config.model import ModelConfig
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError, UnilectError
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import ChatRequest, EmbeddingRequest, Embeddings, Prompt, TextRequest
from unilect.engines.command._keeper import PID, PORT
from unilect.engines.command._line import Line
from unilect.engines.fetched import when_here
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.supervisor import Supervisor
from unilect.http.base_url import key_headers
from unilect.http.client import HttpServer
from unilect.http.error_bodies import NoSuchPath
from unilect.hub import download as hub
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream
from unilect.upstreams.openai.backend import PASSES_ALL, OpenAIUpstream
from unilect.upstreams.openai.detect import model_cards
from unilect.wire.llamacpp import raise_for


class Address(NamedTuple):
    """
    The place at which a server listens.

    Attributes:
        port: A TCP port of this machine.
        socket: A unix socket, in place of the port; empty for none.
        models: The names of its models, where it lists them.
    """

    port: int
    socket: str
    models: list[str]


_Value = TypeVar("_Value")
_LOOK_TIMEOUT_S, _LOOK_PAUSE_S = 10.0, 1.0  # of a look at a server that has requests
_ENDS_S, _UNWELL_PAUSE_S = 10.0, 0.05  # of a server that is not well, until it has ended
_MARGIN_S = 10.0  # that the keeper has beside the server's own time to end
#: By scheme, the placeholder of what a source names, and what fetches it.
FETCHED = {"gguf": ("file", hub.local_file), "hf": ("folder", hub.local_folder)}


class CommandEngine(Backend):
    """
    A server that a command line starts.

    Args:
        name: The model's name.
        config: Its settings.
        values: The placeholders that are known before a start.
        finds: It listens where it will, and is found there.

    Raises:
        ConfigError: The command cannot be run so.
    """

    def __init__(
        self, name: str, config: ModelConfig, values: Mapping[str, str], finds: bool = False
    ) -> None:
        self._name, self._config = name, config
        self._line = Line(config, values, process_environment(), finds)
        self._process = ChildProcess(
            name,
            python_command("unilect.engines.command._keeper"),
            self._settings,
            start_timeout_s=None,
            stop_timeout_s=config.stop_timeout_s + _MARGIN_S,
            is_keeper=True,
        )
        self._supervisor = Supervisor(
            self._process, self._look, config.timeout_s, outlast=self._outlast
        )
        self._flowed = 0  # pieces of answers
        self.children = (self._process,)
        self.capabilities = structs.replace(
            PASSES_ALL, context=config.context, max_in_flight=self._line.places, is_final=False
        )
        self._key: str | None = None
        self._life = 0
        self._upstream: Backend | None = None
        self._connecting: asyncio.Task[Backend] | None = None

    async def start(self) -> None:
        """Start the server, and detect what it is; see `Backend`."""
        if not self._process.comes_back or self._upstream is None:
            await self._process.start()
            await self._connect()

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        async with self._supervisor.watch(request) as ticket:
            upstream = await self._connect()
            async with aclosing(upstream.generate(request)) as batches:
                async for batch in batches:
                    ticket.note_begin()
                    self._flowed += 1
                    yield batch

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        return await self._call(request, lambda upstream: upstream.embed(request))

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        return await self._call(request, lambda upstream: upstream.rerank(request))

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; see `Backend`."""
        return await self._call(text, lambda upstream: upstream.tokenize(text, special))

    async def tokenize_plain(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text without special tokens in it; see `Backend`."""
        return await self._call(text, lambda upstream: upstream.tokenize_plain(text, special))

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        return await self._call(tokens, lambda upstream: upstream.detokenize(tokens))

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of token ids; see `Backend`."""
        return await self._call(tokens, lambda upstream: upstream.pieces(tokens))

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of tokens that the model would read; see `Backend`."""
        return await self._call(request, lambda upstream: upstream.count_tokens(request))

    async def render(self, request: ChatRequest) -> str:
        """Return the prompt of a chat; see `Backend`."""
        return await self._call(request, lambda upstream: upstream.render(request))

    async def slots(self) -> list[dict[str, Any]]:
        """Return the places in which the server answers; see `Backend`."""
        return await self._call("slots", lambda upstream: upstream.slots())

    async def change_slot(self, slot: int, action: SlotAction, name: str) -> dict[str, Any]:
        """Save, restore or erase a slot; see `Backend`."""
        return await self._call(name, lambda upstream: upstream.change_slot(slot, action, name))

    def describe(self) -> Description:
        """Describe the model, as its server does; see `Backend`."""
        return Description() if self._upstream is None else self._upstream.describe()

    def native_facts(self) -> NativeFacts:
        """Return llama.cpp's facts of the model; see `Backend`."""
        return NativeFacts() if self._upstream is None else self._upstream.native_facts()

    async def check(self) -> None:
        """Wait until a server that died is back, and see whether it is well; see `Backend`."""
        await self._connect()
        await self._ask_health()

    async def aclose(self) -> None:
        """Stop the server; see `Backend`."""
        if self._connecting is not None:
            self._connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()
        await self._supervisor.aclose()

    async def _look(self) -> None:
        """Return once the server answers anything, or goes on with an answer: one that reads a long prompt may answer nothing else meanwhile."""
        flowed, process = self._flowed, self._process
        life = process.starts
        while process.alive and process.starts == life and self._flowed == flowed:
            try:
                async with asyncio.timeout(_LOOK_TIMEOUT_S):
                    return await self._ask_health()
            except (TimeoutError, UnilectError):
                await asyncio.sleep(_LOOK_PAUSE_S)

    async def _outlast(self, life: int) -> None:
        """Wait for the end of a server that is not well any more: one whose engine is gone (vLLM) answers errors until it has ended in order."""
        process = self._process
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_S):
                while process.alive and process.starts == life and not await self._is_well():
                    await asyncio.sleep(_UNWELL_PAUSE_S)

    async def _is_well(self) -> bool:
        try:
            await self._ask_health()
        except UnilectError:
            return False
        return True

    async def _ask_health(self) -> None:
        """Have the server's present life answer as it did when it was ready. Errors as for any request."""
        at, server = await self._process.start(), (await self._locate())()
        try:
            await server.get(at["health"])
        finally:
            await server.aclose()

    async def _call(self, request: Any, ask: Callable[[Backend], Awaitable[_Value]]) -> _Value:
        """Return the one value that the server answers with."""

        async def function() -> _Value:
            return await ask(await self._connect())

        return await self._supervisor.call(request, function)

    async def _connect(self) -> Backend:
        """Return the upstream of the server's present life; all who come first in it wait for the same detection."""
        if self._upstream is not None and self._life == self._process.starts:
            return self._upstream
        if self._connecting is None or self._connecting.done():
            self._connecting = spawn_detached(self._detect(self._process.starts))
        return await join_shared(self._connecting)

    async def _detect(self, life: int) -> Backend:
        upstream = await self._upstream_at(await self._locate())
        try:
            await upstream.start()
        except BaseException:
            await upstream.aclose()
            raise
        old, self._upstream, self._life = self._upstream, upstream, life
        own = self._line.places or upstream.capabilities.max_in_flight
        context = upstream.capabilities.context or self._config.context
        self.capabilities = structs.replace(
            upstream.capabilities, max_in_flight=own, context=context
        )
        if old is not None:
            await old.aclose()
        return upstream

    async def _locate(self) -> Callable[..., HttpServer]:
        """Return what makes connections to the server's present life, given a path and more of `HttpServer`."""
        at, key = await self._process.start(), self._key
        base = "http://engine" if at["socket"] else f"http://127.0.0.1:{at['port']}"

        def server(path: str = "", **more: Any) -> HttpServer:
            return HttpServer(
                base + path,
                headers=key_headers(structs.replace(self._config, api_key=key)),
                socket_path=at["socket"] or None,
                timeout_s=self._config.timeout_s,
                reuse_connections=self._config.reuse_connections,
                **more,
            )

        return server

    @property
    def kind(self) -> str:
        """The kind of its server and the protocol that it is asked in, in words; empty before its first start."""
        match self._upstream:
            case OpenAIUpstream() as upstream:
                return f"{upstream.kind.name}, in OpenAI's protocol"
            case None:
                return ""
        return "llama.cpp, in its native protocol"

    async def find(self) -> "Address":
        """Start the server without asking what it is; returns where it listens, and the models that it lists."""
        at = await self._process.start()
        server = (await self._locate())("/v1")
        try:
            names = [str(card["id"]) for card in await model_cards(server)]
        except UnilectError:
            names = []
        finally:
            await server.aclose()
        return Address(int(at["port"]), str(at["socket"]), names)

    async def _upstream_at(self, server: Callable[..., HttpServer]) -> Backend:
        """Return the backend of the protocol that the server speaks; its own is OpenAI's unless it has llama.cpp's alone."""
        config = self._config
        if await self._find_protocol(server) == "llamacpp":
            return LlamaCppUpstream(server(raise_for=raise_for), None, self._line.model)
        whole = None if config.whole_answers == "auto" else config.whole_answers
        return OpenAIUpstream(
            server("/v1"), self._line.model, self._name, server(), whole, config.share_cache
        )

    async def _find_protocol(self, server: Callable[..., HttpServer]) -> str:
        if self._config.protocol is not None:
            return self._config.protocol
        asked = server()
        try:
            await asked.get("/v1/models")
        except NoSuchPath:
            try:
                await asked.get("/props")
                return "llamacpp"
            except UnilectError:
                pass
        except UnilectError:
            pass
        finally:
            await asked.aclose()
        return "openai"

    def _settings(self, socket_path: str) -> dict[str, Any]:
        """Return what the keeper is told for a start."""
        self._key = self._config.api_key or (secrets.token_hex(16) if self._line.has_key else None)
        keyed = structs.replace(self._config, api_key=self._key)
        own = {"port": PORT, "pid": PID, "socket": socket_path, "key": self._key or ""}
        return {
            **self._line.fill(own),
            "name": self._name,
            "secrets": [*([self._key] if self._key else []), *self._line.secrets],
            "socket_path": socket_path,
            "socket": socket_path if self._line.has_socket else "",
            "finds": self._line.finds,
            "health": self._config.health or "",
            "headers": key_headers(keyed),
            "silence_s": self._config.start_silence_s,
            "stop_timeout_s": self._config.stop_timeout_s,
        }


def backend(spec: BackendSpec) -> Backend:
    """
    Make the engine for a model's `command`; what its `source` names is fetched first where the command needs it.

    Raises:
        ConfigError: The command, or the source, is wrong.
    """
    config = spec.config
    if config.command is None:
        raise ConfigError(
            f"{spec.scheme}: is no source. Write the command line as the option `command`."
        )
    scheme, _, location = spec.location.partition(":")
    used = command_line.placeholders_in(
        command_line.split_words(config.command), command_line.PLACEHOLDERS
    )
    if scheme == "demo":
        return engine_of(spec, {})
    name, fetch = FETCHED.get(scheme, ("", hub.local_file))
    if name not in used:
        kind = f"`{{{name}}}`" if name else "`{file}` or `{folder}`"
        raise ConfigError(
            f"source: has no effect, since `command` does not say {kind}. Write it there, or leave `source` out."
        )

    def make(spec: BackendSpec, path: Path) -> Backend:
        if not path.exists():
            raise ConfigError(f"source: there is no {path}. Check the path.")
        return engine_of(spec, {name: str(path.absolute())})

    return when_here(structs.replace(spec, location=location), fetch, make)


def engine_of(spec: BackendSpec, found: Mapping[str, str]) -> Backend:
    """
    Make the engine for a model's `command`.

    Args:
        found: The values of placeholders that its table does not give.

    Raises:
        ConfigError: The command cannot be run so.
    """
    config = spec.config
    values = {"name": spec.name, "parallel": str(config.most_parallel)}
    values["threads"] = str(config.threads or spec.threads)
    if config.context is not None:
        values["context"] = str(config.context)
    return CommandEngine(spec.name, config, {**values, **found})
