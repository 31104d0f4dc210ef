"""
A server of any kind, which a command line starts: kept in a supervised child process, and asked through the backend of its protocol.

The child is the keeper of the server (`_keeper.py`). Each life of the server has a port or a socket, a key and an upstream of its own, whose
kind and capabilities are detected anew, since another program may stand behind the same words by then.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from shutil import which
from typing import Any, TypeVar

from msgspec import structs

from unilect.api.backend import Backend, BackendSpec, Batches, Description, NativeFacts, SlotAction
from unilect.config import commands
from unilect.config.model import ModelConfig
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError, UnilectError
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import ChatRequest, EmbeddingRequest, Embeddings, Prompt, TextRequest
from unilect.engines.command._keeper import PID, PORT
from unilect.engines.fetched import when_here
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.supervisor import Supervisor
from unilect.http.base_url import key_headers
from unilect.http.client import HttpServer
from unilect.http.error_bodies import NoSuchPath
from unilect.hub import download as hub
from unilect.runtime.child_environment import child_environment
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream
from unilect.upstreams.openai.backend import PASSES_ALL, OpenAIUpstream
from unilect.wire.llamacpp import raise_for

_Value = TypeVar("_Value")
_MARGIN_S = 10.0  # that the keeper has beside the server's own time to end
_FETCHED = {"gguf": ("file", hub.local_file), "hf": ("folder", hub.local_folder)}


class CommandEngine(Backend):
    """
    A server that a command line starts.

    Args:
        name: The model's name.
        config: Its settings.
        values: The placeholders that are known before a start.

    Raises:
        ConfigError: The command cannot be run so.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        values: Mapping[str, str],
    ) -> None:
        self._name, self._config = name, config
        self._line = _Line(config, values, process_environment())
        self._process = ChildProcess(
            name,
            python_command("unilect.engines.command._keeper"),
            self._settings,
            start_timeout_s=None,
            stop_timeout_s=config.stop_timeout_s + _MARGIN_S,
            is_keeper=True,
        )
        self._supervisor = Supervisor(self._process)
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
        await self._process.start()
        await (await self._connect()).check()

    async def aclose(self) -> None:
        """Stop the server; see `Backend`."""
        if self._connecting is not None:
            self._connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()
        await self._supervisor.aclose()

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
        port, key = (await self._process.start())["port"], self._key
        at = self._process.socket_path if self._line.has_socket else None
        base = "http://engine" if at else f"http://127.0.0.1:{port}"

        def server(path: str = "", **more: Any) -> HttpServer:
            return HttpServer(
                base + path,
                headers=key_headers(structs.replace(self._config, api_key=key)),
                socket_path=at,
                timeout_s=self._config.timeout_s,
                reuse_connections=self._config.reuse_connections,
                **more,
            )

        upstream = await self._upstream_at(server)
        try:
            await upstream.start()
        except BaseException:
            await upstream.aclose()
            raise
        old, self._upstream, self._life = self._upstream, upstream, life
        own = self._line.places or upstream.capabilities.max_in_flight
        self.capabilities = structs.replace(upstream.capabilities, max_in_flight=own)
        if old is not None:
            await old.aclose()
        return upstream

    async def _upstream_at(self, server: Callable[..., HttpServer]) -> Backend:
        """Return the backend of the protocol that the server speaks; its own is OpenAI's unless it has llama.cpp's alone."""
        config = self._config
        if await self._find_protocol(server) == "llamacpp":
            return LlamaCppUpstream(server(raise_for=raise_for), None, config.model)
        whole = None if config.whole_answers == "auto" else config.whole_answers
        return OpenAIUpstream(
            server("/v1"), config.model, self._name, server(), whole, config.share_cache
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
            "socket": socket_path if self._line.has_socket else "",
            "health": self._config.health or "",
            "headers": key_headers(keyed),
            "silence_s": self._config.start_silence_s,
            "stop_timeout_s": self._config.stop_timeout_s,
        }


class _Line:
    """
    The command line of a model, checked.

    Args:
        config: The model's settings.
        values: The placeholders that are known before a start.
        environment: Where `$NAME` is looked up.

    Attributes:
        has_socket, has_key: It names these.
        places: How many requests the server takes at a time, where its command says so.
        secrets: What its log must not repeat.

    Raises:
        ConfigError: It cannot be run so.
    """

    def __init__(
        self, config: ModelConfig, values: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._values, self._outside = dict(values), environment
        self._words = commands.split_words(config.command or ())
        stop, option = config.stop_command, "stop_command"
        self._stop_words = [] if stop is None else commands.split_words(stop, option)
        used = commands.placeholders_in(self._words, commands.PLACEHOLDERS)
        in_stop = commands.placeholders_in(self._stop_words, commands.OF_STOP, option)
        if len({"port", "socket"} & used) != 1:
            what = "both" if "port" in used else "neither"
            raise ConfigError(
                f"command: has {what} of `{{port}}` and `{{socket}}`. Say with one of them where the server is to listen, such as "
                "`--port {port}`; a server on a unix socket takes `{socket}`."
            )
        _check_values(config, used, in_stop, values)
        self._own = dict(config.environment)
        self.has_socket, self.has_key = "socket" in used, "key" in used
        self.places = config.parallel if "parallel" in used else None
        names = commands.variables_in([*self._words, *self._stop_words, *self._own.values()])
        self.secrets = [self._look_up(name) for name in sorted(names)]
        program = commands.fill(self._words[0], {**self._values, "port": "0", "socket": "", "key": ""}, self._look_up)  # fmt: skip
        path = self._own.get("PATH", child_environment().get("PATH"))
        if which(program, path=path) is None:
            raise ConfigError(
                f"command: there is no program `{program}` that can be run. Install it, or write its path; PATH is {path}."
            )

    def fill(self, own: Mapping[str, str]) -> dict[str, Any]:
        """Return the words of both commands and the environment, with the placeholders of a start, too."""
        values = {**self._values, **own}
        filled = {
            "words": [commands.fill(word, values, self._look_up) for word in self._words],
            "stop_words": [commands.fill(word, values, self._look_up) for word in self._stop_words],
        }
        own_variables = {
            name: commands.fill_variables(text, self._look_up) for name, text in self._own.items()
        }
        return {**filled, "environment": child_environment() | own_variables}

    def _look_up(self, name: str) -> str:
        found = self._outside.get(name)
        if found is None:
            raise ConfigError(
                f"command: the environment variable {name} is not set. Set it, or double the sign to mean the text: $${name}."
            )
        return found


def _check_values(
    config: ModelConfig, used: set[str], in_stop: set[str], values: Mapping[str, str]
) -> None:
    """
    Check that the placeholders of a command have values, and that what is set has a placeholder.

    Raises:
        ConfigError: One has none.
    """
    for name in ("context", "parallel", "threads"):
        if config.is_set(name) and name not in used:
            raise ConfigError(
                f"{name}: has no effect, since `command` does not say `{{{name}}}`. Write it there, or leave `{name}` out."
            )
    missing = sorted((used | in_stop) - {"port", "socket", "key", "pid"} - values.keys())
    if not missing:
        return
    needs = {
        "file": "a GGUF file as `source`, such as `models/a.gguf` or `gguf:org/repo:Q4_K_M`",
        "folder": "a folder of transformers as `source`, such as `hf:org/name`",
    }
    need = needs.get(missing[0], f"`{missing[0]}` to be set")
    raise ConfigError(f"command: `{{{missing[0]}}}` needs {need}.")


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
    used = commands.placeholders_in(commands.split_words(config.command), commands.PLACEHOLDERS)
    if scheme == "demo":
        return _engine(spec, {})
    name, fetch = _FETCHED.get(scheme, ("", hub.local_file))
    if name not in used:
        kind = f"`{{{name}}}`" if name else "`{file}` or `{folder}`"
        raise ConfigError(
            f"source: has no effect, since `command` does not say {kind}. Write it there, or leave `source` out."
        )

    def make(spec: BackendSpec, path: Path) -> Backend:
        if not path.exists():
            raise ConfigError(f"source: there is no {path}. Check the path.")
        return _engine(spec, {name: str(path.absolute())})

    return when_here(structs.replace(spec, location=location), fetch, make)


def _engine(spec: BackendSpec, found: Mapping[str, str]) -> Backend:
    config = spec.config
    values = {"name": spec.name, "parallel": str(config.parallel), **found}
    values["threads"] = str(config.threads or spec.threads)
    if config.context is not None:
        values["context"] = str(config.context)
    return CommandEngine(spec.name, config, values)
