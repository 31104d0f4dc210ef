"""`unilect chat`, through pipes and through a terminal, with a real server before a scripted model and with one of its own."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from support.backends.loopback import served
from support.common.certificates import certificate, needs_openssl
from support.servers.commands import run
from support.servers.terminals import PROMPT, Terminal
from unilect.cli._conversation import SETTINGS, groups_of_settings
from unilect.cli.main import app

TIMEOUT_S = 30.0
KEY = "sk-chat"
UNILECT = [sys.executable, "-m", "unilect"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("UNILECT_")}
NO_SETTINGS = dict.fromkeys(os.environ.keys() - ENVIRONMENT.keys())


@dataclass
class Model:
    """
    An upstream whose answers are known.

    Attributes:
        asked: The bodies that it was sent.
        left: Set when the client of a slow answer went away.
    """

    port: int = 0
    asked: list[dict[str, object]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with what the last message asks for: `slow`, `think`, `weather`, or an account of what was said."""
        body = await request.json()
        self.asked.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last = body["messages"][-1]
        try:
            for delta in deltas(body, last):
                await send(response, {"index": 0, "delta": delta, "finish_reason": None})
                if last["content"] == "slow":
                    await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        calls = last["content"] == "weather"
        await send(
            response,
            {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"},
        )
        usage = {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        await response.write(b"data: %s\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def deltas(body: dict[str, object], last: dict[str, object]) -> Iterator[dict[str, object]]:
    """The deltas of the answer to a conversation."""
    messages = body["messages"]
    assert isinstance(messages, list)
    match last["content"]:
        case "slow":
            for number in range(10_000):
                yield {"content": f"word{number} "}
        case "think":
            yield {"reasoning_content": "Let me see."}
            yield {"content": "\n\nDone."}
        case "weather":
            function = {"name": "get_weather", "arguments": '{"city": '}
            yield {"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}
            yield {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}
        case "escape":
            yield {"content": "a\x1b]0;title\x07b"}
        case _:
            roles = "+".join(message["role"] for message in messages)
            yield {"content": f"{roles}: "}
            yield {"content": str(last["content"])}


async def send(response: web.StreamResponse, choice: dict[str, object]) -> None:
    """Send one chunk."""
    await response.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The scripted model."""
    scripted = Model()
    with served(web.post("/v1/chat/completions", scripted.answer)) as scripted.port:
        yield scripted


@pytest.fixture(scope="module")
def url(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the scripted model and the bundled one."""
    config = tmp_path_factory.mktemp("chat") / "unilect.toml"
    config.write_text(
        f'[models.scripted]\nsource = "http://127.0.0.1:{model.port}/v1"\nmodel = "m"\n[models.demo]\n'
    )
    process = subprocess.Popen(
        [*UNILECT, "serve", "--config", str(config), "--port", "0", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"UNILECT_API_KEYS": KEY},
    )
    assert process.stdout is not None
    yield process.stdout.readline().removeprefix("unilect answers at ").strip()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)


def piped(url: str, *lines: str, args: Sequence[str] = (), key: str | None = KEY) -> Result:
    """A chat whose lines come through a pipe, in the process of the tests."""
    return CliRunner().invoke(
        app,
        ["chat", "--url", url, *args],
        input="".join(line + "\n" for line in lines),
        env=NO_SETTINGS | {"UNILECT_API_KEY": key},
    )


@contextmanager
def terminal(*args: str, environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """A chat in a terminal, at its first prompt; without an environment of its own it keeps no history."""
    env = ENVIRONMENT | {"UNILECT_API_KEY": KEY} | dict(environment or {})
    kept = () if environment else ("--no-history",)
    chat = Terminal([*UNILECT, "chat", *kept, *args], env)
    try:
        chat.until(PROMPT)
        yield chat
    finally:
        if chat.process.poll() is None:
            chat.process.kill()
            chat.process.wait()


def test_pipe_prints_answers_only(url: str, model: Model) -> None:
    """From a pipe each line is a question, sent with the earlier turns, and stdout holds the answers."""
    done = subprocess.run(
        [*UNILECT, "chat", "--url", url],
        input="one\n\ntwo\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=ENVIRONMENT | {"UNILECT_API_KEY": KEY},
    )

    assert done.stdout == "user: one\nuser+assistant+user: two\n"
    assert done.stderr == ""
    assert done.returncode == 0
    assert model.asked[-1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "user: one"},
        {"role": "user", "content": "two"},
    ]


def test_system(url: str) -> None:
    """/system sets the system prompt, with nothing after it there is none, and --system sets the first one."""
    lines = ("one", "/system", "/clear", "two", "/clear", "/system Be kind.", "three")
    done = piped(url, *lines, args=["--system", "Be brief."])

    assert done.stdout == "system+user: one\nuser: two\nsystem+user: three\n"


@pytest.mark.heavy
def test_clear_forgets(url: str) -> None:
    """/clear forgets the turns and keeps the system prompt."""
    done = piped(url, "/system Be brief.", "one", "/clear", "two")

    assert done.stdout == "system+user: one\nsystem+user: two\n"


def test_set(url: str, model: Model) -> None:
    """/set sends a parameter with every request until it is taken away."""
    done = piped(url, "/set temperature 0.5", '/set stop ["x"]', "one", "/set temperature", "two")

    assert [body.get("temperature") for body in model.asked[-2:]] == [0.5, None]
    assert model.asked[-1]["stop"] == ["x"]
    assert done.stderr.splitlines()[:3] == [
        "temperature = 0.5",
        "temperature = 0.5",
        'stop = ["x"]',
    ]


WRONG = [
    ("/set temperature hot", "temperature: expected a number from 0 to 2."),
    ("/set temperature 2.5", "temperature: expected a number from 0 to 2."),
    ("/set top_k much", "top_k: expected an integer from -1 to 1000000."),
    ("/set model m", "`model` cannot be set in a chat."),
    ("/nope", "There is no /nope; /help lists the commands."),
    ("/retry", "No question to repeat."),
    ("/save", "Name a file, such as chat.json."),
    ("/load /does/not/exist", "cannot be read (No such file or directory)."),
    (
        "/load /dev/null",
        "/dev/null is not a saved conversation; /save FILE writes one, as a JSON object.",
    ),
    ("/image", "Name an image, such as /image cat.png."),
    ("/image none.png", "none.png: cannot be read (No such file or directory)."),
    ("/image /dev/null", "/dev/null: is no image in PNG, JPEG, WebP or GIF."),
    ("/model nosuch", "Unknown model nosuch. Models: scripted, demo."),
    (
        "/set temprature 1",
        "Unknown parameter `temprature`. Is `temperature` meant? /set lists those that can be set.",
    ),
    ("/set foo 3", "Unknown parameter `foo`. /set lists those that can be set."),
]


def test_wrong_commands_are_one_line_each(url: str) -> None:
    """A command that cannot be obeyed is told in one line, and the chat goes on."""
    done = piped(url, *(line for line, _ in WRONG), "one")
    told = done.stderr.splitlines()

    assert len(WRONG) == len(told)
    assert [] == [
        (said, line) for (_, said), line in zip(WRONG, told, strict=True) if said not in line
    ]
    assert done.stdout == "user: one\n"
    assert done.exit_code == 1


def test_unknown_model_is_one_line(url: str) -> None:
    """The server's error is told in one line, the next question takes the place of the failed one, and /models marks the one that answers."""
    done = piped(url, "one", "/model scripted", "/models", "two", args=["--model", "nope"])

    assert done.stderr.splitlines()[0].startswith("unilect: ")
    assert "nope" in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1:] == ["The model is scripted.", "* scripted", "  demo"]
    assert done.stdout == "user: two\n"
    assert done.exit_code == 1


def test_a_full_context_names_the_way_out(url: str) -> None:
    """A conversation that no longer fits is told with both numbers and with /clear."""
    done = piped(url, "/model demo", "word " * 4000)

    assert "maximum context length is 2048 tokens" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("/clear starts a new conversation")


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--api-key", "sk-wrong"], "rejects this key. Give another one"),
        ([], "requires a key. Give it"),
    ],
)
def test_a_wrong_key_is_told(url: str, args: list[str], said: str) -> None:
    """A key that is missing or wrong is told with the server, and with the two ways to give one."""
    done = piped(url, "one", args=args, key=None)

    assert (
        f"unilect: {url}: The server {said} with --api-key, or in UNILECT_API_KEY.\n" == done.stderr
    )
    assert 1 == done.exit_code


def test_models_of_a_running_server(url: str) -> None:
    """`unilect models --url` lists what a running server has, by the whole URL of an endpoint too."""
    done = run("models", "--url", f"{url}/chat/completions", "--api-key", KEY)

    assert ("scripted\ndemo\n", "") == (done.stdout, done.stderr)


@pytest.mark.heavy
def test_retry(url: str) -> None:
    """/retry asks the last question again, in place of its answer."""
    done = piped(url, "one", "/retry", "two")

    assert done.stdout == "user: one\nuser: one\nuser+assistant+user: two\n"


@pytest.mark.heavy
def test_save_and_load(url: str, model: Model, tmp_path: Path) -> None:
    """A saved conversation goes on where it was, with its settings."""
    file = tmp_path / "talk.json"
    piped(url, "/system Be brief.", "/set seed 7", "one", f"/save {file}")

    done = piped(url, f"/load {file}", "two")

    assert done.stdout == "system+user+assistant+user: two\n"
    assert model.asked[-1]["seed"] == 7
    assert json.loads(file.read_text()) == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "system+user: one"},
        ],
        "seed": 7,
    }


@pytest.mark.heavy
def test_settings_are_listed(url: str) -> None:
    """/set lists what can be set in groups, without what the model refuses."""
    told = piped(url, "/model demo", "/set").stderr
    names = told.replace("\n ", " ").split()

    assert "\nsampling: temperature, top_p, top_k," in told
    assert "\nlength: max_tokens, stop," in told
    assert "max_completion_tokens," in names
    assert not {"lora,", "lora"} & set(names)


def test_every_setting_is_in_one_group() -> None:
    """The groups have every parameter that can be set, each once."""
    names = [name for group in groups_of_settings({}).values() for name in group]

    assert sorted(SETTINGS) == sorted(names)


def test_quotes_hold_lines(url: str, model: Model) -> None:
    """What stands between three quotes is one question of several lines, and never a command; the end of the input ends it too."""
    before = len(model.asked)
    piped(url, '"""one', "", 'two"""', '"""/etc"""', '"""', "three", '"""', '"""four')

    assert (
        ["one\n\ntwo", "/etc", "three", "four"]
        == [
            body["messages"][-1]["content"]  # type: ignore[index]
            for body in model.asked[before:]
        ]
    )


@pytest.mark.heavy
def test_images_of_a_question(url: str, model: Model, tmp_path: Path) -> None:
    """An image that is named before a question, or stands in it, is sent with it, and is in the saved conversation."""
    image, file = tmp_path / "my cat.png", tmp_path / "talk.json"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    escaped = str(image).replace(" ", "\\ ")
    done = piped(
        url, f"/image '{image}'", f"{escaped} And https://host/a.jpg?x=1 these?", f"/save {file}"
    )
    parts = model.asked[-1]["messages"][-1]["content"]  # type: ignore[index]
    again = piped(url, f"/load {file}")

    data = {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    assert done.exit_code == 0
    assert parts == [
        {"type": "text", "text": "And these?"},
        {"type": "image_url", "image_url": data},
        {"type": "image_url", "image_url": data},
        {"type": "image_url", "image_url": {"url": "https://host/a.jpg?x=1", "detail": "auto"}},
    ]
    assert again.stderr.startswith("user: And these? (image) (image) (image)\n")


@pytest.mark.heavy
def test_lines_are_joined(url: str, model: Model) -> None:
    """A line that ends with a backslash goes on in the next; two slashes begin a question with one."""
    piped(url, "one \\", "and two", "//etc")

    assert model.asked[-2]["messages"][-1]["content"] == "one \nand two"  # type: ignore[index]
    assert model.asked[-1]["messages"][-1]["content"] == "/etc"  # type: ignore[index]


def test_tool_call(url: str, model: Model) -> None:
    """A tool call is shown as a call, and the next line is sent as its result."""
    done = piped(url, "weather", "It rains.")

    assert done.stdout == ('get_weather({"city": "Paris"})\nuser+assistant+tool: It rains.\n')
    assert model.asked[-1]["messages"][-1] == {  # type: ignore[index]
        "role": "tool",
        "content": "It rains.",
        "tool_call_id": "call_1",
    }


@needs_openssl
def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    """A server with a certificate of its own making is told as such, with how to trust it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def shake() -> None:
            with suppress(OSError):
                context.wrap_socket(listening.accept()[0], server_side=True)

        hands = threading.Thread(target=shake)
        hands.start()
        told = piped(f"https://127.0.0.1:{listening.getsockname()[1]}", "one").stderr
        hands.join(TIMEOUT_S)

    assert told.startswith("unilect: https://127.0.0.1:")
    assert "self-signed" in told
    assert "SSL_CERT_FILE" in told


@pytest.mark.heavy
def test_http_to_a_tls_port() -> None:
    """A server that closes a plain connection at once may want TLS, and that is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            connection = listening.accept()[0]
            connection.recv(65536)
            connection.close()

        hands = threading.Thread(target=refuse)
        hands.start()
        told = piped(f"http://127.0.0.1:{listening.getsockname()[1]}", "one").stderr
        hands.join(TIMEOUT_S)

    assert "Is it https://? Start it, or check the address." in told


@pytest.mark.heavy
def test_no_server_is_one_line() -> None:
    """A server that cannot be reached, or a URL that is none, ends the chat with one line."""
    unreachable = piped("http://127.0.0.1:9", "one")
    wrong = piped("localhost:8000", "one")

    assert unreachable.stderr.startswith("unilect: http://127.0.0.1:9/v1: ")
    assert "connection refused by 127.0.0.1:9." in unreachable.stderr
    assert unreachable.stderr.count("\n") == 1
    assert wrong.stderr.startswith("unilect: --url localhost:8000: expected a URL")
    assert (unreachable.exit_code, wrong.exit_code) == (1, 1)


def test_terminal_shows_an_answer(url: str) -> None:
    """In a terminal the answer is followed by its speed, dimmed; Ctrl-D leaves."""
    with terminal("--url", url) as chat:
        chat.type("one\r")
        shown = chat.until(PROMPT)
        chat.type("\x04")

        assert re.search(r"user: one\r\n\x1b\[2m7 tokens, \d+\.\d tokens/s\x1b", shown)
        assert chat.ends() == 0


@pytest.mark.heavy
def test_terminal_dims_reasoning(url: str) -> None:
    """What a model thinks is shown dimmed, before its answer."""
    with terminal("--url", url) as chat:
        chat.type("think\r")
        shown = chat.until(PROMPT)

        assert "\x1b[2mLet me see.\x1b[0m\r\nDone.\r\n" in shown


def test_terminal_is_not_steered(url: str) -> None:
    """Control characters of an answer do not reach the terminal."""
    with terminal("--url", url) as chat:
        chat.type("escape\r")
        shown = chat.until(PROMPT)

        assert "a ]0;title b" in shown


def test_terminal_remembers_lines(url: str, model: Model) -> None:
    """The arrow keys bring earlier lines back."""
    with terminal("--url", url) as chat:
        chat.type("one\r")
        chat.until(PROMPT)
        chat.type("\x1b[A two\r")
        chat.until("user+assistant+user: one two")


def test_history_of_earlier_chats(url: str, tmp_path: Path) -> None:
    """The arrow keys bring whole messages of earlier chats back, from a file of the user's that never has the key."""
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    file = tmp_path / "unilect" / "chat_history"
    with terminal("--url", url, environment=environment) as chat:
        chat.type(f'"""the key\r{KEY}\rthree"""\r')
        chat.until(f"{KEY}\r\nthree\r\n")
        chat.until(PROMPT)
        chat.type("\x04")
        chat.ends()
    kept, mode = file.read_text(), file.stat().st_mode & 0o777
    with terminal("--url", url, environment=environment) as chat:
        chat.type("\x1b[A\r")
        chat.until("user: the key\r\n***\r\nthree")
        chat.until(PROMPT)
    with terminal("--url", url, "--no-history", environment=environment) as chat:
        chat.type("\x1b[Atwo\r")
        chat.until("user: two")
        chat.until(PROMPT)

    assert (json.dumps('"""the key\n***\nthree"""') + "\n", 0o600) == (kept, mode)
    assert kept * 2 == file.read_text()


def test_ctrl_c_stops_the_answer(url: str, model: Model) -> None:
    """Ctrl-C stops the running answer and the model behind it; the chat goes on with what was said."""
    model.left.clear()
    with terminal("--url", url) as chat:
        chat.type("slow\r")
        chat.until("word3 ")
        chat.type("\x03")
        shown = chat.until(PROMPT)
        left = model.left.wait(TIMEOUT_S)
        chat.type("two\r")
        chat.until("user+assistant+user: two")
        chat.until(PROMPT)
        chat.type("half a line")
        chat.until("half a line")
        hint = chat.interrupt()
        chat.type("/quit\r")

        assert "stopped" in shown
        assert "Ctrl-D or /quit leaves the chat" in hint
        assert left
        assert chat.ends() == 0


@pytest.mark.heavy
def test_ctrl_c_ends_a_pipe(url: str) -> None:
    """Ctrl-C ends a chat that reads from a pipe."""
    process = subprocess.Popen(
        [*UNILECT, "chat", "--url", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"UNILECT_API_KEY": KEY},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("slow\none\n")
    process.stdin.flush()
    process.stdout.read(5)
    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130
    assert said == ""


def test_own_server_answers_and_goes(tmp_path: Path) -> None:
    """Without --url the bundled model answers, from a server that ends with the chat."""
    file = tmp_path / "talk.json"
    with terminal() as chat:
        server = children(chat.process.pid)
        chat.type("/set max_tokens 8\r")
        chat.until(PROMPT)
        chat.type("Hello!\r")
        shown = chat.until(PROMPT)
        chat.type(f"/save {file}\r")
        chat.until(PROMPT)
        chat.type("\x04")

        assert chat.ends() == 0
    assert re.search(r"\d+ tokens", shown)
    assert [message["role"] for message in json.loads(file.read_text())["messages"]] == [
        "user",
        "assistant",
    ]
    assert len(server) == 1
    assert gone(server)


@pytest.mark.heavy
def test_own_server_does_not_outlive_us() -> None:
    """The server goes also when the chat is killed."""
    with terminal() as chat:
        server = children(chat.process.pid)
        chat.process.kill()
        chat.ends()

    assert len(server) == 1
    assert gone(server)


@pytest.mark.heavy
def test_own_server_that_does_not_start(tmp_path: Path) -> None:
    """A model that cannot be served is one line, and exit code 1."""
    done = subprocess.run(
        [*UNILECT, "chat", str(tmp_path / "none.gguf")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=ENVIRONMENT,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("unilect: ")
    assert done.stderr.count("\n") == 1


def test_url_and_source_exclude_each_other() -> None:
    """A server and a model for a server cannot both be named."""
    done = piped("http://127.0.0.1:9", args=["demo:"])

    assert done.exit_code == 1
    assert done.stderr.startswith("unilect: --url names a server")


@pytest.mark.heavy
def test_worker_is_a_source() -> None:
    """A worker says in JSON where it serves, and another server's model comes from there."""
    worker = subprocess.Popen(
        [*UNILECT, "worker", "far=demo:", "--port", "0", "--api-key", KEY, "--context", "512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert worker.stdout is not None
    ready = json.loads(worker.stdout.readline())["ready"]
    done = piped(ready["url"], "/set max_tokens 4", "Hello!")
    long = piped(ready["url"], "word " * 1000)
    worker.send_signal(signal.SIGTERM)
    rest, _ = worker.communicate(timeout=TIMEOUT_S)

    assert ready["model"] == "far"
    assert "maximum context length is 512 tokens" in long.stderr
    assert done.stdout.strip() != ""
    assert done.exit_code == 0
    assert rest == ""
    assert worker.returncode == 0


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids: list[int]) -> bool:
    """True once the processes have ended."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pid in pids]
            if any(not state.startswith(" Z") for state in states):
                time.sleep(0.05)
                continue
        return True
    return False
