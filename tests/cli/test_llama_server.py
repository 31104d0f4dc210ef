"""Tests of unilect.cli._llama_server: llama-server's command line as a configuration."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from unilect.cli._compat import Setup, setup
from unilect.cli.main import app
from unilect.core.errors import ConfigError


def read(line: str) -> Setup:
    """What a command line comes to."""
    return setup("llamacpp", line.split(), {})


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("-ngl 99 -c 512", {"context": 512, "gpu_layers": None}),
        ("-c 8192 -np 4", {"context": 2048, "parallel": 4}),
        ("-c 8192 -np 4 -kvu", {"context": 8192, "parallel": None}),
        ("-c 8192 -np 4 --no-kv-unified", {"context": 2048, "parallel": 4}),
        ("-c 0 -ngl all", {"context": None, "gpu_layers": None}),
        ("-ngl 0 -t 2 -b 64", {"gpu_layers": 0, "threads": 2, "batch": 64}),
        ("--temp 0.3 -n -1 -s 7", {"defaults": {"temperature": 0.3, "seed": 7}}),
        ("--lora a.gguf --lora-scaled b.gguf 0.5", {"lora": ["a.gguf", "b.gguf=0.5"]}),
        ("-ctk q8_0 --reranking", {"cache_type_k": "q8_0", "pooling": "rank"}),
        ("--chat-template chatml --jinja", {"chat_template": "chatml"}),
    ],
)
def test_flags(flags: str, options: dict[str, Any]) -> None:
    """Flags become options, also where they are reckoned otherwise; an unknown model is the only one, at llama-server's address."""
    config = read(f"-m x.gguf {flags}").config
    (table,) = config.models.values()

    assert options == {name: getattr(table, name) for name in options}
    assert ("x.gguf", "report") == (table.source, table.unsupported)
    assert ("127.0.0.1", 8080, "default") == (config.host, config.port, config.on_unknown_model)


@pytest.mark.parametrize(
    ("line", "names", "source"),
    [
        ("-m a/x.gguf", ["x"], "a/x.gguf"),
        ("-m x.gguf -a one,two", ["one", "two"], "x.gguf"),
        ("-hf org/repo-GGUF", ["repo-GGUF"], "gguf:org/repo-GGUF:Q4_K_M"),
        ("-hf org/repo:Q8_0", ["repo"], "gguf:org/repo:Q8_0"),
        ("-hf org/repo -hff y.gguf", ["repo"], "gguf:org/repo/y.gguf"),
    ],
)
def test_the_model(line: str, names: list[str], source: str) -> None:
    """The model is a file, or one of a repository, under its own name or those that are given."""
    ((name, table),) = read(line).config.models.items()

    assert (names, source) == ([name, *table.aliases], table.source)


def test_what_has_no_effect() -> None:
    """A flag that asks for what is here anyway, or cannot be chosen, is told with why."""
    notices = read("-m x.gguf -c 512 -fa on --mlock -ngld 3").notices

    assert ["-fa", "--mlock", "-ngld"] == [notice.partition(":")[0] for notice in notices]
    assert all("no effect" in notice for notice in notices)


def test_drafts_and_gpus() -> None:
    """A draft model, drafting from the conversation, and the places of a model on several GPUs are options here."""
    ((_, first),) = read("-m x.gguf -md d.gguf --draft-max 5 -sm row -mg 1 -ts 3/1").config.models.items()  # fmt: skip
    ((_, second),) = read("-m x.gguf --spec-type ngram-mod").config.models.items()

    assert ("d.gguf", 5) == (first.speculative, first.draft_max)
    assert ("row", 1, [3.0, 1.0]) == (first.split_mode, first.main_gpu, first.tensor_split)
    assert "ngram" == second.speculative
    with pytest.raises(ConfigError, match="-ts: expected numbers such as 3,1"):
        read("-m x.gguf -ts a")


def test_keys(tmp_path: Path) -> None:
    """Keys come from the flag and from the file; an address for everybody needs one."""
    file = tmp_path / "keys"
    file.write_text("c\n\nd\n")

    assert ["a", "b", "c", "d"] == read(f"-m x.gguf --host 0.0.0.0 --api-key a,b --api-key-file {file}").config.api_keys  # fmt: skip
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        read("-m x.gguf --host 0.0.0.0")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-c 512", "names no model. Add `-m model.gguf`"),
        ("-m x.gguf -ngl much", "expected a number, `auto` or `all`"),
        ("-m x.gguf --chat-template-kwargs {", "expected a JSON object"),
        ("-m x.gguf --api-key-file /none", "/none: cannot be read"),
    ],
)
def test_mistakes(line: str, said: str) -> None:
    """What cannot be done is an error of one sentence."""
    with pytest.raises(ConfigError) as raised:
        read(line)

    assert said in str(raised.value)


@pytest.mark.parametrize("line", ["-m x.gguf --rpc h:1", "-m x.gguf -c many"])
def test_wrong_flags(line: str) -> None:
    """A flag that is not known, or has a wrong value, ends with exit code 2 and one line that says where flags are listed."""
    done = CliRunner().invoke(app, ["compat", "llamacpp", *line.split()])

    assert 2 == done.exit_code
    assert 1 == done.stderr.count("\n")
    assert "`unilect compat llamacpp --help`" in done.stderr


def test_the_list() -> None:
    """`unilect compat` lists the servers; a program's own name is that of its server."""
    done = CliRunner().invoke(app, ["compat"])

    assert 0 == done.exit_code
    assert all(name in done.output for name in ("llamacpp", "chatglm", "fastchat", "alpaca", "ollama"))  # fmt: skip
    assert read("-m x.gguf").config == setup("llama-server", ["-m", "x.gguf"], {}).config


def test_the_older_server_stays() -> None:
    """Without a flag of llama-server the command line is that of the older server."""
    (table,) = read("--llama-api http://h:1").config.models.values()

    assert "llamacpp+http://h:1" == table.source
