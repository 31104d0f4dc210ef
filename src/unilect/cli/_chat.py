"""
A chat in the terminal with a model on any OpenAI server; without one, with a server of our own for as long as the chat lasts.

Each message is a question or a command. Where stdin is no terminal, a question that is not answered makes the exit code 1.
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
from textwrap import fill
from typing import Any, NoReturn

import msgspec

from unilect.cli._console import Console
from unilect.cli._conversation import Conversation, groups_of_settings, words_of
from unilect.cli._history import History
from unilect.cli._images import image_url, is_address, split_images, unquote_path
from unilect.cli._running_server import (
    Abilities,
    connect,
    describe_model,
    has_model,
    list_models,
    with_path,
)
from unilect.config.model import ModelConfig
from unilect.config.store import data_folder
from unilect.core.errors import (
    BackendError,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    UnilectError,
    join_names,
)
from unilect.core.events import Answer, Fold
from unilect.http.client import HttpServer
from unilect.models.sources import DEMO
from unilect.runtime.child_limits import die_with
from unilect.runtime.redact import Secrets, redact
from unilect.upstreams.openai.backend import OpenAIUpstream

STOP_TIMEOUT_S = 15.0
_AT_ONCE_S = 0.05  # a shorter time between two pieces is the way of the network, not of the model
_READY = "unilect answers at "
HELP = """\
/system TEXT      set the system prompt; without TEXT remove it
/model NAME       switch the model         /models   list them
/set NAME VALUE   set a parameter, such as temperature; without VALUE unset it  /set  list them
/image FILE       put an image into the next question; a path in the question does the same
/clear            start a new conversation /retry    ask the last question again
/save FILE        save the conversation    /load FILE   continue it
/help             this list                /quit     leave (also Ctrl-D)
A pasted text of several lines is one question; so is what stands between \""" and \""".
A backslash at the end of a line continues it on the next. Write // for a question that begins with a slash.
Ctrl-C stops an answer. After a tool call, the next line is its result."""


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
        self._images: list[str] = []  # URLs of the next question's
        self._asked = self._began = (
            0.0  # when the question was sent, and when the first piece of the answer came
        )
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: screen.note(HELP),
            "system": self._system,
            "model": self._model,
            "models": self._models,
            "clear": self._clear,
            "image": self._image,
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
                raise BackendError(
                    "The server has no models. Give it one, or name another server with --url."
                )
            self._conversation.model = names[0]

    def run(self) -> None:
        """Chat until the input ends."""
        with suppress(EOFError):
            while self._turn():
                pass

    def _turn(self) -> bool:
        """Take one line of input, and return False where it ends the chat."""
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
        name, _, rest = line[1:].partition(" ")
        is_path = name not in self._commands and ("/" in name or "\n" in line)
        if not line.startswith("/") or is_path:
            self._say(line[1:] if line.startswith("//") else line)
            return
        if name not in self._commands:
            raise InvalidRequest(f"There is no /{name}; /help lists the commands.")
        self._commands[name](rest.strip())

    def _say(self, text: str) -> None:
        """
        Ask a question, or give a tool call its result.

        Raises:
            InvalidRequest: It has an image, and the model reads text only; nothing is sent.
        """
        if self._conversation.open_call is not None:
            self._conversation.say(text)
            if self._conversation.open_call is not None:
                return
        else:
            left, found = split_images(text)
            if found and all(map(is_address, found)) and not self._sees():
                left, found = text, []  # an address is a text, too
            images = self._images + [self._load_image(location) for location in found]
            self._conversation.say(left, images)
            self._images = []
        self._answer()

    def _image(self, rest: str) -> None:
        if not rest:
            raise InvalidRequest("Name an image, such as /image cat.png.")
        self._images.append(self._load_image(unquote_path(rest)))
        self._screen.note("The next question has the image.")

    def _load_image(self, location: str) -> str:
        """Return the URL of an image for the model."""
        if not self._sees():
            raise InvalidRequest(
                f"{location}: the model {self._conversation.model} reads text only, and nothing was sent. "
                "/model NAME switches to one that sees images."
            )
        return image_url(location)

    def _sees(self) -> bool:
        return self._abilities().vision is not False

    def _abilities(self) -> Abilities:
        return self._runner.run(describe_model(self._server, self._conversation.model)).unilect

    def _clear(self, rest: str) -> None:
        self._conversation.messages.clear()
        self._images = []

    def _answer(self) -> None:
        """Ask, and show the answer; what came of a broken or stopped one is kept too."""
        fold = Fold()
        self._asked = self._began = time.perf_counter()
        try:
            self._runner.run(self._stream(fold))
        except KeyboardInterrupt:
            self._screen.end("stopped")
            raise
        finally:
            answer = fold.answer()
            now = time.perf_counter()
            # an answer that came all at once has taken its time before
            began = self._began if now - self._began > _AT_ONCE_S else self._asked
            self._screen.end(_summary(answer, now - began))
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
        return self._runner.run(list_models(self._server))

    def _system(self, rest: str) -> None:
        self._conversation.system = rest or None

    def _model(self, rest: str) -> None:
        names = list[str]()
        with suppress(UnilectError):  # where it does not say, a question will tell
            names = self._names() if rest else []
        if names and not self._runner.run(has_model(self._server, rest, names)):
            raise InvalidRequest(f"Unknown model {rest[:100]}. Models: {join_names(names)}.")
        self._conversation.model = rest or self._conversation.model
        self._screen.note(f"The model is {self._conversation.model}.")

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
        else:
            for group, names in groups_of_settings(self._abilities().parameters).items():
                self._screen.note(fill(f"{group}: {', '.join(names)}", 100, subsequent_indent="  "))
        for name, value in self._conversation.settings.items():
            self._screen.note(f"{name} = {msgspec.json.encode(value).decode()}")

    def _save(self, rest: str) -> None:
        with _file_errors(rest, "written"):
            Path(rest).expanduser().write_bytes(self._conversation.dump())

    def _load(self, rest: str) -> None:
        with _file_errors(rest, "read"):
            self._conversation.load(Path(rest).expanduser().read_bytes())
        for message in self._conversation.messages:
            self._screen.note(f"{message.role}: {words_of(message)}")


def chat(
    url: str | None,
    model: str | None,
    api_key: str | None,
    system: str | None,
    source: str | None,
    config: Path | None,
    engine: Mapping[str, Any],
    history: bool,
) -> NoReturn:
    """
    Chat until the input ends; the exit code is 1 where a question from a pipe was not answered.

    Args:
        url: The server, `http://host/v1`; None for one of our own.
        model: The model's name; None for the server's first one.
        source, config, engine: As of `serve`, for a server of our own.
        history: Messages are kept for later chats.

    Raises:
        ConfigError: There is no server to talk to.
    """
    flags: list[str] = []
    for name, value in engine.items():
        for one in value if isinstance(value, list) else [value]:
            flags += [ModelConfig.declared[name].flag_name, str(one)]
    own = (["SOURCE"] if source is not None else []) + (["--config"] if config else []) + flags
    if url is not None and own:
        raise ConfigError(
            f"--url names a server that runs already, and {own[0]} is for a server that this command starts: leave one of them out."
        )
    arguments = [source] if source else [] if config else [f"{DEMO}:"]
    arguments += ["--config", str(config)] if config else []
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    folder = data_folder(os.environ) if history else None
    file = None if folder is None else folder / "chat_history"
    kept = History(file, Secrets([api_key]))
    try:
        with ExitStack() as stack:
            if url is None:
                url, api_key = stack.enter_context(own_server([*arguments, *flags]))
            else:
                url = with_path(url)
            screen, conversation = Console(kept), Conversation(model or "", system)
            runner, server = stack.enter_context(connect(url, api_key))
            loop = Chat(runner, server, conversation, screen)
            loop.start()
            if screen.interactive:
                hint = "/help lists the commands; Ctrl-D leaves."
                screen.note(f"{conversation.model} at {redact(url)}. {hint}")
            loop.run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(1 if loop.failed and not screen.interactive else 0)


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """
    Run a server in a child process that goes when we go.

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


def _summary(answer: Answer, seconds: float) -> str:
    """`12 tokens, 35.1 tokens/s`, as far as the server has told."""
    tokens = answer.usage.completion_tokens
    words = [f"{tokens} tokens"] if tokens else []
    if tokens > 1 and seconds > 0:
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
        why = f": {error.message}" if error.param else "; /save FILE writes one, as a JSON object."
        raise InvalidRequest(f"{name} is not a saved conversation{why}") from error
