"""
A chat in the terminal with a model on any OpenAI server; without one, with a server of our own for as long as the chat lasts.

Each line is a question or a command. Where stdin is no terminal, a question that is not answered makes the exit code 1.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct
from yarl import URL

from unilect.child_limits import die_with
from unilect.cli._console import Console
from unilect.cli._conversation import Conversation
from unilect.errors import (
    BackendError,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    UnilectError,
    listed,
)
from unilect.events import Answer, Fold
from unilect.http.client import HttpServer, raise_for_answer
from unilect.redact import redacted
from unilect.routing.source_hints import base_url
from unilect.upstreams.openai.backend import OpenAIUpstream

STOP_TIMEOUT_S = 15.0
_READY = "unilect answers at "
HELP = """\
/system TEXT      set the system prompt; without TEXT remove it
/model NAME       switch the model         /models   list them
/set NAME VALUE   set a parameter, such as temperature or max_tokens; without VALUE unset it
/clear            start a new conversation /retry    ask the last question again
/save FILE        save the conversation    /load FILE   continue it
/help             this list                /quit     leave (also Ctrl-D)
A backslash at the end of a line continues it on the next. Write // for a question that begins with a slash.
Ctrl-C stops an answer. After a tool call, the next line is its result."""


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class Chat:
    """
    The loop: a line in, an answer or a command's effect out.

    Args:
        runner: Runs what waits for the server; Ctrl-C then ends the waiting, and nothing else.
        server: The server that answers.
        conversation: What was said so far.

    Attributes:
        failed: A question was not answered, or a command was wrong.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        server: HttpServer,
        conversation: Conversation,
        screen: Console,
    ) -> None:
        self._runner = runner
        self._server = server
        self._conversation = conversation
        self._screen = screen
        self.failed = False
        self._began = 0.0  # when the first piece of the answer came
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: screen.note(HELP),
            "system": self._system,
            "model": self._model,
            "models": self._models,
            "clear": lambda rest: conversation.messages.clear(),
            "retry": self._retry,
            "set": self._set,
            "save": self._save,
            "load": self._load,
        }

    def start(self) -> None:
        """
        Take the server's first model where none was named.

        Raises:
            UnilectError: The server does not say which models it has.
        """
        if not self._conversation.model:
            names = self._names()
            if not names:
                raise BackendError("The server has no models.")
            self._conversation.model = names[0]

    def run(self) -> None:
        """Chat until the input ends."""
        with suppress(EOFError):
            while self._turn():
                pass

    def _turn(self) -> bool:
        """One line of input and what comes of it; false where it ends the chat."""
        call = self._conversation.open_call
        line = None
        try:
            line = self._screen.ask(f"result of {call.function.name}> " if call else "> ")
            if line.strip() in ("/quit", "/exit"):
                return False
            self._obey(line)
        except UnilectError as error:
            self._screen.error(error)
            self.failed = True
            if isinstance(error, ContextLengthExceeded):
                self._screen.note("/clear starts a new conversation and frees the context.")
        except KeyboardInterrupt:
            if not self._screen.interactive:
                raise
            self._screen.end()
            if line is None:  # nothing was running that it could have stopped
                self._screen.note("Ctrl-D or /quit leaves the chat; Ctrl-C stops an answer.")
        return True

    def _obey(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("/") or line.startswith("//"):
            self._conversation.say(line.removeprefix("/"))
            if self._conversation.open_call is None:
                self._answer()
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise InvalidRequest(f"There is no /{name}; /help lists the commands.")
        self._commands[name](rest.strip())

    def _answer(self) -> None:
        """Ask, and show the answer; what came of a broken or stopped one is kept too."""
        fold = Fold()
        self._began = time.perf_counter()
        try:
            self._runner.run(self._stream(fold))
        except KeyboardInterrupt:
            self._screen.end("stopped")
            raise
        finally:
            answer = fold.answer()
            self._screen.end(_summary(answer, time.perf_counter() - self._began))
            for choice in answer.choices[:1]:
                self._conversation.take(choice)

    async def _stream(self, fold: Fold) -> None:
        """Show an answer while it comes."""
        waiting = True
        upstream = OpenAIUpstream(self._server, self._conversation.model)
        async with aclosing(upstream.generate(self._conversation.request())) as batches:
            async for batch in batches:
                if waiting:
                    waiting, self._began = False, time.perf_counter()
                fold.add(batch)
                self._screen.show(batch)

    def _names(self) -> list[str]:
        return self._runner.run(listed_models(self._server))

    def _system(self, rest: str) -> None:
        self._conversation.system = rest or None

    def _model(self, rest: str) -> None:
        if rest and not self._has(rest):
            names = listed(self._names())
            raise InvalidRequest(f"Unknown model {rest[:100]}. Models: {names}.")
        self._conversation.model = rest or self._conversation.model
        self._screen.note(f"The model is {self._conversation.model}.")

    def _has(self, name: str) -> bool:
        """Whether the server knows a model, by its name or another one; where it does not say, a question will tell."""
        try:
            names = self._names()
        except UnilectError:
            return True
        if name in names or not names:
            return True
        try:
            self._runner.run(self._server.get(f"/models/{quote(name, safe='/')}"))
        except UnilectError:
            return False
        return True

    def _models(self, rest: str) -> None:
        for name in self._names():
            self._screen.note(f"{'*' if name == self._conversation.model else ' '} {name}")

    def _retry(self, rest: str) -> None:
        if not self._conversation.take_back():
            raise InvalidRequest("No question to repeat.")
        self._answer()

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if name:
            value = None
            if text.strip():
                try:
                    value = msgspec.json.decode(text)
                except msgspec.DecodeError:
                    value = text.strip()
            self._conversation.set(name, value)
        for name, value in self._conversation.settings.items():
            self._screen.note(f"{name} = {msgspec.json.encode(value).decode()}")

    def _save(self, rest: str) -> None:
        with _file_errors(rest, "written"):
            Path(rest).expanduser().write_bytes(self._conversation.saved())

    def _load(self, rest: str) -> None:
        with _file_errors(rest, "read"):
            self._conversation.load(Path(rest).expanduser().read_bytes())
        for message in self._conversation.messages:
            self._screen.note(f"{message.role}: {message.content or '(tool call)'}")


def model_names(url: str, api_key: str | None) -> list[str]:
    """
    The models that the server at a URL has.

    Raises:
        ConfigError: It does not say.
    """
    with asyncio.Runner() as runner:
        server = server_at(with_path(url), api_key)
        try:
            return runner.run(listed_models(server))
        except UnilectError as error:
            raise ConfigError(f"{url}: {with_remedy(error)}") from error
        finally:
            runner.run(server.aclose())


def with_remedy(error: UnilectError) -> str:
    """Why a server does not answer, and what to do."""
    todo = " Start it, or check the address." if error.connection_failed else ""
    return error.for_operator + todo


async def listed_models(server: HttpServer) -> list[str]:
    """
    The names of a server's models.

    Raises:
        UnilectError: It does not answer, or not in OpenAI's format.
    """
    answer = await server.get("/models")
    try:
        return [model.id for model in msgspec.json.decode(answer, type=_Models).data]
    except msgspec.DecodeError as error:
        raise BackendError("The server's model list is not in OpenAI's format.") from error


def server_at(url: str, api_key: str | None) -> HttpServer:
    """The server at a URL, which says what to do where it does not take the key."""

    def raise_for(status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status in (401, 403):
            told = "rejects this key. Give another one" if api_key else "requires a key. Give it"
            text = f"The server {told} with --api-key, or in UNILECT_API_KEY."
            raise BackendError(text, reason=text)
        raise_for_answer(status, headers, body)

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return HttpServer(url, headers=headers, raise_for=raise_for)


def run(
    url: str | None,
    model: str | None,
    api_key: str | None,
    system: str | None,
    arguments: Sequence[str],
) -> int:
    """
    Chat until the input ends.

    Args:
        url: The server, `http://host/v1`; None for one of our own.
        model: The model's name; None for the server's first one.
        api_key: The server's key.
        arguments: What our own server is started with.

    Returns:
        The exit code: 1 where a question from a pipe was not answered.

    Raises:
        ConfigError: There is no server to talk to.
    """
    with suppress(ImportError):
        import readline  # noqa: F401 - gives `input` line editing and a history
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    with ExitStack() as stack:
        if url is None:
            url, api_key = stack.enter_context(own_server(arguments))
        else:
            url = with_path(url)
        screen, conversation = Console(), Conversation(model or "", system)
        server = server_at(url, api_key)
        runner = stack.enter_context(asyncio.Runner())
        chat = Chat(runner, server, conversation, screen)
        try:
            chat.start()
            if screen.interactive:
                hint = "/help lists the commands; Ctrl-D leaves."
                screen.note(f"{conversation.model} at {redacted(url)}. {hint}")
            chat.run()
        except UnilectError as error:
            raise ConfigError(f"{redacted(url)}: {with_remedy(error)}") from error
        finally:
            runner.run(server.aclose())
    return 1 if chat.failed and not screen.interactive else 0


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """
    A server, in a child process that goes when we go.

    Yields:
        Its URL and its key.

    Raises:
        SystemExit: It did not start; it has said why on stderr.
    """
    key, parent = secrets.token_urlsafe(24), os.getpid()
    command = [sys.executable, "-m", "unilect", "serve", *arguments, "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--log-level", "error"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"UNILECT_API_KEY": key, "UNILECT_LOG_FORMAT": "console"},
        start_new_session=True,  # Ctrl-C stops an answer, not the server
        preexec_fn=lambda: die_with(parent),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith(_READY):
            raise SystemExit(process.wait() or 1)
        yield line.removeprefix(_READY).strip(), key
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def with_path(url: str) -> str:
    """
    A server's base URL; a bare host gets the usual `/v1`.

    Raises:
        ConfigError: It is no URL.
    """
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(
            f"--url {redacted(url)}: expected a URL such as http://127.0.0.1:8000/v1."
        )
    if parsed.path in ("", "/"):
        return urlsplit(url)._replace(path="/v1").geturl()
    return base_url(url)


def _summary(answer: Answer, seconds: float) -> str:
    """`12 tokens, 35.1 tokens/s`, as far as the server has told."""
    tokens = answer.usage.completion_tokens
    words = [f"{tokens} tokens"] if tokens else []
    if tokens > 1 and seconds > 0.001:
        words.append(f"{(tokens - 1) / seconds:.1f} tokens/s")
    if answer.choices and answer.choices[0].finish_reason == "length":
        words.append("cut by the length limit")
    return ", ".join(words)


@contextmanager
def _file_errors(name: str, what: str) -> Iterator[None]:
    if not name:
        raise InvalidRequest("Name a file, such as chat.json.")
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{name}: cannot be {what} ({error.strerror or error}).") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{name} is not a saved conversation: {error.message}") from error
