"""
What a new user gets wrong in the first hour: each mistake is told with what it is, where it is, and what to do.

Those about the hub are in tests/hub/test_download.py, those in a chat in tests/cli/test_chat.py, those of a configuration file in tests/config/test_server.py.
"""

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from support.backends.engine import engine, needs_transformers
from support.servers.appserver import App, serving
from support.servers.configured import merged
from unilect.cli import main as cli
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf._child import try_templates
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.server.listener import Listener

HF = FOLDER / "hf"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a test's own, with what people point at."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    whole = MODEL.read_bytes()
    texts = {
        "unilect.toml": "port = 1",
        "conf.yaml": "port: 1",
        "notes.md": "# Notes",
        "page.gguf": "<!DOCTYPE html><html>" + " " * 99,
        "lone.safetensors": "x" * 99,
        "pointer.gguf": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "text.gguf": "no model, but a text\n" * 9,
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("empty.gguf").touch()
    Path("cut.gguf").write_bytes(whole[: len(whole) // 2])
    Path("chat.bin").write_bytes(b"ggml" + bytes(99))
    Path("OK.GGUF").symlink_to(MODEL)
    os.mkfifo("pipe.gguf")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for folder in ("nothing", "one", "many", "adapter", "outer/inner", "lone", "no-tokenizer"):
        Path(folder).mkdir(parents=True)
    Path("one/ok.gguf").symlink_to(MODEL)
    for name in ("a.gguf", "b.gguf"):
        Path("many", name).symlink_to(MODEL)
    Path("adapter/adapter_config.json").write_text("{}")
    Path("outer/inner/config.json").write_text("{}")
    Path("lone/model.safetensors").write_bytes(b"x" * 99)
    for file in HF.iterdir():
        for folder in ("hf", "cut", "no-head", "no-weights", "no-tokenizer"):
            Path(folder).mkdir(exist_ok=True)
            if not (folder == "no-tokenizer" and file.name.startswith(("tokenizer", "vocab"))):
                Path(folder, file.name).symlink_to(file)
    Path("no-weights/model.safetensors").unlink()
    weights = (HF / "model.safetensors").read_bytes()
    for folder, content in (("cut", weights[:-10]), ("no-head", b"\xff" * 99)):
        Path(folder, "model.safetensors").unlink()
        Path(folder, "model.safetensors").write_bytes(content)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    """An application in front of the bundled model."""
    async with engine("gguf") as running, serving(running) as app:
        yield app


def told(*models: str, **engine: object) -> str:
    """What `unilect serve` says of these models, before it starts one."""
    with pytest.raises(ConfigError) as raised:
        sources.registry(merged(models, None, {}, engine))
    return str(raised.value)


@pytest.mark.heavy(but=25)
@pytest.mark.parametrize(
    ("source", "where", "what", "to_do"),
    [
        ("missing.gguf", "missing.gguf", "There is no file", "Check the path."),
        ("unilect.toml", "unilect.toml: ", "this is a configuration file", "`unilect serve --config unilect.toml`"),
        ("conf.yaml", "conf.yaml: ", "this is no model", "a TOML file"),
        ("notes.md", "notes.md: ", "does not begin with `GGUF`", "Name a .gguf file, the folder of a model"),
        ("chat.bin", "chat.bin: ", "a model of chatglm.cpp", "Write chatglm:chat.bin."),
        ("lone/model.safetensors", "lone/model.safetensors: ", "holds weights only", "with the config.json and the tokenizer that are missing there: lone"),
        ("lone.safetensors", "lone.safetensors: ", "holds weights only", "that are missing there: ./"),
        ("hf/model.safetensors", "hf/model.safetensors: ", "holds weights only", "Name its folder: hf"),
        ("gone.bin", "gone.bin: ", "there is no such file", "http://gone.bin"),
        ("empty.gguf", "empty.gguf ", "it has 0 bytes", "Fetch it again"),
        ("text.gguf", "text.gguf ", "does not begin with `GGUF`", "Fetch it again"),
        ("page.gguf", "page.gguf ", "it is a web page", "download the file itself"),
        ("pointer.gguf", "pointer.gguf ", "a pointer of git LFS", "run `git lfs pull`"),
        ("cut.gguf", "cut.gguf ", "cut off", "Fetch it again"),
        (f"x={FOLDER / 'lora-pirate.gguf'}", "lora-pirate.gguf ", "is a LoRA adapter, not a model", "the adapter as `lora`"),
        ("nothing", "nothing: ", "this folder is empty", "Name a transformers folder"),
        ("m=many", "many ", "is a folder, not a GGUF file", "Name one of its files: many/a.gguf, many/b.gguf"),
        ("hf:many", "many: ", "holds GGUF files: a.gguf, b.gguf", "such as many/a.gguf."),
        ("adapter", "adapter: ", "is a LoRA adapter, not a model", "this folder as `lora`"),
        ("outer", "outer: ", "no config.json", "Its folders hold models: outer/inner."),
        ("no-weights", "no-weights: ", "no weights", "*.safetensors"),
        ("no-tokenizer", "no-tokenizer: ", "a model and no tokenizer", "name their folder with `tokenizer`"),
        ("cut", "cut/model.safetensors: ", "is incomplete: it has", "Fetch it again"),
        ("no-head", "no-head/model.safetensors: ", "its header cannot be read", "Fetch it again"),
        pytest.param("hf:./none", "./none: ", "there is no such folder", "org/name", marks=needs_transformers),
        ("qwen3-4b", "qwen3-4b: ", "no library has models by such names", "org/repo:Q4_K_M"),
        ("llama3.2:1b", "llama3.2:1b: ", "no library has models by such names", 'source = "http://127.0.0.1:11434/v1", model = "llama3.2:1b"'),
        ("ollama:x", "ollama:x: ", "no such model in the store of Ollama", 'model = "x"'),
        ("lmstudio:a/b/c.gguf", "lmstudio:a/b/c.gguf: ", "no such model in the store of LM Studio", "It is empty, or not"),
        ("https://huggingface.co/datasets/a/b", "https://huggingface.co/datasets/a/b: ", "names no model", "Write hf:org/name"),
        ("localhost:8000", "localhost:8000: ", "needs its scheme", "write http://localhost:8000"),
        ("gpu:8000", "gpu:8000: ", "needs its scheme", "write http://gpu:8000"),
        ("s3://b/x.gguf", "s3://b/x.gguf: ", "`s3:` is no scheme of a source", "download it first"),
        ("HTTP://h/v1", "HTTP://h/v1: ", "written in lower case", "http://h/v1"),
        ("https://host/x.safetensors?download=1", "https://host/x.safetensors?download=1: ", "a file that is no GGUF file", "hf:org/name"),
        ("https://[::1/x.gguf", "https://[::1/x.gguf: ", "is no web address", "Check it."),
        ("http://127.0.0.1:9999999/v1", "http://127.0.0.1:9999999/v1: ", "its port is no number from 1 to 65535", "such as http://host:8000/v1"),
        ("/dev/null", "/dev/null: ", "is a device, and no model", "Name a .gguf file"),
        ("pipe.gguf", "pipe.gguf: ", "is a named pipe, and no model", "Name a .gguf file"),
        ("socket", "socket: ", "is a socket, and no model", "Name a .gguf file"),
        ("gone/", "gone/: ", "there is no such file or folder", "Check the path."),
        ("./gone", "./gone: ", "there is no such file or folder", "Check the path."),
        ("gone.toml", "gone.toml: ", "there is no such file", "a configuration is named with --config"),
        ("file:///gone/x.gguf", "/gone/x.gguf", "There is no file", "Check the path."),
        ("ftp://h/x", "ftp://h/x: ", "`ftp:` is no scheme of a source", "download it first"),
        ("", "``: ", "has no source", "Write SOURCE or NAME=SOURCE"),
        ("m=", "`m=`: ", "has no source", "a variable of the shell may be empty"),
        ("my model=OK.GGUF", "my model=OK.GGUF: ", "invalid model name `my model`", "such as my-model=OK.GGUF"),
    ],
)  # fmt: skip
def test_sources(source: str, where: str, what: str, to_do: str) -> None:
    """A source that cannot be served is told with its name, what it is, and what to write instead."""
    message = told(source)

    assert where in message
    assert what in message
    assert to_do in message
    assert "\n" not in message


def test_what_is_wrong_with_a_folder_is_told_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder that holds no model is told as such also where transformers is not installed, and a whole one what to install."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: None)

    assert "this folder is empty" in told("nothing")
    assert "no weights" in told("no-weights")
    assert re.search(
        r"^models.hf: hf: .* require torch.*`pip install .*\[transformers\]'?`", told("hf")
    )


@pytest.mark.parametrize(
    ("source", "lora", "what", "to_do"),
    [
        ("demo:", "missing.gguf", "There is no file missing.gguf", "Check the path."),
        ("demo:", str(FOLDER / "lora-pirate"), "is an adapter of peft, and this model is a GGUF file", "convert_lora_to_gguf.py"),
        ("demo:", "OK.GGUF", "is a GGUF file, and no LoRA adapter", "Name the adapter"),
        ("hf", str(FOLDER / "lora-pirate.gguf"), "is a file, and an adapter for a transformers model is a peft folder", "Name that folder"),
        ("hf", "gone", "no such folder", "Check the path"),
    ],
)  # fmt: skip
def test_adapters(
    source: str, lora: str, what: str, to_do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that is missing, or of the other kind of model, is told with what goes with this one."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: True)

    message = told(f"m={source}", lora=[lora])

    assert message.startswith("models.m: lora: ")
    assert what in message
    assert to_do in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mmproj": "OK.GGUF"}, "mmproj: OK.GGUF is a model (llama), and no projector."),
        ({"mmproj": "gone.gguf"}, "mmproj: There is no file gone.gguf."),
        ({"chat_template": "nosuch"}, "chat_template: nosuch is no Jinja, no named format"),
        ({"chat_template": "{% if %}"}, "chat_template: line 1 is not valid Jinja: "),
        ({"chat_template": "./t.jinja"}, "chat_template: ./t.jinja: line 2 is not valid Jinja: "),
    ],
)
def test_what_is_beside_a_model(options: dict[str, str], said: str) -> None:
    """A projector and a template that cannot be used are told with the model, the file and the line, before anything starts."""
    Path("t.jinja").write_text("{{ 1 }}\n{{ x( }}\n")

    message = told("m=OK.GGUF", **options)

    assert f"models.m: {said}" in message
    assert "valid Jinja" not in message or "Correct it, or name a format" in message


def test_all_that_is_beside_a_model() -> None:
    """Several mistakes beside one model are told together."""
    message = told("m=OK.GGUF", mmproj="gone.gguf", chat_template="{% if %}", lora=["OK.GGUF"])

    assert ["mmproj", "chat_template", "lora"] == [
        name for name in ("mmproj", "chat_template", "lora") if f"models.m: {name}: " in message
    ]


def test_a_template_that_only_llama_cpp_refuses(tmp_path: Path) -> None:
    """A filter that Jinja does not have is named with its line where llama.cpp refuses the template."""
    with pytest.raises(ValueError, match=r"line 2: No filter named 'nosuch'"):
        try_templates(["{{ 1 }}\n{{ messages | nosuch }}"], str(MODEL), tmp_path)


def test_tags_that_only_others_have() -> None:
    """A tag that is llama.cpp's business is no mistake here."""
    text = "{% generation %}{{ messages }}{% endgeneration %}"

    assert sources.registry(merged(["OK.GGUF"], None, {}, {"chat_template": text})).models


def test_doubts() -> None:
    """More threads than cores, and two names of one file, are told, and served."""
    Path("c.toml").write_text(
        "[models.a]\nsource = 'OK.GGUF'\nthreads = 999\n[models.b]\nsource = 'OK.GGUF'\n"
    )
    done = CliRunner().invoke(cli.app, ["config", "check", "c.toml"])

    assert 0 == done.exit_code
    assert "warning: models.a: threads: 999 threads on " in done.output
    assert "warning: models.b: its file is that of models.a, too" in done.output
    assert 'base = "a"' in done.output


def test_facts_are_told_of_what_is_right() -> None:
    """Of a configuration with mistakes nothing is told but these."""
    Path("c.toml").write_text("host = 'http://127.0.0.1'\n")
    done = CliRunner().invoke(cli.app, ["config", "check", "c.toml"])

    assert (2, "") == (done.exit_code, done.stdout)
    assert "is not an address" in done.stderr


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user who may read what all may read; tests often run as one who may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("source", "path", "where"),
    [
        ("whole.gguf", "whole.gguf", "models.whole: whole.gguf: "),
        ("shut/x.gguf", "shut", "models.x: shut/x.gguf: "),
        ("whole", "whole/config.json", "models.whole: whole/config.json: "),
        ("whole", "whole/model.safetensors", "models.whole: whole/model.safetensors: "),
    ],
)
def test_files_that_may_not_be_read(
    source: str, path: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is there and may not be read is told as that, with the file and who must be allowed to."""
    monkeypatch.setattr("unilect.engines.transformers.engine.find_spec", lambda name: True)
    shutil.copytree(HF, "whole")
    Path("shut").mkdir()
    for name in ("whole.gguf", "shut/x.gguf"):
        shutil.copy(MODEL, name)
    sources.registry(merged([source], None, {}, {}))  # imports what that needs
    Path().chmod(0o755)
    Path(path).chmod(0)
    try:
        with as_nobody():
            message = told(source)
    finally:
        Path(path).chmod(0o700)

    assert message.startswith(where)
    assert "cannot be read (Permission denied)." in message
    assert "the user of this process may read it" in message


@pytest.mark.parametrize("arguments", ["serve --config unilect.toml", "config check unilect.toml"])
def test_settings_that_may_not_be_read(arguments: str) -> None:
    """A configuration file that may not be read is told as that, with what to name instead."""
    CliRunner().invoke(cli.app, ["config", "check", "unilect.toml"])  # imports what that needs
    Path().chmod(0o755)
    Path("unilect.toml").chmod(0)
    with as_nobody():
        done = CliRunner().invoke(cli.app, arguments.split())

    assert done.exit_code
    assert "unilect.toml: cannot be read (Permission denied)." in done.stderr
    assert "Name a TOML file" in done.stderr


def test_a_model_in_upper_case() -> None:
    """A GGUF file is one in upper case too, and without an ending."""
    models = sources.registry(merged(["OK.GGUF"], None, {}, {})).models

    assert ["OK"] == list(models)


@pytest.mark.parametrize(
    ("arguments", "what", "to_do"),
    [
        ("serve --model x.gguf", "No such option '--model'.", "`unilect serve path/to/model.gguf`"),
        ("serve -m=x.gguf", "No such option '-m'.", "`unilect serve path/to/model.gguf`"),
        ("serve x.gguf --ctx-size 4096", "No such option '--ctx-size'.", "Use --context"),
        ("worker x.gguf -ngl 99", "No such option '-ngl'.", "Use --gpu-layers."),
        ("serve --tensor-parallel-size 2", "No such option", "docs/configuration.md"),
        ("serve --contxt 3", "No such option '--contxt'.", "--context"),
        ("serve --port abc", "'--port'", "valid integer"),
        ("run qwen3", "No such command 'run'.", "`unilect chat SOURCE`"),
        ("download qwen3", "No such command 'download'.", "`unilect pull SOURCE`"),
        ("launch codex", "No such command 'launch'.", "`unilect connect CLIENT`"),
        ("ls", "No such command 'ls'.", "`unilect list`"),
        ("model.gguf", "No such command 'model.gguf'.", "`unilect serve model.gguf`"),
        ("hf:org/name", "No such command 'hf:org/name'.", "`unilect serve hf:org/name`"),
    ],
)  # fmt: skip
def test_the_command_line(arguments: str, what: str, to_do: str) -> None:
    """A flag or a command that other servers have is told with what it is called here."""
    done = CliRunner().invoke(cli.app, arguments.split(), env={"TERMINAL_WIDTH": "200"})
    text = re.sub(r"[\s|│]+", " ", done.output)

    assert 2 == done.exit_code
    assert what in text
    assert to_do in text


@pytest.mark.parametrize(
    ("arguments", "what", "to_do"),
    [
        ("chat --url http://127.0.0.1:1 --context 512", "--context is for a server that this command starts", "leave one of them out"),
        ("chat model.gguf --url http://127.0.0.1:1", "SOURCE is for a server that this command starts", "leave one of them out"),
        ("chat --url localhost:8000", "--url localhost:8000: expected a URL", "http://127.0.0.1:8000/v1"),
        ("models --url http://127.0.0.1:1", "http://127.0.0.1:1: ", "refused by 127.0.0.1:1. Start it, or check the address."),
        ("chat --url http://127.0.0.1:1", "http://127.0.0.1:1/v1: ", "refused by 127.0.0.1:1. Start it, or check the address."),
        ("compat llamacp", "unknown server `llamacp`", "Use one of llamacpp, chatglm, fastchat, alpaca, ollama."),
        ("worker", "worker: serves one model, but the configuration has none", "`unilect worker NAME=SOURCE`"),
    ],
)  # fmt: skip
def test_commands(arguments: str, what: str, to_do: str) -> None:
    """Arguments that do not go together, and servers that do not answer, are told in one line on stderr."""
    done = CliRunner().invoke(cli.app, arguments.split())

    assert 1 == done.exit_code
    assert 1 == done.stderr.count("\n")
    assert what in done.stderr
    assert to_do in done.stderr


def test_an_unknown_architecture() -> None:
    """A file whose architecture llama.cpp does not know is told with what to install, or to serve it from."""
    data = MODEL.read_bytes()
    Path("new.gguf").write_bytes(data.replace(b"llama", b"lyama"))
    done = CliRunner().invoke(cli.app, ["serve", "new.gguf", "--port", "0"])

    assert 1 == done.exit_code
    assert (
        "new.gguf has the architecture `lyama`, which the installed llama.cpp does not know"
        in done.stderr
    )
    assert "pip install -U xllamacpp" in done.stderr


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


@pytest.mark.parametrize(
    ("body", "what", "to_do"),
    [
        ("{", "The request's body is not valid JSON", "Send one JSON object."),
        ("{}", "`messages` is missing", "it is required"),
        ({"messages": [{"role": "usr"}]}, "`messages[0].role`: ", "expected one of `system`, `developer`, `user`"),
        ({"model": "x"}, "The model `x` is not served here.", "Models: m."),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "`messages[0].content` holds an image", "the model `m` reads text only"),
        ({"messages": [{"role": "user", "content": "a" * 9000}]}, "context length is 2048 tokens, and the prompt has", "Shorten the prompt"),
        ({"echo": True}, "The parameter `echo` is not supported here", "it belongs to /v1/completions. Remove it, or use that endpoint."),
    ],
)  # fmt: skip
@pytest.mark.asyncio(loop_scope="module")
async def test_requests(app: App, body: Any, what: str, to_do: str) -> None:
    """A request that is wrong is told with the field, and what would be right."""
    if isinstance(body, dict):
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]} | body)
    url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
    async with app.session.post(url, data=body) as response:
        message = (await response.json())["error"]["message"]

    assert response.status in (400, 404)
    assert what in message
    assert to_do in message


def test_the_version() -> None:
    """`unilect --version` says which version it is."""
    done = CliRunner().invoke(cli.app, ["--version"])

    assert (0, True) == (done.exit_code, bool(re.fullmatch(r"unilect \d+\.\d+\.\d+\S*\n", done.output)))  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("unilect se", "plain,serve"), ("unilect serve --cont", "plain,--context"), ("unilect keys rot", "plain,rotate")],
)  # fmt: skip
def test_completion(typed: str, offered: str) -> None:
    """A shell that asks gets the commands and flags that begin with what is typed."""
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = CliRunner().invoke(
        cli.app,
        prog_name="unilect",
        env=asked | {"_UNILECT_COMPLETE": "bash_complete"},
    )

    assert f"{offered}\n" == done.output


@pytest.mark.parametrize("command", ["models", "keys list"])
def test_an_interrupted_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with 130, the code that shells have for it, and without a word."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unilect.config.load.load", interrupted)
    done = CliRunner().invoke(cli.app, command.split())

    assert (130, "") == (done.exit_code, done.output)


async def refusal(config: Config) -> str:
    """What is said where this address cannot be listened on."""
    listener = Listener(config, Registry([]))
    try:
        with pytest.raises(ConfigError) as raised:
            await listener.listen()
    finally:
        await listener.aclose()
    return str(raised.value)


async def test_a_port_in_use() -> None:
    """A port that another program has is told once, with how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refusal(Config(port=port))

    assert message.startswith(f"port: cannot listen on 127.0.0.1:{port}, which is in use.")
    assert "--port" in message
    assert 1 == message.count("in use")


@pytest.mark.parametrize(
    ("raised", "where", "what", "to_do"),
    [
        (OSError(errno.EACCES, "denied"), "port: 80 ", "administrator only", "Choose another with --port"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "host: h ", "no address of this machine", "Use 127.0.0.1"),
        (socket.gaierror(-2, "no name"), "host: h ", "no address of this machine", "0.0.0.0"),
        (OSError(errno.EPERM, "odd"), "host: ", "cannot listen on h:80", "--host and --port"),
    ],
)  # fmt: skip
def test_addresses(raised: OSError, where: str, what: str, to_do: str) -> None:
    """An address that cannot be listened on is told by the option that is wrong, with what would work."""
    from unilect.server.listener import _why_not

    message = _why_not("h", 80, raised)

    assert message.startswith(where)
    assert what in message
    assert to_do in message


def test_the_host_of_an_older_server() -> None:
    """`compat --help` tells the address that is really listened on."""
    done = CliRunner().invoke(cli.app, ["compat", "chatglm", "--help"])

    assert "[127.0.0.1; with --api-key or" in done.output
