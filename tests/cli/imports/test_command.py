"""command.py: files of other programs become configurations that can be served, whatever is in them."""

import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from unilect.cli.imports.command import KINDS, convert, import_config
from unilect.cli.main import app
from unilect.config import load as config_load
from unilect.core.errors import ConfigError

FILES = Path(__file__).parent / "files"


class Environment(dict[str, str]):
    """An environment that has every key that a file names."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a key for a name that a test's files use."""
        return "a-key" if name.endswith("_KEY") and not name.startswith("UNILECT") else default


def load(text: str, tmp_path: Path) -> dict[str, Any]:
    """The options of a configuration that is right."""
    file = tmp_path / "unilect.toml"
    file.write_text(text)
    config_load.load(file, environment=Environment())
    return tomllib.loads(text)


@pytest.mark.parametrize("file", sorted(FILES.iterdir()), ids=lambda file: file.name)
def test_files_become_configurations(file: Path, tmp_path: Path) -> None:
    """Each file is told without `--from`, and is a configuration with models; keys stay references."""
    output = tmp_path / "made.toml"
    import_config(file, None, output)
    loaded = load(output.read_text(), tmp_path)

    assert loaded["models"]
    assert "secret" not in output.read_text()


def test_the_command(tmp_path: Path) -> None:
    """It prints the configuration, writes no file that is there, and names its kinds."""
    runner, file = CliRunner(), str(FILES / "litellm_local.yaml")
    printed = runner.invoke(app, ["config", "import", file])
    there = tmp_path / "there.toml"
    there.write_text("")
    refused = runner.invoke(app, ["config", "import", file, "--output", str(there)])
    wrong = runner.invoke(app, ["config", "import", file, "--from", "ollama"])

    assert 'model = "llama3.2"' in printed.stdout
    assert (2, "") == (refused.exit_code, there.read_text())
    assert "is there already" in refused.stderr
    assert "line 1: 'model_list:' is no instruction of a Modelfile" in wrong.stderr


def test_a_made_file_is_its_owners(tmp_path: Path) -> None:
    """It is readable by its owner only, as any option may hold a key; a name of a file with line breaks is a comment."""
    file, output = tmp_path / 'a\nhost = "0.0.0.0"', tmp_path / "made.toml"
    file.write_text("models: {a: {cmd: 'vllm serve --port ${PORT} --api-key sk-own'}}")
    import_config(file, None, output)
    options = tomllib.loads(output.read_text())

    assert 0o600 == output.stat().st_mode & 0o777
    assert (["models"], "sk-own") == ([*options], options["models"]["a"]["command"][-1])


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n"
    for before, after in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (BOMB.encode(), "litellm", "more values than are read"),
        (b"[" * 10_000, "llama-swap", "at most 100 levels"),
        (b"models: {a: b", "llama-swap", "no YAML"),
        (b"models: {a: {filters: {setParams: &a {b: *a}}}}", None, "contains itself"),
        (b'FROM x\nSYSTEM "y', None, 'line 2: its " is not closed'),
        (b"- 1\n- 2\n", "litellm", "no mapping"),
        (b"\xff\xfe", None, "no UTF-8"),
        (b"x" * 1_048_577, None, "more than 1048576 bytes"),
        (b"hello", None, "of no known kind. Say which with --from: llama-swap"),
        (b"", None, "of no known kind"),
        (b"llama-server -m 'x.gguf", None, "as a shell would"),
        (b"make all # llama-server\n", None, "no command line of llama-server"),
        (b"llama-server " + b"x " * 40_000, None, "more than 65536 characters"),
        (b"[a]\nhello", "llama-server", "no command line"),
        (b"FROM x\nWHAT y", None, "line 2: 'WHAT' is no instruction"),
        (b'FROM x\nSYSTEM """y', None, 'line 2: its """ is not closed'),
        (b"SYSTEM y", "ollama", "it has no FROM"),
        (json.dumps({"peers": {"p": {"proxy": "http://h", "models": [*map(str, range(501))]}}}).encode(), None, "more than 500 models"),
        (json.dumps({"models": {}, "macros": {"a": "x" * 9000} | {f"m{n}": "${a}" for n in range(600)}}).encode(), None, "they make more than"),
    ],
)  # fmt: skip
def test_what_is_not_read(content: bytes, kind: str | None, words: str, tmp_path: Path) -> None:
    """A file that is not as it should be, or is made to be too much, is refused with a reason."""
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{file}.*") as raised:
        import_config(file, kind, None)

    assert words in str(raised.value)


WORST = 300_000
UNITS = ("$", "${", "${a", "#\n", "\\\n", "'", ";", "a=", "<", "[", "\n", '"""', "FROM ", "-", " ", "\u3000")  # fmt: skip


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_take_no_long_time(kind: str) -> None:
    """Each unit, 300 kB of it, is refused or read in a moment."""
    before = ("", "FROM ", "llama-server -m ", 'models: {a: {cmd: "')
    for unit, start in itertools.product(UNITS, before):
        text = f"{start}{unit * (WORST // len(unit))}"
        try:
            convert(text, kind, FILES / "x").to_toml("x")
        except ConfigError:
            continue


NAMES = [
    "models",
    "cmd",
    "proxy",
    "aliases",
    "ttl",
    "filters",
    "setParams",
    "setParamsByID",
    "macros",
    "hooks",
    "on_startup",
    "preload",
    "peers",
    "apiKeys",
    "groups",
    "env",
    "id",
    "model_list",
    "model_name",
    "litellm_params",
    "model",
    "api_base",
    "api_key",
    "rpm",
    "timeout",
    "temperature",
    "model_info",
    "input_cost_per_token",
    "fallbacks",
    "litellm_settings",
    "router_settings",
    "model_group_alias",
    "general_settings",
    "master_key",
    "drop_params",
    "request_timeout",
    "limits",
    "unlisted",
]
TEXTS = st.sampled_from([*NAMES, "a", "openai/x", "*", "llama-server -m a.gguf", "${a} ${PORT}", "http://h", "$K_KEY", "ü\n\x00#\x7f", "\ud800", "1e3"])  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(data=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5), kind=st.sampled_from(["llama-swap", "litellm"]))  # fmt: skip
def test_whatever_a_file_says(
    data: dict[str, Any], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Values of any types anywhere make a configuration that is right, or an error of the file."""
    text = json.dumps(data).replace("NaN", ".nan").replace("Infinity", ".inf")
    try:
        made = convert(text, kind, FILES / "x").to_toml("x")
    except ConfigError:
        return
    load(made, tmp_path_factory.mktemp("made"))
