"""
The real coding agents: how each is started as its page in docs/clients says, in a home of its own, with a way out that is closed.

They are the native programs of their npm packages, which the packages' own scripts would start; Continue's is a script for Node.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from relay import Asked, closed_door, relay

from support.common import environments
from support.servers.serving import KEY, Server

PAGES = environments.ROOT / "docs" / "clients"
CODEX = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
CLAUDE = "@anthropic-ai/claude-code-linux-x64/claude"
OPENCODE = "opencode-linux-x64-baseline/bin/opencode"
CONTINUE = ".bin/cn"
TIMEOUT_S = 240
_DOCUMENTED = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Run:
    """
    What an agent did.

    Attributes:
        code: Its exit code.
        said, told: What it wrote to stdout and to stderr.
        asked: What it asked the server.
        wanted: Where else it wanted to go.
    """

    code: int
    said: str
    told: str
    asked: list[Asked]
    wanted: list[str]

    @property
    def ignored(self) -> set[str]:
        """What the server could not do of all that was asked."""
        return {unquote(name) for one in self.asked for name in one.ignored if name}


@dataclass(frozen=True)
class Place:
    """
    Where an agent runs.

    Attributes:
        home: Its home folder.
        url: The server's URL, without a path.
        model: The model to ask.
        context: The tokens that fit into it.
    """

    home: Path
    url: str
    model: str
    context: int

    def filled(self, lines: str, model: str = "demo") -> str:
        """Lines of a page, for this server and this model."""
        assert _DOCUMENTED in lines
        assert model in lines
        lines = re.sub(rf"\b{model}\b", self.model, lines)
        lines = re.sub(r"\b(32768|65536)\b", str(self.context), lines)
        return lines.replace(_DOCUMENTED, self.url)


Setup = Callable[[Place], tuple[list[str], dict[str, str]]]


def codex(place: Place) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables for Codex, whose configuration is written."""
    first, quiet = blocks("codex", "text")[:2]
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(quiet + place.filled(first))
    args = ["exec", "--strict-config", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
    return args, {"UNILECT_API_KEY": KEY}


def claude_code(place: Place) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables for Claude Code."""
    first, quiet = blocks("claude-code", "sh")[:2]
    env = _exported(place.filled(first, "coder")) | _exported(quiet)
    args = ["--permission-mode", "acceptEdits", "--allowedTools", "Bash", "-p"]
    return args, env | {"ANTHROPIC_AUTH_TOKEN": KEY}


def opencode(package: str) -> Setup:
    """What opencode needs that asks through one package of a provider."""

    def setup(place: Place) -> tuple[list[str], dict[str, str]]:
        config = json.loads(place.filled(blocks("opencode", "json")[0]))
        (provider,) = config["provider"].values()
        provider["npm"] = package
        folder = place.home / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "opencode.json").write_text(json.dumps(config))
        (quiet,) = blocks("opencode", "sh")[:1]
        return ["run"], _exported(quiet) | {"UNILECT_API_KEY": KEY}

    return setup


def continue_cli(place: Place) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables for Continue's program, whose configuration and secrets are written."""
    (config,) = blocks("continue", "yaml")[:1]
    (secret,) = blocks("continue", "sh")[:1]
    folder = place.home / ".continue"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(place.filled(config, "coder"))
    (folder / ".env").write_text(secret.replace("YOUR_KEY", KEY))
    door = f"--require {Path(__file__).with_name('closed_door.cjs')}"
    return ["--auto", "-p"], {"NODE_OPTIONS": door, "WANTED": str(place.home / "wanted")}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of this language in a page."""
    text = (PAGES / f"{page}.md").read_text()
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


def _exported(lines: str) -> dict[str, str]:
    """The variables that lines for a shell set."""
    found = dict(re.findall(r"(?m)^export (\w+)=(\S+)", lines))
    assert found
    return found


def run(
    program: str, setup: Setup, server: Server, model: str, folder: Path, order: str, context: int
) -> Run:
    """
    Have an agent carry an order out.

    Args:
        program: Its file in node_modules.
        folder: Where it works; its home is made beside it.
    """
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    output, errors = home / "stdout", home / "stderr"
    with relay(server.root) as (url, asked), closed_door() as (door, wanted):
        args, variables = setup(Place(home, url, model, context))
        programs = environments.node_folder("continue" if program == CONTINUE else "agents")
        command = [str(programs / "node_modules" / program), *args, order]
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(home, door) | variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code = process.wait(TIMEOUT_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if (looked_up := home / "wanted").exists():
        wanted += looked_up.read_text().split()
    return Run(code, output.read_text(), errors.read_text(), asked, wanted)


def _environment(home: Path, door: str) -> dict[str, str]:
    """The variables of a process that has nothing of ours but where programs are."""
    proxies = {f"{scheme}_proxy": door for scheme in ("http", "https", "all")}
    xdg = {
        f"XDG_{kind}_HOME": str(home / ".xdg" / kind.lower()) for kind in ("CACHE", "DATA", "STATE")
    }
    return {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        **xdg,
        **proxies,
        **{name.upper(): value for name, value in proxies.items()},
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
