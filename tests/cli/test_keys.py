"""Tests of unilect.cli.keys: real commands, and real servers that see what they change."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from support.servers import commands
from support.servers.postgresql import POSTGRESQL
from support.servers.serving import Server, serve
from unilect.cli._keys import create, delete, list_keys, revoke, seconds
from unilect.cli._screen import or_exit
from unilect.cli.main import app
from unilect.config.store import StoreConfig, may_have_keys
from unilect.core.errors import ConfigError

SECRET = re.compile(r"ul_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")
CONFIG = """
api_keys = ["sk-of-the-file"]
[store]
url = "{url}"
[models.a]
source = "echo:"
[models.b]
source = "echo:"
"""


class Keys:
    """The commands for the keys of one store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self.config = url, CONFIG.format(url=url)
        self.notes = ""  # what the last command that succeeded has said on stderr
        self.file = folder / "unilect.toml"
        self.file.write_text(self.config)

    def run(self, *args: str, code: int = 0, group: str = "keys") -> str:
        """What a command prints: on stdout, or on stderr where it fails."""
        done = commands.run(group, *args, "--config", self.file, code=code)
        self.notes = done.stderr
        return (done.stderr if code else done.stdout).strip()

    def stored(self) -> bytes:
        """All that the store has of keys, as it stands there."""
        if self.url.startswith("sqlite"):
            return b"".join(file.read_bytes() for file in self.file.parent.iterdir())
        import psycopg

        with psycopg.connect(self.url) as connection:
            asked = (b"SELECT keys::text FROM keys", b"SELECT key_secrets::text FROM key_secrets")
            rows = [row for one in asked for row in connection.execute(one).fetchall()]
        return "".join(text for (text,) in rows).encode()


@pytest.fixture(scope="module", params=["sqlite", POSTGRESQL])
def keys(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """The keys of a new store, of each kind."""
    folder = tmp_path_factory.mktemp("keys")
    if request.param == "sqlite":
        return Keys(folder, f"sqlite:///{folder / 'unilect.db'}")
    return Keys(folder, request.getfixturevalue("server_of_postgresql").new_database())


@pytest.fixture(scope="module")
def keys_of_a_file(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """The keys of a new file, for what is told before the store is asked."""
    folder = tmp_path_factory.mktemp("file")
    return Keys(folder, f"sqlite:///{folder / 'unilect.db'}")


@pytest.fixture(scope="module")
def servers(keys: Keys) -> Iterator[tuple[Server, Server]]:
    """Two servers with that store."""
    with serve(config=keys.config) as first, serve(config=keys.config) as second:
        yield first, second


def ask(server: Server, key: str | None, path: str = "/chat/completions", **body: Any) -> Any:
    """The status of a request with a key, and the answer's body."""
    sent = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]} | body
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    data = None if path.startswith("/models") else json.dumps(sent).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(server.url + path, data, headers), timeout=30
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def seen(holds: Callable[[], bool]) -> float:
    """Seconds until something holds."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() < start + 20
        time.sleep(0.02)
    return time.monotonic() - start


def test_a_life(keys: Keys, servers: tuple[Server, Server]) -> None:
    """A key is printed alone, and every running server lets it in; rotated, both secrets are the key; revoked, none is."""
    assert [200, 200] == [ask(one, "sk-of-the-file")[0] for one in servers]
    secret = keys.run("create", "ann", "--owner", "lab")
    assert SECRET.fullmatch(secret)
    assert [200, 200] == [ask(one, secret)[0] for one in servers]
    mistyped = secret[:-1] + ("x" if secret[-1] != "x" else "y")
    for key, why in (
        (None, "No API key"),
        (mistyped, "typing error"),
        ("sk-other", "does not know"),
    ):
        status, told = ask(servers[0], key)
        assert 401 == status
        assert why in told["error"]["message"]

    new = keys.run("rotate", "ann", "--overlap", "1h")
    assert SECRET.fullmatch(new)
    assert new != secret
    assert [200] * 4 == [ask(one, key)[0] for one in servers for key in (secret, new)]

    assert re.fullmatch(r"ann \(key_\w{8}\) is revoked\.", keys.run("revoke", "ann"))
    seen(lambda: [401] * 4 == [ask(one, key)[0] for one in servers for key in (secret, new)])
    assert "revoked" in ask(servers[0], new)[1]["error"]["message"]
    assert [200, 200] == [ask(one, "sk-of-the-file")[0] for one in servers]


def test_models(keys: Keys, servers: tuple[Server, Server]) -> None:
    """A key for some models sees those, and others are refused with 403, in the form of the API that was called."""
    secret = keys.run("create", "bob", "--models", "b")
    server = servers[0]
    assert 200 == ask(server, secret, model="b")[0]
    status, told = ask(server, secret, model="a")
    assert (403, "permission_denied", "model") == (
        status,
        told["error"]["code"],
        told["error"]["param"],
    )
    assert "may not use `a`; it may use b." in told["error"]["message"]
    assert ["b"] == [one["id"] for one in ask(server, secret, "/models")[1]["data"]]
    assert [200, 403] == [ask(server, secret, f"/models/{name}")[0] for name in "ba"]
    status, told = ask(server, secret, "/messages", max_tokens=5)
    assert (403, "permission_error") == (status, told["error"]["type"])
    assert ["a", "b"] == [one["id"] for one in ask(server, "sk-of-the-file", "/models")[1]["data"]]


def test_list(keys: Keys) -> None:
    """Keys are listed for people and for programs, with no secret in it, and none is in the file."""
    made = json.loads(keys.run("create", "eve", "--expires", "30d", "--models", "a,b", "--json"))
    assert SECRET.fullmatch(made["key"])
    listed = {one["name"]: one for one in json.loads(keys.run("list", "--json"))}
    expected = {name: value for name, value in made.items() if name != "key"}
    assert expected == listed["eve"]
    assert (["a", "b"], "active", "") == (made["models"], made["state"], made["owner"])
    lines = keys.run("list").splitlines()
    assert lines[0].split() == [
        "NAME",
        "ID",
        "OWNER",
        "MODELS",
        "LIMITS",
        "CREATED",
        "EXPIRES",
        "STATE",
    ]
    assert any(line.startswith("eve ") and line.endswith(" active") for line in lines)
    files = keys.stored()
    assert made["key"][3:11].encode() in files  # its public part
    assert made["key"].encode() not in files
    assert made["key"][12:55].encode() not in files


def test_limits(keys: Keys, servers: tuple[Server, Server]) -> None:
    """A key has the limits that it was made with, on every server; they are listed, for people and for programs."""
    limits = ("--limit", "tokens_per_day=1000", "--limit", "money_per_day=1.5")
    made = json.loads(
        keys.run("create", "lim", *limits, "--limit", "requests_per_minute=1", "--json")
    )
    expected = {"tokens_per_day": 1000, "money_per_day": 1.5, "requests_per_minute": 1}
    assert expected == made["limits"]
    (line,) = [line for line in keys.run("list").splitlines() if line.startswith("lim ")]
    assert "tokens_per_day=1000,money_per_day=1.5,requests_per_minute=1" in line
    server = servers[0]
    assert 200 == ask(server, made["key"])[0]
    status, told = ask(server, made["key"])
    assert (429, "rate_limit_exceeded") == (status, told["error"]["code"])


def test_other_limits(keys: Keys, servers: tuple[Server, Server]) -> None:
    """Limits of a key are changed, and every running server goes by them within a second, with what the key has used before."""
    secret = keys.run("create", "ann", "--limit", "parallel=3")
    seen(lambda: [200, 200] == [ask(one, secret)[0] for one in servers])
    told = keys.run("limit", "ann", "--limit", "tokens_per_day=5", "--limit", "parallel=2")
    assert told.endswith(" has parallel=2,tokens_per_day=5.")
    changed = time.monotonic()

    def refused(server: Server, why: str) -> bool:
        return why in ask(server, secret)[1].get("error", {}).get("message", "")

    seen(lambda: all(refused(one, "tokens_per_day of this API key is 5") for one in servers))
    assert time.monotonic() - changed < 2  # one, and one for a machine that does other things too
    made = json.loads(keys.run("limit", "ann", "--none", "tokens_per_day", "--json"))
    assert {"parallel": 2} == made["limits"]
    seen(lambda: [200, 200] == [ask(one, secret)[0] for one in servers])
    assert keys.run("limit", "ann", "--none", "parallel").endswith(" has no limits of its own.")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["create", "a b"], "NAME: 'a b' is not a word; expected 1 to 100 visible characters"),
        (["create", "a", "--owner", "b\u202e"], "--owner: 'b\\u202e' is not a word; expected 1 to"),
        (["create", "x", "--expires", "soon"], "--expires: 'soon' is not a length of time"),
        (["create", "x", "--expires", "0s"], "--expires: the key would have ended"),
        (
            ["create", "x", "--limit", "tokens_per_day"],
            "--limit: 'tokens_per_day' is not NAME=NUMBER; one of requests_per_m",
        ),
        (
            ["create", "x", "--limit", "token_per_day=5"],
            "--limit: 'token_per_day=5' is not NAME=NUMBER; did you mean `tokens_per_day`?",
        ),
        (
            ["create", "x", "--limit", "parallel=0.5"],
            "--limit: parallel: expected an integer from 1 to 100000, found 0.5.",
        ),
        (
            ["create", "x", "--limit", "parallel=all"],
            '--limit: parallel: expected an integer from 1 to 100000, found "all".',
        ),
        (
            ["create", "x", "--limit", "parallel=1", "--limit", "parallel = 2"],
            "--limit: parallel is given twice.",
        ),
        (
            ["create", "x", "--limit", "money_per_day=0"],
            "--limit: money_per_day: expected a number above 0",
        ),
        (
            ["create", "x", "--limit", "money_per_day=nan"],
            "--limit: money_per_day: expected a number above 0",
        ),
        (["create", "key_3GqS0bZx"], "NAME: key_3GqS0bZx has the form of a key's id"),
        (["create", "x", "--models", ","], "--models: expected the names of models"),
        (["limit", "nobody"], "--limit: nothing to change; give --limit NAME=NUMBER, or --none"),
        (["limit", "nobody", "--none", "parallel"], "nobody: there is no key of this name"),
        (["limit", "x", "--none", "tokens"], "--none: 'tokens' is no limit; "),
        (
            ["limit", "x", "--limit", "parallel=2", "--none", "parallel"],
            "--none: parallel is given with --limit, too",
        ),
        (["revoke", "nobody"], "nobody: there is no key of this name. The keys are: "),
        (["delete", "nobody", "--yes"], "nobody: there is no key of this name. The keys are: "),
        (["delete", "nobody"], "--yes: is needed where stdin is no terminal"),
        (["rotate", "nobody"], "nobody: there is no key of this name"),
        (["rotate", "nobody", "--overlap", "-1s"], "--overlap: '-1s' is not a length of time"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_mistakes(keys_of_a_file: Keys, args: list[str], told: str) -> None:
    """A mistake is one line on stderr, and nothing on stdout; of a key that is not there it says in which store."""
    said = keys_of_a_file.run(*args, code=1)
    assert said.startswith(f"unilect: {told}")
    assert 1 == len(said.splitlines())
    path = keys_of_a_file.url.removeprefix("sqlite:///")
    assert said.endswith(f"The store is {path}.") == ("no key of this name" in said)


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["--requests-per-minute", "2"], "requests_per_minute=2"),
        (["--requests-per-minute=2"], "requests_per_minute=2"),
        (["--tokens-per-day"], "tokens_per_day=NUMBER"),
    ],
)
@pytest.mark.parametrize("command", ["create", "limit"])
def test_a_limit_as_an_option(command: str, args: list[str], option: str) -> None:
    """A limit that is written as an option is refused with the words that set it."""
    done = CliRunner().invoke(app, ["keys", command, "ann", *args])
    assert 2 == done.exit_code
    assert f"No such option '{args[0].partition('=')[0]}'. Use --limit {option}." in done.output


@pytest.mark.parametrize(
    ("more", "is_told"), [("", True), ("[models.c]\nsource = 'http://127.0.0.1:1/v1'\nmodel = '*'\n", False)]
)  # fmt: skip
def test_a_model_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, is_told: bool
) -> None:
    """A key for a model that the configuration does not have is made, since the model may come, and a warning says so before it."""
    made = Keys(tmp_path, f"sqlite:///{tmp_path / 'unilect.db'}")
    made.file.write_text(made.config + more)
    create(made.file, False, name="x", models="a, codr")

    shown = capsys.readouterr()
    assert SECRET.fullmatch(shown.out.strip())
    told = "warning: --models: no model of this configuration is called `codr`; it has a, b."
    assert is_told == shown.err.startswith(told)
    assert is_told == ("warning" in shown.err)


def test_which_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A command says which store it has changed, and how another is named where none was."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    create(None, False, name="x")
    told = capsys.readouterr().err
    assert (
        f"is in the store {tmp_path}/unilect/unilect.db. --config FILE names the store of" in told
    )
    assert "No running server of this user was found with this store." in told
    named = Keys(tmp_path, f"sqlite:///{tmp_path / 'other.db'}")
    create(named.file, True, name="x")
    told = capsys.readouterr().err
    assert f"is in the store {tmp_path}/other.db.\n" in told
    assert "--config" not in told


@pytest.mark.parametrize(
    ("variables", "url", "why"),
    [
        ({"XDG_DATA_HOME": "/proc/none"}, None, "/proc/none: cannot be written"),
        ({"XDG_DATA_HOME": "", "HOME": "/proc/none"}, None, "cannot be written"),
        ({"XDG_DATA_HOME": "", "HOME": ""}, None, "there is neither HOME nor XDG_DATA_HOME. Name the file"),
        ({}, "sqlite://", "the store is in memory, and gone when this command ends: `url` in [store]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [("keys", "create", "zoe"), ("keys", "list"), ("usage",)])
def test_no_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: tuple[str, ...],
    variables: dict[str, str],
    url: str | None,
    why: str,
) -> None:
    """Where nothing can be stored no key is printed, and the command fails and says once why, and how a store is named."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "unilect.toml"
    file.write_text("" if url is None else f"[store]\nurl = '{url}'\n")
    of_file = ["--config", str(file)] if url else []
    done = CliRunner().invoke(app, [*command, *of_file])
    assert (1, "") == (done.exit_code, done.stdout)
    assert why in done.stderr
    assert not caplog.records
    assert "--config" in done.stderr or command == ("usage",)


def test_a_deleted_key(keys: Keys, servers: tuple[Server, Server]) -> None:
    """A deleted key lets nobody in on any running server, and is not listed any more; the command says what stays."""
    secret = keys.run("create", "gone")
    id = f"key_{secret[3:11]}"
    seen(lambda: [200, 200] == [ask(one, secret)[0] for one in servers])
    told = keys.run("delete", "gone", "--yes")
    assert told.startswith(f"gone ({id}) is deleted from the store ")
    assert f"What it used stays in the ledger under {id};" in keys.notes
    seen(lambda: [401, 401] == [ask(one, secret)[0] for one in servers])
    assert "gone" not in keys.run("list")
    assert secret[3:11].encode() not in keys.stored() or keys.url.startswith("sqlite")


def test_the_last_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who deletes the last key, also a revoked one, is told that servers that start from now on ask for none."""
    made = Keys(tmp_path, f"sqlite:///{tmp_path / 'unilect.db'}")
    for name in ("ann", "bob"):
        create(made.file, False, name=name)
        revoke(made.file, name, False)
    capsys.readouterr()
    for name in ("ann", "bob"):
        assert may_have_keys(StoreConfig(url=made.url), {})
        delete(made.file, name, True, False)
    told = capsys.readouterr().err
    last = "It was the last key: servers that start with this store from now on ask for none."
    assert 1 == told.count(last)
    assert told.index(last) > told.rindex("What it used stays in the ledger under key_")
    assert not may_have_keys(StoreConfig(url=made.url), {})
    delete_again = CliRunner().invoke(
        app, ["keys", "delete", "bob", "--yes", "--config", str(made.file)]
    )
    assert 1 == delete_again.exit_code


def test_asked_before_a_key_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """At a terminal a key is deleted once a person has said yes, and `no` leaves it."""
    made = Keys(tmp_path, f"sqlite:///{tmp_path / 'unilect.db'}")
    create(made.file, False, name="ann")
    monkeypatch.setattr("unilect.cli._keys.sys.stdin.isatty", lambda: True, raising=False)
    for answer, left in (("n", 1), ("y", 0)):
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda text, answer=answer: answer)
        with suppress(click.Abort):
            delete(made.file, "ann", False, False)
        capsys.readouterr()
        list_keys(made.file, True)
        assert left == len(json.loads(capsys.readouterr().out))


def test_names_that_a_terminal_would_obey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Names that stand in a store all the same are listed with what does not show escaped."""
    made = Keys(tmp_path, f"sqlite:///{tmp_path / 'unilect.db'}")
    create(made.file, False, name="ann", owner="lab")
    with closing(sqlite3.connect(tmp_path / "unilect.db")) as file:
        file.execute("UPDATE keys SET name = ?, owner = ?", ("a\x1b[2J\u202e", "b\U000e0041"))
        file.commit()
    capsys.readouterr()
    list_keys(made.file, False)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert r"a\x1b[2J\u202e" in shown
    with pytest.raises(SystemExit):
        or_exit(lambda: revoke(made.file, "nobody", False))
    assert capsys.readouterr().err.replace("\n", "").isprintable()


def test_twice(keys: Keys) -> None:
    """A name is given once."""
    keys.run("create", "twice")
    told = keys.run("create", "twice", code=1)
    assert "NAME: a key named twice exists" in told


def test_turned_off(keys: Keys, tmp_path: Path) -> None:
    """With `keys = false` a server does not know the keys of its store, and the commands say so."""
    secret = keys.run("create", "off")
    off = Keys(tmp_path, "sqlite://")
    off.config = keys.config.replace("[store]", "[store]\nkeys = false")
    off.file.write_text(off.config)
    assert "turned off" in off.run("list", code=1)
    with serve(config=off.config) as server:
        assert [401, 200] == [ask(server, key)[0] for key in (secret, "sk-of-the-file")]


def test_the_store(keys: Keys, tmp_path: Path) -> None:
    """The store of the keys is checked, is up to date, and is copied; a copy has the keys, and is not written over."""
    keys.run("create", "kept")
    count = len(json.loads(keys.run("list", "--json")))
    told = json.loads(keys.run("check", "--json", group="store"))
    assert ([], count) == (told["problems"], told["counts"]["API keys"])
    sound = "sound" if keys.url.startswith("sqlite") else "readable"
    assert sound == keys.run("check", group="store").splitlines()[-1]
    assert keys.run("migrate", group="store").startswith("The tables are up to date")
    copy = tmp_path / "copy.db"
    if sound == "readable":
        assert "pg_dump" in keys.run("backup", str(copy), group="store", code=1)
        return
    assert f"{copy}: " in keys.run("backup", str(copy), group="store")
    assert "exists already" in keys.run("backup", str(copy), group="store", code=1)
    restored = Keys(tmp_path, f"sqlite:///{copy}")
    assert count == len(json.loads(restored.run("list", "--json")))


@pytest.mark.parametrize(
    ("text", "expected"), [("30d", 2_592_000), ("1.5h", 5400), ("0s", 0), (" 2W ", 1_209_600)]
)
def test_seconds(text: str, expected: float) -> None:
    """A length of time is a number with its unit."""
    assert expected == seconds(text, "x")


@pytest.mark.parametrize("text", ["", "5", "d", "1y", "1e9d", "9999999999s", "-1d", "1d2h", "٣d"])
def test_no_seconds(text: str) -> None:
    """Anything else is refused with its name."""
    with pytest.raises(ConfigError, match=r"^x: "):
        seconds(text, "x")


@pytest.mark.heavy(but=1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_printed(keys_of_a_file: Keys, unbuffered: str) -> None:
    """Where stdout has no room a command ends with one sentence; of a new secret it says what is to be done."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNILECT_")}
    for words, told in (
        (["create", f"full{unbuffered}"], "has a new secret, which could not be printed (No space left on device)"),
        (["list"], "stdout cannot be written (No space left on device)."),
    ):  # fmt: skip
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "unilect", "keys", *words, "--config", str(keys_of_a_file.file)],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                env=environment | {"PYTHONUNBUFFERED": unbuffered},
            )  # fmt: skip
        assert (1, 1) == (done.returncode, len(done.stderr.splitlines())), done
        assert told in done.stderr


@pytest.mark.heavy
def test_a_closed_stdout(keys_of_a_file: Keys) -> None:
    """Where stdout is closed no secret is made that nobody would see; one that is thrown away is the caller's own wish."""
    keys_of_a_file.run("create", "there")

    def secrets() -> int:
        with closing(sqlite3.connect(keys_of_a_file.url.removeprefix("sqlite:///"))) as file:
            return int(file.execute("SELECT count(*) FROM key_secrets").fetchone()[0])

    for words in ("create closed", "rotate there"):
        before = secrets()
        command = f"exec {sys.executable} -m unilect keys {words} --config {keys_of_a_file.file}"
        for to, code, told in ((">&-", 1, "stdout is closed"), (">/dev/null", 0, "the store")):
            done = subprocess.run(
                ["/bin/sh", "-c", f"{command} {to}"], stderr=subprocess.PIPE, text=True, check=False,
                env={k: v for k, v in os.environ.items() if not k.startswith("UNILECT_")},
            )  # fmt: skip
            assert code == done.returncode, done
            assert told in done.stderr
            assert before + (code == 0) == secrets()


def test_a_store_that_cannot_be(tmp_path: Path) -> None:
    """A store whose folder is not there is named as its option, with what to do."""
    file = tmp_path / "unilect.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/none/x.db"\n')

    told = commands.run("keys", "list", "--config", file, code=1).stderr

    assert f"store.url: the folder {tmp_path}/none does not exist. Make it, or name" in told
