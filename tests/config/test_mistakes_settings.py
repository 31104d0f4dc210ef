"""
Mistakes in files, the environment and the values of flags, as a new user makes them.

Each message has three parts: what is wrong, where (file and line, model and option, variable or flag), and what to do.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec import Struct

from unilect.cli.main import app
from unilect.demo import MODEL

#: What msgspec, JSON and Python call things.
FOREIGN = re.compile(
    r"Expected `|\bObject\b|\barrays?\b|`(str|int|float|bool|dict|list|null)`|\bNone\b|'dict'|Traceback|\[\.\.\.\]|\bgot\b"
)


class Mistake(Struct, frozen=True):
    """
    A mistake.

    Attributes:
        name: What it is called.
        what, where, do: The three parts of its message.
        file: The text of `unilect.toml`; None for no file.
        args: The command line; `FILE` stands for the file. By default the file is checked.
        env: The environment.
    """

    name: str
    what: str
    where: str
    do: str
    file: str | None = None
    args: tuple[str, ...] = ("config", "check", "FILE")
    env: Mapping[str, str] = {}


SERVE = ("serve",)
MISTAKES = [
    # files
    Mistake("no such file", "No such file", "none.toml", "Name a TOML file", args=("config", "check", "none.toml")),
    Mistake("no such file to serve", "No such file", "none.toml", "Name a TOML file", args=("serve", "--config", "none.toml")),
    Mistake("no such file in the environment", "No such file", "none.toml", "UNILECT_CONFIG", args=SERVE, env={"UNILECT_CONFIG": "none.toml"}),
    Mistake("a folder as file", "Is a directory", "cannot be read", "Name a TOML file", args=("config", "check", ".")),
    Mistake("bad TOML", "is not valid TOML: expected '='", ":2:", "`name = value`", "port = 1\nhost: 2\n"),
    Mistake("a text without quotes", "invalid value", ":1:", "Quote strings", "host = localhost\n"),
    Mistake("a capital", "invalid value", ":1:", "lower case", "insecure_no_auth = True\n"),
    Mistake("a path of Windows", "unescaped", ":2:", "single quotes", '[models.a]\nsource = "C:\\models\\x.gguf"\n'),
    Mistake("a table twice", "[models.a] is defined twice", ":2:", "keep one", "[models.a]\n[models.a]\n"),
    Mistake("an option twice", "overwrite", ":3:", "keep one", "port = 1\n\nport = 2\n"),
    Mistake("no UTF-8", "not UTF-8 text", "unilect.toml", "Save it as UTF-8", "\udcff"),
    # names of options
    Mistake("a misspelt option", "unknown option", ":1: prot:", "`port`", "prot = 1\n"),
    Mistake("a misspelt option of a model", "unknown option", ":2: models.a.contxt:", "`context`", "[models.a]\ncontxt = 1\n"),
    Mistake("another server's option", "unknown option", ":2: models.a.n_ctx:", "`context`", "[models.a]\nn_ctx = 1\n"),
    Mistake("[model.a]", "unknown table [model]", ":1: model:", "[models.a]", '[model.a]\nsource = "x"\n'),
    Mistake("[server]", "unknown table [server]", ":2: server:", "at the top", "\n[server]\nport = 1\n"),
    Mistake("[listener]", "unknown table [listener]", ":1: listener:", "[[listeners]]", "[listener]\nport = 1\n"),
    Mistake("a model without models", "unknown table [qwen]", ":1: qwen:", "[models.qwen]", '[qwen]\nsource = "demo:"\n'),
    Mistake("a parameter in a model", "parameter of requests", ":2: models.a.temperature:", "defaults = { temperature = 0.5 }", "[models.a]\ntemperature = 0.5\n"),
    Mistake("a parameter at the top", "parameter of requests", ":1: temperature:", "`defaults`", "temperature = 0.5\n"),
    Mistake("the server's in a model", "option of the server", ":2: models.a.port:", "at the top", "[models.a]\nport = 1\n"),
    Mistake("a model's at the top", "option of a model", ":1: context:", "[models.NAME]", "context = 512\n"),
    Mistake("a misspelt option of a listener", "unknown option", ":3: listeners[1].dialekt:", "`dialect`", '[[listeners]]\nport = 1\ndialekt = "x"\n'),
    Mistake("a misspelt option of rope_scaling", "unknown option", ":2: models.a.rope_scaling.facto:", "`factor`", '[models.a]\nrope_scaling = { rope_type = "yarn", factor = 2, facto = 2 }\n'),
    # values of options
    Mistake("a value of an enumeration", 'found "verbose"', ":1: log_level:", "one of `debug`, `error`, `info`, `warning`", 'log_level = "verbose"\n'),
    Mistake("another enumeration", 'found "q9"', ":2: models.a.cache_type_k:", "`q8_0`", '[models.a]\ncache_type_k = "q9"\n'),
    Mistake("a number in quotes", 'found "9000"', ":1: port:", "Leave the quotes out", 'port = "9000"\n'),
    Mistake("a text without its quotes", "found 3", ":2: models.a.fallback:", "Put it in quotes", "[models.a]\nfallback = 3\n"),
    Mistake("beyond a bound", "found 70000", ":1: port:", "integer from 0 to 65535", "port = 70000\n"),
    Mistake("a bound nobody reaches", "found 3000000000", ":1: max_body_bytes:", "at most 2147483648", "max_body_bytes = 3000000000\n"),
    Mistake("no finite number", "found inf", ":2: models.a.timeout_s:", "number above 0", "[models.a]\ntimeout_s = inf\n"),
    Mistake("a table for a list", "found a table", ":2: models.a.lora:", "list of texts", "[models.a]\nlora = { a = 1 }\n"),
    Mistake("one of a list", "found 3", ":2: models.a.stop[2]:", "expected text", '[models.a]\nstop = ["a", 3]\n'),
    Mistake("an empty list", "empty list", ":2: models.a.source:", "text or a list of texts", "[models.a]\nsource = []\n"),
    Mistake("a value for a table", "found 1", ":1: models:", "tables [models.NAME]", "models = 1\n"),
    Mistake("a value for a model", "found 1", ":2: models.a:", "a table [models.a]", "[models]\na = 1\n"),
    Mistake("a device", 'found "gpu"', ":2: models.a.device:", "`cuda:0`", '[models.a]\ndevice = "gpu"\n'),
    Mistake("what is missing", "is missing", ":1: listeners[1].port:", "integer from 0", '[[listeners]]\nhost = "localhost"\n'),
    Mistake("a name with a blank", "found a space", ':1: models."a b":', "letters, digits", '[models."a b"]\n'),
    # the store
    Mistake("a misspelt option of the store", "unknown option", ":2: store.max_age:", "`max_age_days`", "[store]\nmax_age = 30\n"),
    Mistake("a ledger that there is not", 'found "strict"', ":2: store.ledger:", "`best_effort`, `off`, `required`", '[store]\nledger = "strict"\n'),
    Mistake("a ledger without the budgets of a month", "found 7", ":2: store.ledger_days:", "from 32", "[store]\nledger_days = 7\n"),
    Mistake("a negative price", "found -1", ":2: models.a.price.prompt:", "number from 0", "[models.a]\nprice = { prompt = -1 }\n"),
    Mistake("[stores]", "unknown table [stores]", ":1: stores:", "[store]", "[stores]\nmax_age_days = 30\n"),
    Mistake("the server's in the store", "option of the server", ":2: store.port:", "at the top", "[store]\nport = 1\n"),
    Mistake("a value for the store", "found 1", ":1: store:", "expected a table", "store = 1\n"),
    Mistake("an age in words", 'found "30d"', ":2: store.max_age_days:", "number above 0", '[store]\nmax_age_days = "30d"\n'),
    Mistake("a path for the store's URL", "is not the URL of a database", ":2: store.url:", "`sqlite:///FILE`", '[store]\nurl = "unilect.db"\n'),
    Mistake("another database", "`mysql:...` is not the URL", ":2: store.url:", "`postgresql://", '[store]\nurl = "mysql://me:pw@host/db"\n'),
    Mistake("the store's unset $VARIABLE", "variable NOPE is not set", ":2: store.url:", "Set it", '[store]\nurl = "$NOPE"\n'),
    Mistake("the store's folder", "the folder FOLDER/none does not exist", ":2: store.url:", "Make it", '[store]\nurl = "sqlite:///none/x.db"\n'),
    # addresses and keys
    Mistake("a URL as host", "is not an address", ":1: host:", "127.0.0.1", 'host = "http://127.0.0.1"\n'),
    Mistake("a port in the host", "is not an address", "--host:", "`port`", args=("serve", "--host", "localhost:8000")),
    Mistake("0.0.0.0 without a key", "no API key is set", ":1: host: 0.0.0.0", "--api-key", 'host = "0.0.0.0"\n'),
    Mistake("a listener without a key", "no API key is set", ":3: listeners[1].host: 0.0.0.0", "--api-key", '[[listeners]]\nport = 1\nhost = "0.0.0.0"\n'),
    Mistake("one port for two", "127.0.0.1:8000 is in use by the server's own address", ":2: listeners[1].port:", "its own port", "[[listeners]]\nport = 8000\n"),
    Mistake("an unset $VARIABLE", "variable NOPE is not set", ":1: api_keys:", "Set it", 'api_keys = ["$NOPE"]\n'),
    Mistake("a model's unset $VARIABLE", "variable NOPE is not set", ":2: models.a.api_key:", "Set it", '[models.a]\napi_key = "$NOPE"\nsource = "http://127.0.0.1:1/v1"\n'),
    Mistake("no such certificate", "No such file", ":1: tls_cert:", "Name a file in PEM", 'tls_cert = "nosuch.pem"\n'),
    Mistake("no such key of a certificate", "No such file", ":2: tls_key:", "Name a file in PEM", 'tls_cert = "unilect.toml"\ntls_key = "nosuch.pem"\n'),
    Mistake("no certificate", "holds no certificate", ":1: tls_cert:", "PEM", 'tls_cert = "unilect.toml"\n'),
    Mistake("a key without certificate", "has no effect without tls_cert", ":1: tls_key:", "set tls_cert", 'tls_key = "k.pem"\n'),
    # models that contradict each other, or do nothing
    Mistake("an alias twice", "`b` is already used by models.a", ":4: models.c:", "Rename one", '[models.a]\naliases = ["b"]\n[models.c]\naliases = ["b"]\n'),
    Mistake("no such fallback", "unknown model `spar`", ":2: models.a.fallback:", "`spare`", '[models.a]\nfallback = "spar"\n[models.spare]\n'),
    Mistake("a fallback like none", "unknown model `zz`", ":2: models.a.fallback:", "Name another model", '[models.a]\nfallback = "zz"\n[models.b]\n'),
    Mistake("a circle of fallbacks", "is a cycle", ":2: models.a.fallback:", "a -> b -> a", '[models.a]\nfallback = "b"\n[models.b]\nfallback = "a"\n'),
    Mistake("without effect on the model", "no effect on http://127.0.0.1:1/v1", ":3: models.a: context:", "leave it out", '[models.a]\nsource = "http://127.0.0.1:1/v1"\ncontext = 512\n'),
    Mistake("without effect on the server", "no effect without allowed_origins", ":1: allowed_methods:", "set allowed_origins too", 'allowed_methods = "GET"\n'),
    Mistake("a worker's limit without a controller", "no effect without fastchat_register", ":1: fastchat_worker_concurrency:", "set fastchat_register too", "fastchat_worker_concurrency = 3\n"),
    # defaults
    Mistake("a misspelt default", "no such parameter", ":2: models.a.defaults.temprature:", "`temperature`", "[models.a]\ndefaults = { temprature = 1 }\n"),
    Mistake("a default's value", "found 3", ":3: models.a.defaults.temperature:", "number from 0 to 2", "[models.a]\n[models.a.defaults]\ntemperature = 3\n"),
    Mistake("a default's enumeration", 'found "huge"', ":2: models.a.defaults.reasoning_effort:", "`medium`", '[models.a]\ndefaults = { reasoning_effort = "huge" }\n'),
    Mistake("a default of what requests say", "each request says this", ":2: models.a.defaults.stream:", "leave it out", "[models.a]\ndefaults = { stream = true }\n"),
    Mistake("a default of the other kind", "no such parameter", ":2: models.a.completion_defaults.tools:", "docs/api.md", "[models.a]\ncompletion_defaults = { tools = [] }\n"),
    # files of models
    Mistake("a model beside the file", "no file", ":2: models.a:", "FOLDER/a/model.gguf. Check the path.", '[models.a]\nsource = "a/model.gguf"\n'),
    Mistake("an adapter beside the file", "no file", ":2: models.a:", "FOLDER/x.gguf", '[models.a]\nlora = "x.gguf=0.5"\n'),
    Mistake("an adapter of a model of the hub", "FOLDER/x.gguf does not exist", ":3: models.a: lora:", "Name a local file", '[models.a]\nsource = "gguf:org/repo/x.gguf"\nlora = "x.gguf"\n'),
    Mistake("the scale of an adapter", 'found "nan"', ":2: models.a: lora:", "such as `path=0.5`", f'[models.a]\nlora = "{MODEL.parent}/lora-robot.gguf=nan"\n'),
    Mistake("a template", "x.jinja", ":2: models.a: chat_template:", "no named format", '[models.a]\nchat_template = "x.jinja"\n'),
    Mistake("more context than there is", "999999 exceeds the model's maximum context length of 2048 tokens", ":2: models.a: context:", "Set at most 2048, or leave it out.", "[models.a]\ncontext = 999999\n"),
    Mistake("a source that is none", "no such file", ":2: models.a: nothing:", "Name a GGUF file", '[models.a]\nsource = "nothing"\n'),
    Mistake("an address of the hub", "names no model", ":2: models.a:", "gguf:org/repo/file.gguf", '[models.a]\nsource = "https://huggingface.co/datasets/x"\n'),
    # the environment
    Mistake("a misspelt variable", "sets nothing", "UNILECT_PROT:", "UNILECT_PORT", args=SERVE, env={"UNILECT_PROT": "9000"}),
    Mistake("another server's variable", "sets nothing", "UNILECT_BIND:", "UNILECT_HOST", args=SERVE, env={"UNILECT_BIND": "::1"}),
    Mistake("a misspelt key", "sets nothing", "UNILECT_KEY:", "UNILECT_API_KEY", args=SERVE, env={"UNILECT_KEY": "sk-hidden"}),
    Mistake("a variable of a model", "sets nothing", "UNILECT_CONTEXT:", "set it in a file", args=SERVE, env={"UNILECT_CONTEXT": "512"}),
    Mistake("a variable of a table", "sets nothing", "UNILECT_LISTENERS:", "in a file", args=SERVE, env={"UNILECT_LISTENERS": "1"}),
    Mistake("a variable like none", "sets nothing", "UNILECT_WHATEVER:", "docs/configuration.md", args=SERVE, env={"UNILECT_WHATEVER": "1"}),
    Mistake("an empty key", "is set but empty", "UNILECT_API_KEY:", "unset the variable", args=SERVE, env={"UNILECT_API_KEY": ""}),
    Mistake("a variable's type", 'found "abc"', "UNILECT_PORT:", "integer from 0 to 65535", args=SERVE, env={"UNILECT_PORT": "abc"}),
    Mistake("a variable's enumeration", 'found "loud"', "UNILECT_LOG_LEVEL:", "`debug`", args=SERVE, env={"UNILECT_LOG_LEVEL": "loud"}),
    Mistake("a variable's host", "no API key is set", "UNILECT_HOST: 0.0.0.0", "--api-key", args=SERVE, env={"UNILECT_HOST": "0.0.0.0"}),
    Mistake("a service of Kubernetes", "a service named `unilect`", "UNILECT_PORT:", "enableServiceLinks", args=SERVE, env={"UNILECT_PORT": "tcp://10.0.0.1:80"}),
    # flags
    Mistake("--port 80808", "found 80808", "--port:", "integer from 0 to 65535", args=("serve", "--port", "80808")),
    Mistake("--port abc", "Invalid value", "--port", "valid integer", args=("serve", "--port", "abc")),
    Mistake("--log-level verbose", 'found "verbose"', "--log-level:", "`debug`", args=("serve", "--log-level", "verbose")),
    Mistake("--context 1", "found 1", "--context:", "integer from 16", args=("serve", "--context", "1")),
    Mistake("--host 0.0.0.0", "no API key is set", "--host: 0.0.0.0", "--insecure-no-auth", args=("serve", "--host", "0.0.0.0")),
    Mistake("--api-key ''", "a key is empty", "--api-key:", "spaces", args=("serve", "--api-key", "")),
    Mistake("a flag for another engine", "no model here is one", "--gpu-layers:", "Leave it out", args=("serve", "x=http://127.0.0.1:1/v1", "--gpu-layers", "1")),
    Mistake("a name of a model", "invalid model name", "a b=", "letters, digits", args=("serve", f"a b={MODEL}")),
    Mistake("a name of a worker's model", "found a space", "--model-names:", "letters, digits", args=("worker", "demo:", "--model-names", "a b")),
    Mistake("a worker's address", "no effect without fastchat_register", "--worker-address:", "leave this out", args=("worker", "demo:", "--worker-address", "http://h:1")),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the command runs in, without the surroundings' `UNILECT_*`."""
    import os

    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, mistake: Mistake) -> Result:
    """What the command does."""
    if mistake.file is not None:
        (folder / "unilect.toml").write_bytes(mistake.file.encode("utf-8", "surrogateescape"))
    args = [str(folder / "unilect.toml") if arg == "FILE" else arg for arg in mistake.args]
    return CliRunner().invoke(app, args, env=dict(mistake.env))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_three_parts(folder: Path, mistake: Mistake) -> None:
    """A mistake ends the command, and its message says what is wrong, where, and what to do, in no foreign words."""
    done = run(folder, mistake)

    assert done.exit_code == (2 if "check" in mistake.args or "abc" in mistake.args else 1)
    for part in (mistake.what, mistake.where, mistake.do):
        assert part.replace("FOLDER", str(folder)) in done.stderr
    assert "mistakes" not in done.stderr
    assert not FOREIGN.search(done.stderr)
    assert "sk-hidden" not in done.output
    if mistake.file is not None:
        assert f"unilect: {folder / 'unilect.toml'}:" in done.stderr


def test_all_at_once(folder: Path) -> None:
    """The mistakes of a file, the environment and the flags are told together, those of the file in its order."""
    file = folder / "unilect.toml"
    file.write_text(
        'prot = 1\nlog_level = "x"\n[models.a]\ncontxt = 1\nsource = "a.gguf"\n[models.b]\ndtype = "float32"\n'
        "defaults = { top_p = 2 }\n"
    )
    args = ["serve", "--config", str(file), "--port", "70000"]
    done = CliRunner().invoke(app, args, env={"UNILECT_HST": "::1"})

    first, *others = done.stderr.splitlines()
    assert (1, "unilect: 8 mistakes:") == (done.exit_code, first)
    places = [line.strip().removeprefix(str(file)).partition(": ")[0] for line in others]
    assert [":1", ":2", ":4", "UNILECT_HST", "--port", ":5", ":7", ":8"] == places


def test_no_key_is_shown(folder: Path) -> None:
    """A key that stands in the wrong place, or has the wrong type, is in no message; nor are credentials of a URL."""
    file = folder / "unilect.toml"
    file.write_text(
        'api_kye = "sk-hidden"\n[models.a]\nsource = "http://me:sk-hidden@h/v1?api_key=sk-hidden"\napi_key = 53017\n'
        'context = 512\n[models.b]\napi_key = ["sk-hidden"]\n'
    )
    done = CliRunner().invoke(app, ["config", "check", str(file)], env={"UNILECT_KYE": "sk-hidden"})

    assert 2 == done.exit_code
    assert "api_kye" in done.stderr
    assert "sk-hidden" not in done.output
    assert "53017" not in done.output


def test_a_text_is_a_list_of_one(folder: Path) -> None:
    """Wherever a list of texts is expected, one text will do."""
    file = folder / "unilect.toml"
    file.write_text(
        'api_keys = "k"\nallowed_hosts = "h"\nallowed_origins = "*"\nallowed_methods = "GET"\nallowed_headers = "X"\n'
        '[models.a]\naliases = "b"\nstop = "c"\n'
    )
    done = CliRunner().invoke(app, ["config", "check", str(file)])

    assert (0, "OK") == (done.exit_code, done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "env",
    [
        {"UNILECT_PEERS": "1", "UNILECT_FUZZ": "20", "UNILECT_EXTRAS": "transformers"},
        {"UNILECT_TEST_CACHE": "/x", "UNILECT_BENCH_CACHE": "/x"},
        {"UNILECT_TEAM": "k"},
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "UNILECT_SERVICE_HOST": "10.0.0.2",
            "UNILECT_SERVICE_PORT_HTTP": "80",
            "UNILECT_WEB_PORT": "tcp://10.0.0.2:80",
            "UNILECT_WEB_PORT_80_TCP_ADDR": "10.0.0.2",
        },
    ],
)
def test_variables_that_are_left_alone(folder: Path, env: dict[str, str]) -> None:
    """Variables of this repository's scripts, of keys that the file names and of Kubernetes are no mistakes."""
    file = folder / "unilect.toml"
    file.write_text('api_keys = ["$UNILECT_TEAM"]\n' if "UNILECT_TEAM" in env else "")

    assert 0 == CliRunner().invoke(app, ["config", "check", str(file)], env=env).exit_code


def test_variables_of_the_repository() -> None:
    """Every variable that its scripts and tests read begins as one that a server leaves alone."""
    root = Path(__file__).resolve().parents[2]
    texts = [
        file.read_text()
        for folder in ("scripts", "tests", "bench")
        for file in (root / folder).rglob("*")
        if file.is_file() and file.suffix in ("", ".py", ".sh") and file != Path(__file__).resolve()
    ]
    read = re.compile(
        r"(?:environ(?:\.get)?[\[(] *f?\"|\"(?=\w+\" in os\.environ)|\$\{)(UNILECT_[A-Z_]+)"
    )
    names = {name for text in texts for name in read.findall(text)}

    assert {"UNILECT_PEERS", "UNILECT_FUZZ", "UNILECT_EXTRAS"} <= names
    unknown = {name: "" for name in names}
    done = CliRunner().invoke(
        app, ["config", "check", str(root / "unilect.example.toml")], env=unknown
    )
    assert "OK" == done.stdout.splitlines()[-1], done.stderr
