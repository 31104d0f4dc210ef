"""What commands print of a server's, a file's or a database's names: a terminal obeys none of it."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.common.ledger_rows import row
from unilect.cli import _admin, _commands, _console, _keys, _usage
from unilect.cli._history import History
from unilect.cli._screen import fail, or_exit, tell, tell_table, visible
from unilect.cli._start_screen import example_call, start_screen
from unilect.cli.connect import command as connecting
from unilect.config.model import ModelConfig
from unilect.core.events import TextDelta
from unilect.runtime.redact import Secrets
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger

#: The window's name, a colour, a bell, a line of one's own, an escape of eight bits, and text from right to left.
EVIL = "\x1b]0;x\x07\x1b[31mred\rover\nline\x9b2J\u202egnp\u2066\u200b"
SEEN = r"\x1b]0;x\x07\x1b[31mred\rover\nline\x9b2J\u202egnp\u2066\u200b"


def check(told: str) -> None:
    """Nothing is there but what is seen, line breaks and tabs."""
    assert [] == [c for c in told if not c.isprintable() and c not in "\n\t"], repr(told)
    assert "]0;x\\" in told, "the name is not there"


class Hostile(BaseHTTPRequestHandler):
    """A server whose every name is hostile."""

    def do_GET(self) -> None:
        """Answer as a list of models, a model, or the admin API."""
        card = {"id": EVIL, "object": "model", "unilect": {"chat": True}}
        requests = [{name: EVIL for name in ("id", "caller", "address", "model", "endpoint", "state")} | {"age_s": 1, "completion_tokens": 1}]  # fmt: skip
        backend = {"source": EVIL, "out": True, "reason": EVIL, "since": 1, "next_look_in_s": None}
        model = {"name": EVIL, "state": EVIL, "since": 1, "device": EVIL, "backends": [backend]}
        models = [
            model
            | {
                "memory_bytes": 1,
                "waits_for": EVIL,
                "completion_tokens": 1,
                "presets": [EVIL],
                "context": 1,
                "slots": 1,
                "slots_used": 1,
                "queued": 1,
                "tokens_per_s": 1.0,
            }
        ]
        body = {
            "/v1/models": {"object": "list", "data": [card]},
            "/server": {"urls": [EVIL], "pid": 1},
            "/models": {"models": models},
            "/requests": {"requests": requests},
            "/reload": {"file": EVIL, "told": EVIL},
        }.get(self.path, card)
        self._send(body)

    do_POST = do_GET

    def _send(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def hostile() -> Iterator[int]:
    """The server's port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fill(file: Path) -> None:
    """A database whose keys and models have hostile names."""

    async def run() -> None:
        database = Database(f"sqlite:///{file}")
        keys, ledger = KeyStore(database), Ledger(database)
        await keys.create("ann", "id", b"digest", models=(EVIL,))
        evil = "UPDATE keys SET name = ?, owner = ?"  # as no command would write it
        await database.write(lambda connection: connection.run(evil, EVIL, EVIL))
        await ledger.write([row(at=time.time(), key=EVIL, model=EVIL)])
        await ledger.aclose()
        await database.aclose()

    asyncio.run(run())


def test_a_walk_through_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that prints names prints what a terminal would obey as escapes that it does not."""
    database, config = tmp_path / "unilect.db", tmp_path / "unilect.toml"
    fill(database)
    with hostile() as port:
        name = json.dumps(EVIL)
        config.write_text(
            f"[admin]\nlisten = '127.0.0.1:{port}'\napi_keys = ['sk-admin-key-of-a-test']\n[store]\nurl = 'sqlite:///{database}'\n"
        )
        wrong, source = tmp_path / "wrong.toml", tmp_path / "source.toml"
        wrong.write_text(f"{name} = 1\nport = {name}\n[models.{name}]\nsource = {name}\n")
        source.write_text(f"[models.a]\nsource = {json.dumps('http://a' + EVIL + '/v1')}\n")
        url = f"http://127.0.0.1:{port}"
        commands: list[Callable[[], Any]] = [
            lambda: _commands.list_models(None, url),
            lambda: connecting.connect("codex", url, None, None, False, False),
            lambda: connecting.connect("aider", url, None, None, False, False),
            lambda: _admin.show(config, False),
            lambda: _admin.show(config, True),
            lambda: _admin.reload(config, None),
            lambda: _commands.check_config(wrong),
            lambda: _commands.check_config(source),
            lambda: _commands.list_models(source),
            lambda: _keys.list_keys(config, False),
            lambda: _keys.list_keys(config, True),
            lambda: _usage.show(config, "key,model", "1d", False, False),
            lambda: _usage.show(config, "key,model", "1d", True, False),
            lambda: _usage.show(config, "key,model", "1d", False, True),
            lambda: fail(EVIL),
        ]
        for command in commands:
            with suppress(SystemExit):
                or_exit(command)
            told = capsys.readouterr()
            check(told.out + told.err)


def test_a_start_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The first screen of a server shows names as they are seen."""
    config = _commands.Config(models={"a": ModelConfig(source="echo:")})
    tell(start_screen("http://127.0.0.1:1", config, example_call([]), facts={EVIL: f"{EVIL}: 1"}))

    check(capsys.readouterr().out)


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell with a line break stays in its row, and columns are as wide as what is seen."""
    tell_table(("A", "B"), [("x\ny", "1"), ("\x1b", "22")], right=[1])

    assert "A      B\nx\\ny   1\n\\x1b  22\n" == capsys.readouterr().out


def test_what_is_seen() -> None:
    """Text, line breaks and tabs stay; whatever else is no character that can be seen is an escape."""
    assert "a\tä\n漢 🙂" == visible("a\tä\n漢 🙂")
    assert SEEN.replace(r"\n", "\n") == visible(EVIL)


def test_answers_in_a_chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal an answer keeps its text, also what scripts and emoji are joined with, and none of its escapes."""
    console = _console.Console(History(None, Secrets([])))
    monkeypatch.setattr(console, "_colours", True)
    console.show([TextDelta(EVIL + "\tשלום\u200f 👩\u200d💻", 0)])
    console.note(EVIL)
    told = capsys.readouterr()

    assert "red over\nline 2J gnp" in told.out
    assert "\tשלום\u200f 👩\u200d💻" in told.out
    for text in (told.out, told.err):
        assert [] == [c for c in text if c in "\x1b\x07\r\x9b\u202e\u2066"]
