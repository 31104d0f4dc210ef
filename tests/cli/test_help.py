"""Help, hints for flags and commands of other servers, and completion, in this process."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from unilect.cli.main import app


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a test's own, without `UNILECT_*` of the surroundings."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    """What a command line ends with."""
    return CliRunner().invoke(app, arguments, prog_name="unilect", env={"TERMINAL_WIDTH": "200"})


def commands(of: click.Command = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands and groups, by their names."""
    yield path
    for name, inner in of.commands.items() if isinstance(of, click.Group) else ():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", [*commands()], ids=" ".join)
def test_every_help(path: tuple[str, ...]) -> None:
    """Each command and group has its help with -h too, with an example, and no command's line in it is cut."""
    done = run(*path, "-h")

    assert 0 == done.exit_code
    assert done.output == run(*path, "--help").output
    examples = done.output.partition("Examples:\n")[2]
    assert examples.startswith("  unilect ") or "\n  unilect " in examples or 'eval "$(unilect' in examples  # fmt: skip
    listed = done.output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in listed


@pytest.mark.parametrize("path", [path for path in commands() if path], ids=" ".join)
def test_first_lines(path: tuple[str, ...]) -> None:
    """The first line of a command's help is short enough for a list of commands."""
    command: click.Command = app
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    first = (command.help or "").strip().split("\n")[0]

    assert 0 < len(first) <= 55


def test_the_help_of_all() -> None:
    """The commands are listed by use, and the help says where the documentation is; `help` shows it, too."""
    done = run("help")
    listed = re.findall(r"(?m)^  ([a-z]+)  ", done.output.partition("Commands:")[2])

    assert 0 == done.exit_code
    assert ["serve", "chat", "connect"] == listed[:3]
    assert "`unilect docs`" in done.output.partition("Documentation:")[2]
    assert run("help", "keys", "create").output == run("keys", "create", "--help").output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve --ngl 4", "Use --gpu-layers."),
        ("serve -ngl 4", "Use --gpu-layers."),
        ("serve --temp 0.3", "`defaults = { temperature = 0.3 }`"),
        ("serve --draft 3", "in a model's table [models.NAME]"),
        ("serve -md x", "Use --speculative."),
        ("serve --verbose", "Use --log-level debug."),
        ("serve --pooling rank", 'write `pooling = "rank"` in a model\'s table [models.NAME]'),
        ("serve --watch", "write `watch` at the top"),
        ("serve --batch 64", "write `batch = 64` in a model's table"),
        ("serve --keep-alive 5m", "write `idle_stop_s` in a model's table"),
        ("serve --system x", 'write `system = "x"` in a model\'s table [models.NAME]'),
        ("serve -p 8101", "Use --port."),
        ("serve -t 4", "Use --threads."),
        ("serve -c 4096", "-c is short for --config here. Use --context 4096"),
        ("serve --address :80", "Use --host and --port."),
        ("serve --gpu-memory-utilization 0.9", "`gpu_layers` decide how much memory"),
        ("serve --threds 3", "Did you mean '--threads'?"),
        ("serve --install-completion", "unilect completion bash"),
        ("keys create x --requests-per-minute 2", "Use --limit requests_per_minute=2."),
        ("keys create x --rpm 2", "Use --limit requests_per_minute=2."),
        ("--port 8000", "`unilect serve --port 8000`"),
        ("-m x.gguf", "`unilect serve path/to/model.gguf`"),
        ("status", "Use `unilect ps`"),
        ("log", "goes to stderr"),
        ("resume", "Use `unilect load MODEL`"),
        ("embed", "POST /v1/embeddings"),
        ("benchmark", "Use `unilect bench URL`"),
        ("login", "`unilect keys create NAME`"),
        ("ls", "Use `unilect list`"),
        ("download", "Use `unilect pull SOURCE`"),
        ("kill", "Ctrl-C"),
        ("servee", "Did you mean 'serve'?"),
        ("keys creat", "Did you mean 'create'?"),
    ],
)
def test_hints(line: str, said: str) -> None:
    """A flag or a command of another server is answered with what to type here."""
    done = run(*line.split())

    assert 2 == done.exit_code
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize("line", ["serve --qwerty", "serve --ngx 4", "ps --url x", "unlode"])
def test_no_guess(line: str) -> None:
    """Where nothing is known of a flag or a command, nothing is guessed."""
    done = run(*line.split())

    assert 2 == done.exit_code
    assert re.search(r"No such (option|command) '[\w-]+'\.$", done.output.rstrip())


def test_the_short_flag_of_a_configuration(tmp_path: Path) -> None:
    """`-c FILE` is the configuration."""
    Path("main.toml").write_text("port = 'x'")
    done = run("serve", "-c", "main.toml")

    assert 1 == done.exit_code
    assert "main.toml:1: port: " in done.stderr


def completed(line: str) -> str:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(
        app, prog_name="unilect", env=asked | {"_UNILECT_COMPLETE": "bash_complete"}
    )
    return done.output


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("unilect serve ", "file,\n"),
        ("unilect serve here", "file,here\n"),
        ("unilect serve gg", "plain,gguf:\n"),
        ("unilect serve --config x", "file,x\n"),
        ("unilect serve --lora x", "file,x\n"),
        ("unilect serve --log-level w", "plain,warning\n"),
        ("unilect serve --chat-template chatm", "plain,chatml\n"),
        ("unilect connect code", "plain,codex\n"),
        ("unilect compat o", "plain,ollama\n"),
        ("unilect compat llamacpp --top-", "plain,--top-k\nplain,--top-p\n"),
        ("unilect compat llamacpp -m x", "file,x\n"),
        ("unilect serve -ngl 99 --cont", "plain,--context\n"),
    ],
)
def test_completion(line: str, offered: str) -> None:
    """A shell is offered files, schemes, clients, levels, formats and flags, whatever stands before."""
    Path("here.gguf").touch()

    assert offered == completed(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    """`unilect completion SHELL` prints what the shell is to run."""
    done = run("completion", shell)

    assert 0 == done.exit_code
    assert "_UNILECT_COMPLETE" in done.output


def test_bash_itself() -> None:
    """Bash runs the script: it knows the function, offers a scheme without a blank behind it, and falls back to file names."""
    script = run("completion", "bash").output
    fake = r"""
    env() { case "$COMP_CWORD" in 1) echo plain,gguf: ;; *) echo file,x ;; esac; }
    compopt() { printf '%s %s ' "$@"; }
    COMP_WORDS=(unilect gg) COMP_CWORD=1; _unilect_completion unilect; printf '[%s]' "${COMPREPLY[*]}"
    COMP_WORDS=(unilect serve x) COMP_CWORD=2; COMPREPLY=(); _unilect_completion unilect; printf '[%s]' "${COMPREPLY[*]}"
    complete -p unilect
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script + fake], capture_output=True, text=True, timeout=30
    )

    assert "" == done.stderr
    assert "-o nospace [gguf:]-o default []" in " ".join(done.stdout.split())
    assert "-F _unilect_completion unilect" in done.stdout
