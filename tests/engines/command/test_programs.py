"""Tests of unilect.engines.command.programs."""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat
from support.common.waiting import until
from unilect import families
from unilect.api.backend import BackendSpec
from unilect.config.kinds import PROGRAMS as SCHEMES
from unilect.config.model import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError
from unilect.core.requests import EmbeddingRequest
from unilect.demo import MODEL
from unilect.engines.command.engine import CommandEngine
from unilect.engines.command.programs import PROGRAMS, expand, template_of
from unilect.models import sources

#: The path of a llama-server, which is in no package.
LLAMA_SERVER = os.environ.get("UNILECT_TEST_LLAMA_SERVER", "")
QWEN3 = "{% if enable_thinking %}<think>{% endif %}<tool_call>{{ tools }}</tool_call></think>"
#: All flags that the rows name, as a help has them.
HELP = " ".join(f"{row.words} {' '.join(row.flags.values())}" for row in PROGRAMS.values())


def spec_of(source: str, **config: Any) -> BackendSpec:
    """Make the specification of a table `m`."""
    table = ModelConfig(source=source, **config)
    return sources.spec_of("m", source, table)


def words_of(source: str, template: str = "", told: str = HELP, **config: Any) -> str:
    """Return the command line of a source."""
    spec = spec_of(source, **config)
    command = expand(PROGRAMS[spec.scheme], spec, template, told).command
    assert isinstance(command, list)
    return " ".join(command)


@pytest.mark.parametrize(
    ("source", "config", "line"),
    [
        ("llama-server:a.gguf", {}, "llama-server -m {file} --alias {name} --host {socket} -np {parallel}"),
        ("llama-server:a.gguf", {"gpu_layers": -1, "threads": 2}, "llama-server -m {file} --alias {name} --host {socket} -np {parallel} -t {threads} -ngl all"),
        ("vllm:o/n", {"context": 4096, "arguments": "--dtype 'b 16'"}, "vllm serve {folder} --served-model-name {name} --uds {socket} --max-model-len {context} --dtype b 16"),
        ("vllm:o/n", {"parallel": 64, "tool_parser": "x"}, "vllm serve {folder} --served-model-name {name} --uds {socket} --max-num-seqs {parallel} --enable-auto-tool-choice --tool-call-parser x"),
        ("sglang:o/n", {"context": 64}, "sglang serve --model-path {folder} --served-model-name {name} --host 127.0.0.1 --port {port} --api-key {key} --context-length {context}"),
        ("mlx:o/n", {"chat_template": "{{ messages }} {port}"}, "mlx_lm.server --model {folder} --host 127.0.0.1 --port {port} --chat-template {{ messages }} {{port}}"),
        ("transformers-serve:o/n", {}, "transformers serve {folder} --host 127.0.0.1 --port {port}"),
    ],
)  # fmt: skip
def test_line(source: str, config: dict[str, Any], line: str) -> None:
    """A source of a program is its command line, with a flag for each option that is set."""
    assert line == words_of(source, **config)


def test_parsers(caplog: pytest.LogCaptureFixture) -> None:
    """Calls and thoughts are read by the parsers of the model's family, if the program has them, and by the operator's own."""
    known = f"--tool-call-parser {{a,hermes,qwen25}} or another {HELP}"
    assert words_of("vllm:o/n", QWEN3, known).endswith("--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3")  # fmt: skip
    assert words_of("sglang:o/n", QWEN3, known).endswith("--tool-call-parser qwen25 --reasoning-parser qwen3")  # fmt: skip
    own = words_of("vllm:o/n", QWEN3, known, tool_parser="", reasoning_parser="mine")
    assert own.endswith("--uds {socket} --reasoning-parser mine")
    assert not caplog.messages
    other = known.replace("hermes", "hermes-2")
    assert words_of("vllm:o/n", QWEN3, other).endswith("{socket} --reasoning-parser qwen3")
    assert "models.m: `vllm` does not know `--enable-auto-tool-choice --tool-call-parser hermes`, which suits the model" in caplog.messages  # fmt: skip


def test_no_help(caplog: pytest.LogCaptureFixture) -> None:
    """The flags of a program without a help are taken as they are, and that is told."""
    assert "--tool-call-parser hermes" in words_of("vllm:o/n", QWEN3, "")
    assert "has printed no help" in caplog.text


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"context": 64}, r"^context: the `vllm` in PATH does not know --max-model-len, says `vllm serve --help=all`\. Leave `context` out"),
        ({}, r"^source: the `vllm` in PATH does not know --uds, .* Write its command line as `command`"),
    ],
)  # fmt: skip
def test_unknown_flag(config: dict[str, Any], told: str) -> None:
    """A flag that a program's help does not name is refused where the operator asked for it, or the program cannot do without it."""
    known = "--served-model-name --uds-path" + (" --uds" if config else "")
    with pytest.raises(ConfigError, match=told):
        words_of("vllm:o/n", told=known, **config)


@pytest.mark.parametrize(
    ("source", "config", "told"),
    [
        ("vllm:o/n", {}, r"models\.m: source: `vllm:` needs the program `vllm`, and there is none in PATH, which is /nowhere\. `pip install vllm`"),
        ("vllm:o/n", {"gpu_layers": 3}, r"models\.m: gpu_layers: has no effect, since `vllm:` has no flag"),
        ("mlx:o/n", {"context": 64}, r"models\.m: context: has no effect, since `mlx:`"),
        ("llama-server:./none.gguf", {"environment": {"PATH": "$PROGRAMS"}}, r"models\.m: source: there is no file .*none\.gguf\. Check the path"),
    ],
)  # fmt: skip
def test_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, config: dict[str, Any], told: str) -> None:  # fmt: skip
    """A program that is not here, an option that it has not, and a model that is none are told with what to do."""
    (tmp_path / "llama-server").touch(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PROGRAMS", str(tmp_path))
    with pytest.raises(ConfigError, match=told):
        sources.backend(spec_of(source, **config))


def test_template(tmp_path: Path) -> None:
    """The chat template of a folder is the one in its own file, else the one of its tokenizer, of which there may be several."""
    assert template_of(tmp_path) == ""
    file = tmp_path / "tokenizer_config.json"
    for broken in ("[", "[]", "{}", '{"chat_template": null}'):
        file.write_text(broken)
        assert template_of(tmp_path) in ("", "null")
    file.write_text(json.dumps({"chat_template": [{"name": "tool_use", "template": QWEN3}]}))
    assert families.of_template(template_of(tmp_path)) is families.find("hermes")
    (tmp_path / "chat_template.jinja").write_text("one")
    assert template_of(tmp_path) == "one"


def test_schemes() -> None:
    """Each program is a source, and its row has what a model needs."""
    assert {*SCHEMES} == {*PROGRAMS}
    for scheme, row in PROGRAMS.items():
        assert sources.kind_of(sources.split(f"{scheme}:o/n")[0]) == "program"
        assert row.words.split()[0] == row.help.split()[0]
        assert not row.parsers or getattr(families.find("hermes"), row.parsers)[0]


STAND_IN = """#!{python}
import os, sys
if "--help" in sys.argv:
    print("{flags}")
else:
    words = ["serve", "demo:", "--port", sys.argv[sys.argv.index("--port") + 1]]
    os.execv(sys.executable, [sys.executable, "-m", "unilect", *words])
"""


@pytest.mark.heavy
async def test_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """A program is asked for its help, started with its model's files, and answers; its help is not asked for again."""
    caplog.set_level(logging.WARNING, "unilect")
    program, model = tmp_path / "bin" / "transformers", tmp_path / "model"
    program.parent.mkdir()
    model.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, flags="--host --port"))
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = spec_of(
        f"transformers-serve:{model}",
        environment={"PATH": f"{program.parent}:$PATH"},
        model="demo",
    )
    backend = sources.backend(spec)
    try:
        await backend.start()
        told = await answer(backend.generate(chat("What is the capital of France?", max_tokens=16)))
        assert "Paris" in (told.choices[0].text or "")
    finally:
        await backend.aclose()
    assert isinstance(backend._engine, CommandEngine)  # type: ignore[attr-defined]
    assert not caplog.messages
    (kept,) = (tmp_path / "cache" / "unilect" / "help").iterdir()
    kept.write_text("--host")
    backend = sources.backend(spec)
    with pytest.raises(BackendUnavailable) as caught:
        await backend.start()
    await backend.aclose()
    assert "does not know --port" in caught.value.for_operator


@pytest.mark.live
@pytest.mark.skipif(not LLAMA_SERVER, reason="UNILECT_TEST_LLAMA_SERVER names no llama-server")
async def test_a_llama_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """llama.cpp's own program writes, calls tools, keeps to a form for more than it takes at a time, and makes vectors by its preset, comes back after a kill, and a flag that it has not is told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table = {"context": 512, "parallel": 2, "threads": 1, "environment": {"PATH": f"{Path(LLAMA_SERVER).parent}:$PATH"}}  # fmt: skip
    source = f"llama-server:{MODEL}"
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}  # fmt: skip
    backend = sources.backend(spec_of(source, arguments="--embeddings --pooling mean", **table))
    try:
        await backend.start()
        (child,) = backend.children
        for life in (1, 2):
            told = await answer(backend.generate(chat("What is the capital of France?", max_tokens=16)))  # fmt: skip
            assert "Paris" in (told.choices[0].text or "")
            assert (life, 512) == (child.starts, backend.capabilities.context)
            if life == 1:
                os.kill(child._ready["pid"], signal.SIGKILL)  # type: ignore[attr-defined]
                await until(lambda: child.deaths)
        asked = chat("Weather in Paris?", max_tokens=60, tools=[weather], tool_choice="required")
        called = await answer(backend.generate(asked))
        assert ["get_weather"] == [call.name for call in called.choices[0].tool_calls]
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}  # fmt: skip
        named = {"type": "function", "function": {"name": "get_time"}}
        asked = chat("Weather in Paris?", max_tokens=60, tools=[weather, other], tool_choice=named)
        called = await answer(backend.generate(asked))
        assert ["get_time"] == [call.name for call in called.choices[0].tool_calls]
        schema = {"type": "object", "properties": {"big": {"type": "boolean"}}, "required": ["big"], "additionalProperties": False}  # fmt: skip
        form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
        asked = chat("What is the capital of France?", max_tokens=30, response_format=form)
        told, *others = await asyncio.gather(*(answer(backend.generate(asked)) for _ in range(8)))
        assert {"big"} == json.loads(told.choices[0].text or "").keys()
        assert {told.choices[0].text} == {one.choices[0].text for one in others}
        vectors = await backend.embed(EmbeddingRequest(input=["Paris", "Rome"]))
        assert 2 == len(vectors.vectors)
    finally:
        await backend.aclose()
    backend = sources.backend(spec_of(source, arguments="--no-such-flag", **table))
    with pytest.raises(BackendUnavailable) as caught:
        await backend.start()
    await backend.aclose()
    assert "invalid argument: --no-such-flag" in caught.value.for_operator
