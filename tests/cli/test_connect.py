"""`unilect connect`, before a real server: what it prints, what it writes into the files of clients, and what it refuses to."""

import json
import os
import shlex
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from support.backends.loopback import served
from support.servers.serving import Server, serve
from unilect.cli import main as cli
from unilect.cli.connect import files as files_of_clients
from unilect.web.connect.clients import CLIENTS
from unilect.web.connect.lines import Model
from unilect.web.connect.lines import Server as Described

KEY = "sk-of-this-server"
CONFIG = f"""
api_keys = ["{KEY}"]

[models.demo]
aliases = ["gpt-4o-mini"]

[models.talk]
source = "echo:"
"""
FILES = {
    "codex": ".codex/config.toml",
    "claude": ".claude/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "aider": ".aider.conf.yml",
    "continue": ".continue/config.yaml",
    "qwen": ".qwen/settings.json",
    "pi": ".pi/agent/models.json",
    "zed": ".config/zed/settings.json",
    "vscode": ".config/Code/User/chatLanguageModels.json",
}
#: client -> where its file has the address of the server, and the model
PLACES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "codex": (("model_providers", "unilect", "base_url"), ("model",)),
    "claude": (("env", "ANTHROPIC_BASE_URL"), ("env", "ANTHROPIC_MODEL")),
    "opencode": (("provider", "unilect", "options", "baseURL"), ("model",)),
    "aider": (("openai-api-base",), ("model",)),
    "continue": (("models", 0, "apiBase"), ("models", 0, "model")),
    "qwen": (("modelProviders", "openai", 0, "baseUrl"), ("model", "name")),
    "pi": (("providers", "unilect", "baseUrl"), ("providers", "unilect", "models", 0, "id")),
    "zed": (
        ("language_models", "openai_compatible", "unilect", "api_url"),
        ("language_models", "openai_compatible", "unilect", "available_models", 0, "name"),
    ),
    "vscode": ((0, "models", 0, "url"), (0, "models", 0, "id")),
}


#: Nine levels of ten aliases each, as values and as merge keys: a billion of them.
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with two models and a key."""
    with serve(config=CONFIG) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of the test's own, and no variable of this machine's."""
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "UNILECT_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str, url: str | None = None, key: str | None = KEY) -> Any:
    """What `unilect connect` does with these arguments."""
    line = ["connect", *arguments, *(["--url", url] if url else [])]
    return CliRunner().invoke(cli.app, line + (["--api-key", key] if key else []))


def read(file: Path) -> Any:
    """The data of a client's file, by a parser that is not the tested one."""
    text = file.read_text()
    if file.suffix == ".toml":
        return tomllib.loads(text)
    return json.loads(text) if file.suffix == ".json" else msgspec.yaml.decode(text)


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for step in path:
        data = data[step]
    return data


def files(home: Path) -> dict[str, str]:
    """All files below a folder."""
    return {str(one.relative_to(home)): one.read_text() for one in home.rglob("*") if one.is_file()}


@pytest.mark.parametrize("client", CLIENTS)
def test_prints(client: str, server: Server, home: Path) -> None:
    """The lines of every client have the server's address and its first model, and not its key, and nothing is written."""
    done = run(client, url=server.url)

    assert (0, "") == (done.exit_code, done.stderr)
    assert server.root in done.stdout
    assert "demo" in done.stdout
    assert KEY not in done.stdout
    assert {} == files(home)


@pytest.mark.parametrize(
    ("client", "line"),
    [
        ("codex", "check_for_update_on_startup = false"),
        ("claude", "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"),
        ("opencode", "export OPENCODE_DISABLE_MODELS_FETCH=1"),
    ],
)
def test_quiet_clients(client: str, line: str, server: Server) -> None:
    """The lines with which an agent asks nobody else are printed, and stand on its page."""
    assert line in run(client, url=server.url).stdout.splitlines()
    page = Path(__file__).parents[2] / "docs" / "clients" / CLIENTS[client].page
    assert line in page.read_text().splitlines()


def test_the_window_of_claude_code() -> None:
    """Claude Code is told a context of 100,000 tokens and more; of a shorter one there is a note."""
    for context, told in ((100_000, True), (99_999, False), (None, False)):
        model = Model("m", context)
        lines = CLIENTS["claude"].lines(Described("http://127.0.0.1:1/v1", (model,), False), {})
        [window] = [one.value for file in lines.files for one in file.settings if one.name.endswith("COMPACT_WINDOW")] or [None]  # fmt: skip
        assert (str(context) if told else None) == window
        assert (context == 99_999) == any("million" in note for note in lines.notes)


@pytest.mark.parametrize("client", FILES)
def test_writes(client: str, server: Server, home: Path) -> None:
    """A client's file has its own format, holds the address and the chosen model, and is what was printed."""
    printed = run(client, "--model", "talk", url=server.url).stdout
    done = run(client, "--model", "talk", "--write", url=server.url)

    file = home / FILES[client]
    url, model = (at(read(file), path) for path in PLACES[client])
    assert (0, "") == (done.exit_code, done.stderr)
    assert url.startswith(server.root)
    assert "talk" == model.rpartition("/")[2]
    assert f"{file}: written (" in done.stdout
    assert file.read_text().replace(KEY, "YOUR_KEY") in printed


@pytest.mark.parametrize("client", FILES)
def test_writes_twice(client: str, server: Server, home: Path) -> None:
    """What is there already is not written again."""
    run(client, "--write", url=server.url)
    before = {one: (home / one).stat().st_mtime_ns for one in files(home)}
    done = run(client, "--write", url=server.url)

    assert 0 == done.exit_code
    assert f"{home / FILES[client]}: has these lines already; nothing to write." in done.stdout
    assert before == {one: (home / one).stat().st_mtime_ns for one in files(home)}


@pytest.mark.parametrize("client", FILES)
def test_another_model_later(client: str, server: Server, home: Path) -> None:
    """With --replace a later call changes model and address, and leaves nothing of the first one beside them."""
    run(client, "--model", "demo", "--write", url=server.url)
    done = run(client, "--model", "talk", "--write", "--replace", url=f"{server.root}/")
    replaced = read(home / FILES[client])
    (home / FILES[client]).unlink()
    run(client, "--model", "talk", "--write", url=server.url)
    fresh = read(home / FILES[client])

    assert 0 == done.exit_code
    if client == "codex":  # whose context only the first model tells
        assert 2048 == replaced.pop("model_context_window")
    if client == "continue":  # whose entries keep their places
        fresh["models"].reverse()
    if client == "qwen":  # and so do these
        fresh["modelProviders"]["openai"].reverse()
    assert replaced == fresh


def test_a_comment_on_a_changed_line(server: Server, home: Path) -> None:
    """A line of YAML whose value changes keeps the comment at its end, whatever the value holds."""
    file = home / FILES["aider"]
    for old in ("old # mine", "'it''s # in' # mine", '"a # \\" b" # mine', "# mine"):
        file.write_text(f"model: {old}\ndark-mode: true # so\n")
        done = run("aider", "--model", "talk", "--write", "--replace", url=server.url)

        assert 0 == done.exit_code, done.stderr
        assert file.read_text().startswith("model: openai/talk # mine\ndark-mode: true # so\n")


@pytest.mark.parametrize("inline", [False, True])
def test_a_users_table_within_ours(server: Server, home: Path, inline: bool) -> None:
    """A table that the user has put into ours, in either form of TOML, stays as it is, and what is there already is not written again."""
    run("codex", "--write", url=server.url)
    file = home / FILES["codex"]
    old = file.read_text()
    head = "[model_providers.unilect]\n"
    if inline:
        file.write_text(old.replace(head, head + 'query_params = { "a b" = "1", c = 2 }\n'))
    else:
        file.write_text(
            old + '\n[model_providers.unilect.query_params] # mine\n"a b" = "1"\nc = 2\n'
        )
    again = run("codex", "--write", url=server.url)
    changed = run("codex", "--write", "--replace", url=f"{server.root}/")
    moved = run("codex", "--write", "--replace", url=server.url.replace("127.0.0.1", "localhost"))
    found = read(file)["model_providers"]["unilect"]

    assert [0, 0, 0] == [again.exit_code, changed.exit_code, moved.exit_code], moved.stderr
    assert "nothing to write" in again.stdout
    assert {"a b": "1", "c": 2} == found["query_params"]
    assert "localhost" in found["base_url"]
    assert inline or "query_params] # mine\n" in file.read_text()


def test_contexts(server: Server, home: Path) -> None:
    """Clients are told the context of a model that tells it, with a part of it for the answer; others get a number only where they need one."""
    for client in ("opencode", "zed", "codex"):
        run(client, "--write", url=server.url)

    models = read(home / FILES["opencode"])["provider"]["unilect"]["models"]
    zed = read(home / FILES["zed"])["language_models"]["openai_compatible"]["unilect"]
    assert {"context": 2048, "output": 512} == models["demo"]["limit"]
    assert "limit" not in models["talk"]
    assert {"demo": 2048, "talk": 8192} == {one["name"]: one["max_tokens"] for one in zed["available_models"]}  # fmt: skip
    assert 2048 == read(home / FILES["codex"])["model_context_window"]
    assert "does not tell the context of talk; 8192 is assumed" in run("zed", url=server.url).stdout
    copilot = run("copilot-cli", url=server.url).stdout
    assert "_MAX_PROMPT_TOKENS=1536\nexport COPILOT_PROVIDER_MAX_OUTPUT_TOKENS=512\n" in copilot
    assert "_TOKENS" not in run("copilot-cli", "--model", "talk", url=server.url).stdout


def test_a_context_that_is_too_short(server: Server) -> None:
    """An agent whose first request does not fit into the model's context is told what context it needs."""
    assert "set `context` of the model to at least 32768" in run("claude", url=server.url).stdout
    assert "set `context` of the model to at least 32768" in run("qwen", url=server.url).stdout
    assert "set `context` of the model to at least 16384" in run("codex", url=server.url).stdout


def test_keys(server: Server, home: Path) -> None:
    """The key is written only where a client reads it from nowhere else, into files that only their owner may read."""
    for client in FILES:
        assert 0 == run(client, "--write", url=server.url).exit_code

    holding = {name for name, text in files(home).items() if KEY in text}
    assert {".continue/.env", FILES["vscode"]} == holding
    assert {0o600} == {stat.S_IMODE((home / name).stat().st_mode) for name in holding}
    assert f"UNILECT_API_KEY={KEY}\n" == (home / ".continue/.env").read_text()


def test_a_key_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where UNILECT_API_KEY has the key, no line sets it again."""
    monkeypatch.setenv("UNILECT_API_KEY", KEY)
    done = run("claude", url=server.url, key=None)

    assert 'export ANTHROPIC_AUTH_TOKEN="$UNILECT_API_KEY"' in done.stdout
    assert "export UNILECT_API_KEY" not in done.stdout


def test_a_file_with_a_key_becomes_private(server: Server, home: Path) -> None:
    """A file that gets a key can be read by its owner only, also where all could read it before; others keep their permissions."""
    for client in ("vscode", "codex"):
        file = home / FILES[client]
        file.parent.mkdir(parents=True)
        file.write_text("")
        file.chmod(0o644)
        run(client, "--write", url=server.url)

    assert 0o600 == stat.S_IMODE((home / FILES["vscode"]).stat().st_mode)
    assert 0o644 == stat.S_IMODE((home / FILES["codex"]).stat().st_mode)


@pytest.mark.parametrize(
    ("client", "before"),
    [
        ("codex", '# mine\napproval_policy = "never"  # really\n\n[tools]\nweb_search = true\n'),
        ("codex", '[model_providers.mine]\nname = "mine"\n\n[model_providers.unilect]\nname = "old"\nbase_url = "x"\n\n[history]\npersistence = "none"\n'),
        ("claude", '{"permissions": {"allow": ["Bash(ls:*)"]}, "env": {"MINE": "1"}}'),
        ("claude", '{\n\t"env": {\n\t\t"MINE": "1",  // keep\n\t},\n\t/* and\n\tthis */\n}\n'),
        ("opencode", '{\n  // mine\n  "theme": "system",\n  "provider": {"mine": {"npm": "x"}, "unilect": {"npm": "old"}}\n}\n'),
        ("opencode", '{ /* nothing yet */ }'),
        ("zed", '// Zed settings\n//\n{\n    "theme": "One Dark", // dark\n    "language_models": {\n        "ollama": {"api_url": "http://127.0.0.1:11434"},\n    },\n}\n'),
        ("vscode", '[\n  {"name": "mine", "vendor": "ollama"} // keep\n]\n'),
        ("vscode", '[\n  {"name": "unilect", "vendor": "old", "models": []},\n  {"name": "mine", "vendor": "ollama"}\n]\n'),
        ("vscode", "[]"),
        ("zed", "// nothing yet\n"),
        ("aider", "# mine\nauto-commits: false  # really\nread:\n  - CONVENTIONS.md\n"),
        ("aider", "dark-mode: true"),
        ("continue", "name: Mine\nversion: 2.0.0\nschema: v1\nmodels:\n  - name: GPT  # keep\n    provider: openai\n    model: gpt\n\n# rules\nrules:\n  - Be brief.\n"),
        ("continue", "models:\n- name: unilect demo\n  provider: old\n- name: GPT\n  provider: openai\n  model: gpt\nname: Mine\nversion: 2.0.0\n"),
        ("continue", "name: Mine\nmodels: []\n"),
        ("continue", "models:\n  - mine\n  # keep\nname: Mine\n"),
    ],
)  # fmt: skip
def test_merges(client: str, before: str, server: Server, home: Path) -> None:
    """What a file has of its user stays, comments and order included, and a second call changes nothing."""
    file = home / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    done = run(client, "--write", url=server.url)
    after = file.read_text()
    again = run(client, "--write", url=server.url)

    assert (0, "") == (done.exit_code, done.stderr)
    assert ours(client, file, server)
    assert [] == [word for word in words(before) if word not in after]
    assert "old" not in after
    assert "nothing to write" in again.stdout
    assert after == file.read_text()


def words(text: str) -> list[str]:
    """What a user wrote, but for brackets and what is replaced."""
    found = (one.strip("{}[],") for one in text.split())
    return [one for one in found if "old" not in one and one != '"x"']


def ours(client: str, file: Path, server: Server) -> bool:
    """Whether a file has the server's address, wherever it is among the user's lines."""
    return server.root in file.read_text() and "demo" in file.read_text()


def test_comments_and_order_stay(server: Server, home: Path) -> None:
    """A file of an editor is the same but for the lines that were added."""
    file = home / FILES["zed"]
    file.parent.mkdir(parents=True)
    before = '// Zed\n{\n    "theme": "One Dark", // dark\n    "vim_mode": true // yes\n    // the end\n}\n'
    file.write_text(before)
    run("zed", "--write", url=server.url)
    added = file.read_text().splitlines()

    kept = [line for line in before.replace("true //", "true, //").splitlines() if line != "}"]
    assert kept == added[: len(kept)]
    assert '    "language_models": {' == added[len(kept)]
    assert "}" == added[-1]


def test_comments_of_tables(server: Server, home: Path) -> None:
    """A comment right before a table of TOML stays there, where keys are added above it and where our table before it is replaced."""
    file = home / FILES["codex"]
    file.parent.mkdir(parents=True)
    file.write_text(
        '# mine\na = 1\n\n# theirs\n[model_providers.unilect]\nname = "old"\n\n# history\n# of all\n[history]\nb = 1\n'
    )
    done = run("codex", "--write", url=server.url)
    blocks = file.read_text().split("\n\n")

    assert 0 == done.exit_code
    assert "# mine\na = 1\nmodel = " in blocks[0]
    assert blocks[1].startswith('# theirs\n[model_providers.unilect]\nname = "unilect"\n')
    assert "# history\n# of all\n[history]\nb = 1\n" == blocks[2]


def test_links_in_a_circle(server: Server, home: Path) -> None:
    """A file that is a link to itself is told, and not followed for ever."""
    (home / ".aider.conf.yml").symlink_to(home / ".aider.conf.yml")
    done = run("aider", "--write", url=server.url)

    assert 1 == done.exit_code
    assert "~/.aider.conf.yml: " in done.stderr


@pytest.mark.parametrize(
    ("client", "before", "names"),
    [
        ("codex", 'model = "gpt-5.5"\n', "model."),
        ("claude", '{"env": {"ANTHROPIC_BASE_URL": "https://sk-secret@other", "ANTHROPIC_MODEL": "x"}}', "env.ANTHROPIC_BASE_URL, env.ANTHROPIC_MODEL."),
        ("opencode", '{"model": "other/one"}', "model."),
        ("aider", "model: gpt-5.5  # mine\n", "model."),
    ],
)  # fmt: skip
def test_values_of_the_user(
    client: str, before: str, names: str, server: Server, home: Path
) -> None:
    """A setting with another value is replaced only with --replace; without, it is named, its value is not, and nothing is written."""
    file = home / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    refused = run(client, "--write", url=server.url)
    left = files(home)
    done = run(client, "--write", "--replace", url=server.url)

    assert 1 == refused.exit_code
    assert f"already has other values for {names}" in refused.stderr
    assert "Add --replace" in refused.stderr
    assert "secret" not in refused.output
    assert {FILES[client]: before} == left
    assert 0 == done.exit_code
    assert at(read(file), PLACES[client][0]).startswith(server.root)


@pytest.mark.parametrize(
    ("client", "before", "told"),
    [
        ("codex", "model = \n", "cannot be read as TOML"),
        ("codex", 'model_providers = "none"\n', "model_providers is no object"),
        ("codex", "model_providers = { mine = { name = 'x' } }\n", "its form is unusual"),
        ("claude", '{"env": ', "cannot be read as JSON (expected a value in line 1)"),
        ("claude", '{"env": {"A": "1"} "b": 2}', "cannot be read as JSON (expected `,` or `}` in line 1)"),
        ("claude", '{"env": {}, "env": {}}', "cannot be read as JSON"),
        ("claude", '{"env": {}} x', "cannot be read as JSON (expected the end in line 1)"),
        ("claude", '{"env": [}', "cannot be read as JSON"),
        ("claude", '{"env": "none"}', "env is no object"),
        ("claude", "[" * 100_000, "cannot be read as JSON (expected at most 100 levels in line 1)"),
        ("vscode", "{}", "the file is no list"),
        ("aider", "a: b: c\n", "cannot be read as YAML"),
        ("aider", "- a\n", "the file is no object"),
        ("aider", "{dark-mode: true}\n", "its form is unusual"),
        ("continue", "models: [{name: a, provider: b, model: c}]\n", "its form is unusual"),
        ("continue", "models: &x\n  - name: a\nmore: *x\n", "its form is unusual"),
        ("continue", "models: &x [*x]\n", "its form is unusual"),
        ("aider", LAUGHS, "cannot be read as YAML (its aliases stand for more values than are read)"),
        ("aider", MERGES, "cannot be read as YAML (more merge keys"),
        ("aider", "a: " + "[" * 100_000, "cannot be read as YAML (expected at most 100 levels)"),
        ("aider", "- " * 100_000, "cannot be read as YAML (expected at most 100 levels)"),
        ("codex", "a = " + "[" * 100_000, "nested too deeply"),
        ("codex", "a" + ".a" * 500_000 + " = 1\n", "cannot be read as TOML (a line has more than 1000 dots)"),
        ("claude", '{"a": "' + "x" * 16 * 2**20 + '"}', "has more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_changed(
    client: str, before: str, told: str, server: Server, home: Path
) -> None:
    """A file that is broken or cannot be changed safely is left as it is, and the lines are printed."""
    file = home / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    done = run(client, "--write", url=server.url)

    assert 1 == done.exit_code
    assert f"{told}" in done.stderr
    assert "Nothing was written: add the lines above by hand." in done.stderr
    assert server.root in done.stdout
    assert {FILES[client]: before} == files(home)


def test_bytes_that_are_no_text(server: Server, home: Path) -> None:
    """A file that is no UTF-8, or a folder in its place, is told as that."""
    (home / ".aider.conf.yml").write_bytes(b"model: \xff\n")
    (home / ".codex").write_text("")
    (home / ".claude/settings.json").mkdir(parents=True)

    assert "~/.aider.conf.yml: is no UTF-8." in run("aider", "--write", url=server.url).stderr
    assert "cannot be read (Not a directory)" in run("codex", "--write", url=server.url).stderr
    assert "cannot be read (Is a directory)" in run("claude", "--write", url=server.url).stderr


def test_what_is_no_file(server: Server, home: Path) -> None:
    """A pipe, which may never say anything, and a device, which never ends, are told as such."""
    os.mkfifo(home / ".aider.conf.yml")
    (home / ".codex").mkdir()
    (home / FILES["codex"]).symlink_to("/dev/zero")

    assert "~/.aider.conf.yml: is no file." in run("aider", "--write", url=server.url).stderr
    assert "~/.codex/config.toml: is no file." in run("codex", "--write", url=server.url).stderr


def test_a_link_to_nothing(server: Server, home: Path) -> None:
    """A link to a file that is not there makes the file, and stays a link."""
    (home / ".aider.conf.yml").symlink_to(home / "aider.yml")

    assert 0 == run("aider", "--write", url=server.url).exit_code
    assert (home / ".aider.conf.yml").is_symlink()
    assert (home / "aider.yml").read_text().startswith("model: ")


def test_a_read_only_file(server: Server, home: Path) -> None:
    """A file that its owner has made read-only stays as it is, though another could take its place."""
    file = home / FILES["codex"]
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    file.chmod(0o444)
    done = run("codex", "--write", url=server.url)

    assert (1, True) == (done.exit_code, "is read-only. Nothing was written" in done.stderr)
    assert {FILES["codex"]: "# mine\n"} == files(home)
    assert 0o444 == stat.S_IMODE(file.stat().st_mode)


def test_the_file_of_another_user(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file keeps its user and group, and is left as it is where they cannot be kept."""
    file, given = home / FILES["codex"], list[tuple[int, int]]()
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    monkeypatch.setattr(files_of_clients, "_owner", lambda descriptor: (4711, 4712))
    monkeypatch.setattr(os, "fchown", lambda descriptor, *owner: given.append(owner))
    done = run("codex", "--write", url=server.url)

    def forbidden(*args: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", forbidden)
    before = files(home)
    refused = run("codex", "--write", "--model", "talk", "--replace", url=server.url)

    status = file.stat()
    assert (0, [(status.st_uid, status.st_gid)]) == (done.exit_code, given)
    assert (1, True) == (refused.exit_code, "(Operation not permitted)" in refused.stderr)
    assert before == files(home)


def test_a_long_line_of_variables(server: Server, home: Path) -> None:
    """A file of variables with millions of blanks is read in the time that it takes to read them."""
    (home / ".continue").mkdir()
    (home / ".continue/.env").write_text("MINE=a" + " " * 1_000_000 + "b\n")
    done = run("continue", "--write", url=server.url)

    assert 0 == done.exit_code
    assert f"UNILECT_API_KEY={KEY}\n" in (home / ".continue/.env").read_text()


def test_a_failing_disk(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be replaced is as it was, and nothing is left beside it."""
    file = home / FILES["codex"]
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")

    def full(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = run("codex", "--write", url=server.url)

    assert 1 == done.exit_code
    assert "cannot be written (No space left on device)" in done.stderr
    assert {FILES["codex"]: "# mine\n"} == files(home)


def test_a_reader_sees_all_or_nothing(server: Server, home: Path) -> None:
    """The new file takes the place of the old one at once; whoever has the old one open goes on reading it."""
    file = home / FILES["codex"]
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    with file.open() as old:
        run("codex", "--write", url=server.url)

        assert "# mine\n" == old.read()
    assert [FILES["codex"]] == list(files(home))
    assert file.read_text().startswith("# mine\n")


def test_links_stay_links(server: Server, home: Path) -> None:
    """A file that is a link into somebody's dotfiles stays one, and the file behind it is changed."""
    behind = home / "dotfiles/codex.toml"
    behind.parent.mkdir()
    behind.write_text("# mine\n")
    (home / ".codex").mkdir()
    (home / FILES["codex"]).symlink_to(behind)
    run("codex", "--write", url=server.url)

    assert (home / FILES["codex"]).is_symlink()
    assert "unilect" == read(behind)["model_provider"]


def test_folders_of_the_environment(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that move a client's files move what is written."""
    monkeypatch.setenv("CODEX_HOME", str(home / "a"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "b"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "c"))
    for client in ("codex", "claude", "opencode"):
        run(client, "--write", url=server.url)

    assert {"a/config.toml", "b/settings.json", "c/opencode/opencode.json"} == set(files(home))


def test_other_names(server: Server) -> None:
    """A model may be named by an alias, and a client in any spelling."""
    done = run("Claude-Code", "--model", "gpt-4o-mini", url=server.url)

    assert 0 == done.exit_code
    assert '"ANTHROPIC_MODEL": "gpt-4o-mini"' in done.stdout
    assert run("vs code", url=server.url).stdout == run("vscode", url=server.url).stdout


def test_the_list_of_clients() -> None:
    """Without a client all are listed."""
    done = run(key=None)

    assert 0 == done.exit_code
    assert [name for name in CLIENTS if f"  {name} " not in done.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "key", "told"),
    [
        ("codx", KEY, "codx: unknown client. Is `codex` meant? Clients: codex, claude,"),
        ("claud", KEY, "claud: unknown client. Is `claude` meant?"),
        ("emacs", KEY, "emacs: unknown client. Clients: codex,"),
        ("codex", None, "The server requires a key. Give it with --api-key, or in UNILECT_API_KEY."),
        ("codex", "sk-wrong", "The server rejects this key."),
        ("codex --model dmo", KEY, "--model dmo: the server has no such model. Is `demo` meant? Its models: demo, talk."),
        ("codex --model zzz", KEY, "--model zzz: the server has no such model. Its models: demo, talk."),
        ("codex --replace", KEY, "--replace: works with --write only."),
        ("homeassistant --write", KEY, "--write: Home Assistant has no configuration file for this."),
        ("codex --url http://127.0.0.1:1", KEY, "http://127.0.0.1:1: The model's server cannot be reached: connection refused by 127.0.0.1:1. Start it, or check the address."),
        ("codex --url localhost:8000", KEY, "--url localhost:8000: expected a URL such as http://127.0.0.1:8000/v1."),
        ("codex --url http://me:pw@127.0.0.1:1", KEY, "http://***@127.0.0.1:1: the URL holds credentials"),
    ],
)  # fmt: skip
def test_mistakes(arguments: str, key: str | None, told: str, server: Server, home: Path) -> None:
    """What cannot be done is told in one line, with what to do, and nothing is written."""
    url = None if "--url" in arguments else server.url
    done = run(*arguments.split(), url=url, key=key)

    assert 1 == done.exit_code
    assert told in done.stderr
    assert 1 == done.stderr.count("\n")
    assert {} == files(home)


@contextmanager
def other_server(cards: list[dict[str, Any]]) -> Iterator[str]:
    """A server that is none of ours, with these models."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": cards})

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response(next(card for card in cards if card["id"] == name))

    with served(web.get("/v1/models", models), web.get("/v1/models/{name:.+}", model)) as port:
        yield f"http://127.0.0.1:{port}"


def test_other_servers(home: Path) -> None:
    """Of a server that is none of ours the models are used, with vLLM's context, and without a key none is written."""
    with other_server([{"id": "qwen/3", "max_model_len": 4096}]) as url:
        done = run("opencode", "--write", url=url, key=None)
        claude = run("claude", url=url, key=None)

    provider = read(home / FILES["opencode"])["provider"]["unilect"]
    assert 0 == done.exit_code
    assert "none" == provider["options"]["apiKey"]
    assert {"context": 4096, "output": 1024} == provider["models"]["qwen/3"]["limit"]
    assert "export ANTHROPIC_AUTH_TOKEN=none\n" in claude.stdout


def test_models_that_do_not_chat() -> None:
    """A model that only embeds or ranks is no client's model, and is refused where it is named."""
    embeds = {"id": "embeds", "unilect": {"chat": False, "context": 512}}
    with other_server([embeds, {"id": "talks", "unilect": {"context": 99999}}]) as url:
        done = run("codex", url=url)
        named = run("codex", "--model", "embeds", url=url)
    with other_server([embeds]) as url:
        none = run("codex", url=url)
    with other_server([]) as url:
        empty = run("codex", url=url)

    assert 'model = "talks"' in done.stdout
    assert "embeds" not in done.stdout
    assert "--model embeds: this model does not chat. Name another one." in named.stderr
    assert "The server has no models that chat." in none.stderr
    assert "The server has no models that chat." in empty.stderr


def test_many_models(home: Path) -> None:
    """Of many models the first twenty are taken, and the chosen one, and how many are left is told."""
    with other_server([{"id": f"m{number}"} for number in range(30)]) as url:
        done = run("zed", "--model", "m29", "--write", url=url)

    zed = read(home / FILES["zed"])["language_models"]["openai_compatible"]["unilect"]
    names = [one["name"] for one in zed["available_models"]]
    assert ["m29", *(f"m{number}" for number in range(19))] == names
    assert "The server has 10 more models; --model NAME takes one of them." in done.stdout


def test_names_that_need_quotes(home: Path) -> None:
    """A model of any name is in every file as it is, and in no shell line as code."""
    name = 'it\'s "a: b" #1 $(x) {y}\\'
    with other_server([{"id": name, "max_model_len": 99999}]) as url:
        for client, (_, path) in PLACES.items():
            done = run(client, "--write", url=url)

            assert (0, "") == (done.exit_code, done.stderr)
            assert at(read(home / FILES[client]), path).endswith(name)
        shell = run("openwebui", url=url).stdout
        program = run("langchain", url=url).stdout

    assert f"export DEFAULT_MODELS={shlex.quote(name)}\n" in shell
    assert f"model={json.dumps(name)}," in program
