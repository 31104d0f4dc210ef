"""Pairs of features of the command line, each of which is right alone."""

import os
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from support.servers.appserver import HI, serving_models
from support.servers.configured import merged
from support.servers.terminals import Terminal
from unilect.cli._compat import setup
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.testing.echo import Echo, Options


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a test's own, without `UNILECT_*` of the surroundings."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_configuration_and_models_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are served, also where a variable names the file; the file's names and aliases count for the models of both."""
    Path("a.gguf").symlink_to(MODEL)
    Path("c.toml").write_text('[models.f]\naliases = ["g"]\n')
    monkeypatch.setenv("UNILECT_CONFIG", "c.toml")
    config = merged(["a.gguf"], None, {}, {})
    with pytest.raises(ConfigError, match="`g` is already used"):
        merged(["g=a.gguf"], None, {}, {})
    with pytest.raises(ConfigError, match=r"the name `f` is also that of a model in c\.toml"):
        merged(["f=a.gguf"], None, {}, {})

    assert ["a", "f"] == list(config.models)


async def test_aliases_and_names_in_any_script() -> None:
    """A model is found by a name and an alias of any script, in a body and in a URL; a header that names it is ASCII."""
    down = Model(
        "Modèle-ü-模型", Echo(Options(failing_answers=99)), aliases=["模型"], fallback="हिन्दी"
    )
    registry = Registry([down, Model("हिन्दी", Echo())])
    async with serving_models(Config(), registry) as app:
        _, listed = await app.get("/v1/models")
        status, described = await app.get(f"/v1/models/{quote('模型')}")
        answers = []
        for name in ("Modèle-ü-模型", "模型"):
            url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
            async with app.session.post(url, json={"model": name, "messages": HI}) as response:
                answers.append((response.status, response.headers.get("X-Unilect-Fallback")))

    assert "Modèle-ü-模型" in listed.decode()
    assert (200, True) == (status, "Modèle-ü-模型" in described.decode())
    assert [(200, quote("हिन्दी"))] * 2 == answers


def test_completion_and_names_of_files() -> None:
    """Bash completes a file's name as it does for any command: blanks and letters of any script too, behind `NAME=` too."""
    Path("Modèle ü.gguf").touch()
    Path("zoo.gguf").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "PS1": "> ", "LC_ALL": "C.UTF-8"}
    bash = Terminal(["bash", "--norc", "--noprofile"], env)
    bash.type('eval "$(unilect completion bash)"; echo re""ady\r')
    bash.until("ready\r\n")
    bash.type("unilect serve Mod\t")
    bash.until("le\\ ü.gguf ")
    bash.type("x=zo\t")
    bash.until("x=zoo.gguf ")
    bash.type("\x15exit\r")

    assert 0 == bash.ends()


def test_compat_and_the_flags_of_llama_server() -> None:
    """llama-server's flags come to the table that the flags of `serve` and the options of a file come to."""
    Path("a.gguf").symlink_to(MODEL)
    Path("c.toml").write_text(
        "[models.a]\nsource = 'a.gguf'\nunsupported = 'report'\nbatch = 64\ndefaults = { temperature = 0.5 }\n"
    )
    line = "-m a.gguf -c 512 -np 2 -t 1 -ngl 0 -b 64 --temp 0.5 -a a -fa on"
    ours = {"context": 256, "parallel": 2, "threads": 1, "gpu_layers": 0}
    (theirs,) = setup("llamacpp", line.split(), {}).config.models.values()
    (table,) = merged([], Path("c.toml"), {}, ours).models.values()

    assert table == theirs
