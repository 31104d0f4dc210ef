"""Tests of unilect.engines.command.engine, with llama.cpp's own server and with programs that go wrong."""

import asyncio
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat, completion, events_of
from support.common.waiting import until
from support.servers.listening import listening
from support.servers.reloading import Reloadable
from support.servers.serving import serve
from unilect.api.backend import Backend
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    EngineDied,
    UnilectError,
)
from unilect.demo import MODEL
from unilect.engines.process.tree import descendants
from unilect.models import sources
from unilect.residency.events import Events

LLAMA_SERVER = Path(__file__).parents[3] / "bench" / "llama_server.py"
#: llama.cpp's server; its arguments are file, port, requests at a time, context, threads.
SERVED = f"{sys.executable} {LLAMA_SERVER} {{file}} {{port}} {{parallel}} {{context}} 1"
#: A server that is ready at once.
PLAIN = f"{sys.executable} -m http.server --bind 127.0.0.1 {{port}}"


def made(**config: Any) -> Backend:
    """Make the engine of a table `m`."""
    table = ModelConfig(**config)
    return sources.backend(sources.spec_of("m", table.sources[0], table))


@asynccontextmanager
async def engine(**config: Any) -> AsyncIterator[Backend]:
    """An engine of a table, which is closed, and then has left no process behind."""
    before = set(descendants(os.getpid()))
    backend = made(**config)
    try:
        yield backend
    finally:
        await backend.aclose()
    assert not set(descendants(os.getpid())) - before


def servers_of(backend: Backend, word: str) -> list[int]:
    """List the processes of a backend in whose command lines a word stands."""
    pid: Any = backend.children[0]
    return [one for one in descendants(pid.starting_pid) if word in Path(f"/proc/{one}/cmdline").read_text()]  # fmt: skip


async def test_lives(caplog: pytest.LogCaptureFixture) -> None:
    """A server starts with its first request, is what its protocol tells, comes back after a kill, and leaves nothing when it is stopped."""
    caplog.set_level(logging.INFO, "unilect")
    async with engine(command=SERVED, source=str(MODEL), parallel=2, context=512) as backend:
        assert backend.capabilities.max_in_flight == 2
        first = await answer(backend.generate(chat(temperature=0.0, max_tokens=4)))
        text = first.choices[0].text
        assert backend.capabilities.context == 512
        assert any("a server of kind llama-server" in line for line in caplog.messages)
        events = Events("m")
        backend.children[0].witnesses.add(events.witness)
        (pid,) = servers_of(backend, "llama_server")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: backend.children[0].deaths)
        again = await answer(backend.generate(chat(temperature=0.0, max_tokens=4)))
        assert text == again.choices[0].text
        assert (2, 1) == (backend.children[0].starts, backend.children[0].processes)
        assert backend.children[0].resident_memory_bytes > 2**20
        await backend.check()
        await until(lambda: len(events.last) == 2)
    died, back = events.last
    killed = r"m: died after \d+ s: killed \(SIGKILL\): by hand, or by the system for want of memory; it is started again at once; its log says: \S.*"
    assert re.fullmatch(killed, died.reason)
    assert ("died", -signal.SIGKILL) == (died.kind, died.numbers["status"])
    assert "restarted" == back.kind
    assert any("the engine died: killed (SIGKILL)" in line for line in caplog.messages)


@pytest.mark.heavy
async def test_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """A server that answers nothing any more while it has a request is killed, which is told, and comes back."""
    served = {"command": SERVED, "source": str(MODEL), "parallel": 1, "context": 512}
    events = Events("m")
    async with engine(**served, timeout_s=5) as backend:
        backend.children[0].witnesses.add(events.witness)
        batches = backend.generate(completion(stream=True, max_tokens=400, ignore_eos=True))
        await anext(batches)
        os.kill(servers_of(backend, "llama_server")[0], signal.SIGSTOP)
        with pytest.raises(UnilectError):
            await events_of(batches)
        await until(lambda: backend.children[0].deaths)
        assert "m: the engine is unresponsive; killing it" in caplog.messages
        assert 1 == backend.children[0].hangs
        watching: Any = backend
        await watching._supervisor._watchdog._task  # which looks at the next life once
        again = await answer(backend.generate(chat(temperature=0.0, max_tokens=4)))
        assert again.choices[0].text
        await until(lambda: len(events.last) == 2)
    hung = r"m: hung after \d+ s: it answered nothing for \d+ s, and was killed; it is started again at once.*"
    assert re.fullmatch(hung, events.last[0].reason)
    assert ["hung", "restarted"] == [one.kind for one in events.last]


async def test_dies_in_an_answer() -> None:
    """An answer that a kill cuts off ends with an error that says so, and not as a whole one."""
    async with engine(command=SERVED, source=str(MODEL), parallel=1, context=512) as backend:
        batches = backend.generate(completion(stream=True, max_tokens=400, ignore_eos=True))
        await anext(batches)
        os.kill(servers_of(backend, "llama_server")[0], signal.SIGKILL)
        with pytest.raises(EngineDied, match="died during the answer"):
            await events_of(batches)


async def test_ends_in_order(tmp_path: Path) -> None:
    """A server that answers errors until it has ended has died of them, however long that takes; one that stays well has answered an error."""
    script = tmp_path / "unwell.py"
    script.write_text(_UNWELL)
    async with engine(command=f"{sys.executable} {script} {{port}}", model="m") as backend:
        await backend.start()
        await (
            backend.check()
        )  # a list of its models is an error, too, as transformers' without a cache
        with pytest.raises(BackendError, match="status 500") as caught:
            await answer(backend.generate(chat("well")))
        assert not isinstance(caught.value, EngineDied)
        with pytest.raises(EngineDied, match="died during the answer"):
            await answer(backend.generate(chat("unwell")))
        assert (1, 1) == (backend.children[0].starts, backend.children[0].deaths)


#: A server that answers each request with an error, and after one ends with the tenth look at its health.
_UNWELL = """
import http.server, os, sys
looks = []
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b"{}"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/health" and looks:
            looks.append(self)
            if len(looks) > 10:
                os._exit(0)
            return self.answer(503)
        self.answer(200 if self.path == "/health" else 500)
    def do_POST(self):
        if b"unwell" in self.rfile.read(int(self.headers["Content-Length"])):
            looks.append(self)
        self.answer(500)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sh -c 'echo one; echo two >&2; exit 3' {port}", r"model m ended: exit status 3\. Its log ends: one \| two$"),
        ("sh -c 'kill -SEGV $$$$' {port}", r"model m ended: killed \(SIGSEGV\)\. Its log ends: nothing was written$"),
        ("sh -c 'echo $SECRET {key}; exit 1' {port}", r"Its log ends: \[hidden\] \[hidden\]$"),
    ],
)  # fmt: skip
async def test_start_fails(monkeypatch: pytest.MonkeyPatch, command: str, told: str) -> None:
    """A server that ends before it is ready is told with its status and the end of its log, to its operator alone and without secrets."""
    monkeypatch.setenv("SECRET", "sk-secret")
    async with engine(command=command) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            await backend.start()
    assert "The model's server could not be started. Try again, or ask its operator." == caught.value.message  # fmt: skip
    assert re.search(told, caught.value.for_operator)


async def test_silence() -> None:
    """A start without progress is given up, however long a start may take."""
    async with engine(command=["sh", "-c", "sleep 60; : {port}"], start_silence_s=0.1) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            await backend.start()
    assert "showed no progress for 0.1 s (`start_silence_s`)" in caught.value.for_operator


async def test_silence_of_one_that_answers() -> None:
    """What a server logs of our own questions, and the time that it takes to answer them, is no progress."""
    async with engine(command=PLAIN, health="/never", start_silence_s=0.5) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            await backend.start()
    assert "showed no progress for 0.5 s (`start_silence_s`)" in caught.value.for_operator
    assert "answers 404 to /never" in caught.value.for_operator
    assert "name that path in `health`" in caught.value.for_operator


async def test_nonsense(tmp_path: Path) -> None:
    """A server that answers nonsense is asked again, and what is left of it when it ends is ended."""
    script = tmp_path / "nonsense.py"
    script.write_text(_NONSENSE)
    async with engine(command=f"{sys.executable} {script} {{port}}") as backend:
        with pytest.raises(BackendUnavailable) as caught:
            await backend.start()
    assert "private" not in caught.value.message
    assert "ended: killed (signal 40). Its log ends: private" in caught.value.for_operator


#: A server that answers no HTTP, has a process beside itself, and dies of a signal without a name.
_NONSENSE = """
import os, socket, subprocess, sys
subprocess.Popen(["sleep", "60"])
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("private", flush=True)
for _ in range(3):
    connection, _ = listening.accept()
    connection.recv(999)
    connection.sendall(b"HTTP/1.1\\r\\n\\r\\nxxxxxxxx")
    connection.close()
os.kill(os.getpid(), 40)
"""


async def test_dies_in_pieces(tmp_path: Path) -> None:
    """A server is seen to end as soon as its own process does, while others of it are still being ended."""
    script = f"setsid sh -c 'trap : TERM; while :; do sleep 9; done' & exec {PLAIN}"
    stop = ["sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"]
    table = {"command": ["sh", "-c", script], "health": "/", "stop_command": stop}
    async with engine(**table, stop_timeout_s=1.0) as backend:
        process: Any = backend.children[0]
        await process.start()
        os.kill(servers_of(backend, "http.server")[-1], signal.SIGKILL)
        ended = asyncio.create_task(process.has_ended(1))
        await asyncio.wait({ended}, timeout=0.5)
        assert not ended.done()
        (tmp_path / "go").touch()
        assert await ended


async def test_tidies(tmp_path: Path) -> None:
    """What a server that was killed has beside itself gets the time to tidy up, as Python's tracker of shared memory does."""
    script, tidied = tmp_path / "tracked.py", tmp_path / "tidied"
    script.write_text(_TRACKED)
    async with engine(
        command=f"{sys.executable} {script} {{port}} {tidied}", health="/"
    ) as backend:
        process: Any = backend.children[0]
        await process.start()
        os.kill(process._ready["pid"], signal.SIGKILL)
        assert await process.has_ended(1)
        assert tidied.exists()


#: A server with a process that heeds no SIGTERM, and waits for its end.
_TRACKED = """
import http.server, os, subprocess, sys
script = 'trap "" TERM; cat; "$0" -c pass; touch "$1"'
end, begin = os.pipe()
subprocess.Popen(["sh", "-c", script, sys.executable, sys.argv[2]], stdin=end)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


async def test_secrets_of_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of a value, no value that begins like another, and no output of the stop command is told."""
    monkeypatch.setenv("LINES", "first-line\nsecond-line")
    monkeypatch.setenv("SHORT", "first")
    script = f'echo "$LINES"; exec {PLAIN}'
    environment = {"LINES": "$LINES", "SHORT": "$SHORT"}
    command = ["sh", "-c", script.replace("$", "$$")]
    stop = ["sh", "-c", 'echo "stop $$LINES"']
    async with engine(
        command=command, environment=environment, health="/", stop_command=stop
    ) as backend:
        process: Any = backend.children[0]
        await process.start()
        await backend.aclose()
    told = [line.text for line in process.log.since(0)]
    assert ["[hidden]", "[hidden]"] == told[:2]
    assert "stop [hidden]" in told
    assert not any("-line" in text for text in told)


async def test_program_without_interpreter(tmp_path: Path) -> None:
    """A program that cannot be run is told at once, and nothing is run to stop it."""
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    stop = f"touch {tmp_path}/stopped"
    async with engine(command=f"{program} {{port}}", stop_command=stop) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            await backend.start()
    assert "cannot be run: No such file or directory" in caught.value.for_operator
    assert not (tmp_path / "stopped").exists()


async def test_stop_command_after_a_death(tmp_path: Path) -> None:
    """The stop command is run also for a server that ended by itself: what is not below it may still run."""
    command = ["sh", "-c", "exit 1; : {port}"]
    async with engine(command=command, stop_command=f"touch {tmp_path}/{{port}}") as backend:
        with pytest.raises(BackendUnavailable):
            await backend.start()
    assert len(list(tmp_path.iterdir())) == 1


async def test_variable_in_no_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable whose bytes are no UTF-8 is passed on as it is."""
    monkeypatch.setitem(os.environb, b"HF_BYTES", b"caf\xe9")
    script = '[ "$$(printf %s "$$HF_BYTES" | wc -c)" = 4 ] || exit 3; exec ' + PLAIN
    async with engine(command=["sh", "-c", script], health="/") as backend:
        process: Any = backend.children[0]
        await process.start()


async def test_lost_socket() -> None:
    """A server whose socket somebody has removed is started again, as an engine of ours is."""
    script = (
        "import http.server as h, socketserver as s, sys; C = h.SimpleHTTPRequestHandler; C.address_string = lambda one: ''; "
        "s.UnixStreamServer(sys.argv[1], C).serve_forever()"
    )
    command = [sys.executable, "-c", script, "{socket}"]
    async with engine(command=command, health="/") as backend:
        process: Any = backend.children[0]
        at = await process.start()
        Path(at["socket"]).unlink()
        assert not process.alive
        again = await process.start()
        assert process.alive
        assert again["socket"] != at["socket"]


async def test_port_of_another(tmp_path: Path) -> None:
    """A server that ends because somebody has taken its port is started once more, with another port."""
    flag = tmp_path / "tried"
    script = f"[ -e {flag} ] && exec {PLAIN}; touch {flag}; {PLAIN} --directory {tmp_path} & sleep 0.5; exit 1"
    async with engine(command=["sh", "-c", script], health="/") as backend:
        process: Any = backend.children[0]
        await process.start()
        assert flag.exists()


async def test_stubborn_processes(tmp_path: Path) -> None:
    """What a server has started ends with it, also what leaves its group and does not listen to SIGTERM; so does a start that is given up."""
    script = f"setsid sh -c 'trap : TERM; while :; do sleep 9; done' & echo >> {tmp_path}/log; exec {PLAIN}"
    command = ["sh", "-c", script]
    async with engine(command=command, health="/", stop_timeout_s=0.2) as backend:
        process: Any = backend.children[0]
        await process.start()
        assert servers_of(backend, "trap")
        await backend.aclose()
        starting = asyncio.create_task(backend.start())
        await until(lambda: process.starting_pid and servers_of(backend, "trap"))
        await backend.aclose()
        with pytest.raises(BackendUnavailable):
            await starting


async def test_stop_command(tmp_path: Path) -> None:
    """The stop command is run first, and knows the server's process."""
    stopped = tmp_path / "stopped"
    stop = f"sh -c 'echo {{name}} {{pid}} > {stopped}; kill -9 {{pid}}'"
    async with engine(command=PLAIN, health="/", stop_command=stop) as backend:
        process: Any = backend.children[0]
        await process.start()
        (pid,) = servers_of(backend, "http.server")
        await backend.aclose()
        assert f"m {pid}\n" == stopped.read_text()


async def test_native_protocol(tmp_path: Path) -> None:
    """A server that is asked in llama.cpp's own protocol, and gets its port from its environment."""
    script = f'exec {sys.executable} {LLAMA_SERVER} {{file}} "$$PORT" 1 512 1'
    async with engine(
        command=["sh", "-c", script],
        environment={"PORT": "{port}"},
        source=str(MODEL),
        protocol="llamacpp",
    ) as backend:
        found = await answer(backend.generate(chat(temperature=0.0, max_tokens=4)))
        assert found.choices[0].text
        assert await backend.detokenize(await backend.tokenize("Hello")) == "Hello"


async def test_rooms(tmp_path: Path) -> None:
    """Of two servers of which one fits into the memory for models, the other one is stopped, with all of its processes; their context is told."""
    source = {"source": str(MODEL), "parallel": 1, "context": 512, "load": "demand"}
    table = ModelConfig(command=["sh", "-c", f"{SERVED} & wait"], memory="300MiB", **source)
    config = Config(port=0, models={"a": table, "b": table}, memory="400MiB")
    before = set(descendants(os.getpid()))
    async with listening(config) as server:
        models = server.registry.models
        for name, other in ("ab", "ba", "ab"):
            asked = server.request("", "/v1/completions", model=name, prompt="A", max_tokens=1)
            async with asked as response:
                assert 200 == response.status
            assert ("ready", "stopped") == (models[name].state, models[other].state)
            assert models[name].measure_memory() > 2**20
            async with server.request("", f"/v1/models/{name}", "GET") as response:
                assert 512 == (await response.json())["unilect"]["context"]
    assert not set(descendants(os.getpid())) - before


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"command": "sh {port}", "environment": {"A": "{no}"}},
            r"environment: `\{no\}` is no placeholder",
        ),
        ({"command": "sh {port}", "environment": {"A=B": "a"}}, "environment: 'A=B' cannot be set"),
        ({"command": "sh {port}", "environment": {"A": "a\0"}}, "environment: 'A' cannot be set"),
        ({"command": "sh {port}", "model": "{folder}"}, r"model: `\{folder\}` needs a `source`"),
        ({"command": "x"}, r"has neither of `\{port\}` and `\{socket\}`"),
        ({"command": "nosuchserver {port}"}, "there is no program `nosuchserver`"),
        ({"command": "sh $NOT_SET_HERE {port}"}, "variable NOT_SET_HERE is not set"),
        ({"command": "sh {port} {file}"}, r"`\{file\}` needs a GGUF file as `source`"),
        ({"command": "sh {port} {context}"}, r"`\{context\}` needs `context` to be set"),
        ({"command": "sh {port}", "context": 512}, "context: has no effect"),
        ({"command": "sh {port}", "source": str(MODEL)}, "source: has no effect"),
        ({"command": "sh {port} {file}", "source": "/no.gguf"}, r"there is no /no\.gguf"),
        ({"source": "command:sh"}, "Write the command line as the option `command`"),
    ],
)
def test_mistakes(config: dict[str, Any], told: str) -> None:
    """A table whose server could not start is refused with what to write."""
    with pytest.raises(ConfigError, match=told):
        made(**config)


@pytest.mark.heavy
async def test_reload(tmp_path: Path) -> None:
    """A reload with another command serves by that one, and ends the server of the old one; one that cannot start changes nothing."""
    file = tmp_path / "unilect.toml"

    def write(context: int, program: str = sys.executable) -> None:
        command = f"{program} {LLAMA_SERVER} {{file}} {{port}} 1 {context} 1"
        file.write_text(f'port = 0\n[models.m]\nsource = "{MODEL}"\ncommand = "{command}"\n')

    write(512)
    server = Reloadable(file)
    async with server.running():
        model = server.registry.models["m"]
        assert 512 == model.capabilities.context
        write(1024)
        await server.reloader.reload("a test")
        assert 1024 == server.registry.models["m"].capabilities.context
        await until(lambda: model.gone)
        assert 1 == sum("llama_server" in Path(f"/proc/{one}/cmdline").read_text() for one in descendants(os.getpid()))  # fmt: skip


@pytest.mark.heavy
def test_server_killed(tmp_path: Path) -> None:
    """When unilect is killed outright, no process of a server by command is left, nor the folder of its socket."""
    mark = f"--directory={tmp_path}"
    config = f"[models.m]\ncommand = '''{PLAIN} {mark}'''\nhealth = '/'\nmodel = 'm'\n"

    def left() -> list[str]:
        found = []
        for one in os.listdir("/proc"):
            try:
                found += [one] if one.isdecimal() and mark in Path(f"/proc/{one}/cmdline").read_text() else []  # fmt: skip
            except OSError:
                continue
        return found

    with tempfile.TemporaryDirectory(prefix="t") as folder:
        with serve(config=config, killed=True, env={"TMPDIR": folder}) as server:
            assert left()
            assert os.listdir(folder)
            os.kill(server.pid, signal.SIGKILL)
        asyncio.run(until(lambda: not left() and not os.listdir(folder)))
