"""
ChatGLM models in chatglm.cpp's format, through the `chatglm-cpp` library in a supervised child process.

The library answers one request at a time; others wait in line. Everything that it would end its process over is refused before.
"""

import importlib.util
import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

from unilect.api.backend import Backend, BackendSpec, Batches, Capabilities, Description
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, Prompt, TextRequest
from unilect.engines import text_bounds as bounds
from unilect.engines.chatglm import _request as wire
from unilect.engines.chatglm._file import read_head
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.engines.process.frame_server import FrameServer
from unilect.engines.settings import context_of, read_checked
from unilect.families import Reading
from unilect.families.chatglm import IN_TURNS
from unilect.http.error_bodies import unknown_token
from unilect.runtime.extras import install
from unilect.tools.reader import Reader, tools_of
from unilect.wire.stream import map_batches

log = logging.getLogger("unilect")
LIBRARY = "chatglm_cpp"
_BUILD = 'CMAKE_POLICY_VERSION_MINIMUM=3.5 CFLAGS="-fopenmp -DGGML_USE_OPENMP" LDFLAGS=-fopenmp'
_CHILD = "unilect.engines.chatglm._child"


class ChatglmEngine(Backend):
    """
    A model file that we serve.

    Args:
        name: The model's name, for logs.
        path: The file.
        config: Its settings.
        threads: Processor threads, where the settings do not say.

    Raises:
        ConfigError: The file, or a setting, is wrong. Nothing has been started.
    """

    def __init__(self, name: str, path: Path, config: ModelConfig, threads: int = 1) -> None:
        self._name = name
        self._head = read_checked(read_head, path)
        self._config = config
        self._context = context_of(self._head.context, config)
        threads = config.threads or threads

        def settings(socket_path: str) -> dict[str, Any]:
            return {
                "socket_path": socket_path,
                "path": str(path),
                "family": self._head.family,
                "context": self._context,
            }

        child = ChildProcess(
            name,
            python_command(_CHILD),
            settings,
            start_timeout_s=config.start_timeout_s,
            environment={"OMP_NUM_THREADS": str(threads)},  # the only way to tell the library
        )
        self._child = FrameServer(child, config.timeout_s)
        self.children = (child,)
        parameters = dict(wire.PARAMETERS)
        if self._head.family != "ChatGLM3":
            parameters |= dict.fromkeys(wire.TOOL_PARAMETERS, "refused")
        self.capabilities = Capabilities(
            parameters=parameters,
            fans_out=True,
            max_in_flight=1,
            context=self._context,
            embeddings=False,
            tool_form="glm" if self._head.family == "ChatGLM4" else "",
        )

    async def start(self) -> None:
        """Load the model; see `Backend`."""
        if self._child.process.comes_back:
            return
        ready = await self._child.process.start()
        if not ready.get("openmp"):
            log.warning(
                "%s: chatglm-cpp was built without OpenMP, so it takes every processor, and is very slow as soon as "
                "anything else runs; docs/backends/chatglm.md says how to build it.",
                self._name,
            )

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        bounds.check_request(request, self._context)
        body = wire.generate_body(request, self._head.family, self._head.vocabulary)
        async with (
            self._child.supervisor.watch(request) as ticket,
            aclosing(self._batches(request, body)) as batches,
        ):
            async for batch in batches:
                ticket.note_begin()
                yield batch

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Return the token ids of a text; see `Backend`."""
        bounds.check_tokenize(text, self._context)
        return await self._child.call("tokens" if special else "plain", text, list[int])

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token ids; see `Backend`."""
        bounds.check_tokenize(tokens, self._context)
        if any(token >= self._head.vocabulary for token in tokens):
            raise unknown_token("prompt")
        return await self._child.call("text", tokens, str)

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """Return the number of tokens that the model would read; see `Backend`."""
        bounds.check_request(request, self._context)
        prompt = wire.prompt_of(request, self._head.family, self._head.vocabulary)
        return len(await self._child.call("tokens", prompt, list[int]))

    def describe(self) -> Description:
        """Describe the model from its file; see `Backend`."""
        return Description(self._head.family, context=self._head.context, format="ggml")

    async def check(self) -> None:
        """Wait until a child that died is back; see `Backend`."""
        await self._child.process.start()

    async def aclose(self) -> None:
        """Stop the child; see `Backend`."""
        await self._child.supervisor.aclose()

    def _batches(self, request: TextRequest, body: dict[str, Any]) -> Batches:
        """Return the answer's events; a chat's are read for calls and trimmed, a completion's are as they are."""
        batches = self._child.batches("generate", body)
        if not isinstance(request, ChatRequest):
            return batches
        return map_batches(batches, Reader(Reading(family=IN_TURNS, tools=tools_of(request))).read)


def backend(spec: BackendSpec) -> ChatglmEngine:
    """
    Make the engine for `chatglm:path/to/model.bin`.

    Raises:
        ConfigError: The library is not installed, or the file is wrong.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        raise ConfigError(
            f"chatglm: needs the chatglm-cpp library; install it with `{_BUILD} {install('chatglm')}`."
        )
    return ChatglmEngine(spec.name, Path(spec.location), spec.config, spec.threads)
