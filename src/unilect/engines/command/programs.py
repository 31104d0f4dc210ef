"""
Servers by the name of their program: `vllm:org/name` is a `command` whose words stand here.

The flags were compared with the help, or with the source of the help, of the versions that docs/backends/command.md names. A program's
own help is asked before each start: another version may have other flags. The parsers of calls and thoughts are those of the model's
family, which its chat template shows.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any

from msgspec import Struct, structs

from unilect import families
from unilect.api.backend import Backend, BackendSpec
from unilect.config import command_line
from unilect.config.kinds import FILES
from unilect.config.model import ModelConfig
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError
from unilect.engines.command.engine import FETCHED, engine_of
from unilect.engines.command.program_help import choices_of, has_word, recall_help
from unilect.engines.fetched import later
from unilect.hub import download as hub
from unilect.hub.transfer import OnProgress
from unilect.runtime.child_environment import child_environment

log = logging.getLogger("unilect")
#: Options of a table that become flags.
_OPTIONS = ("context", "parallel", "threads", "gpu_layers", "chat_template", "tool_parser", "reasoning_parser")  # fmt: skip
_PARSERS = ("tool_parser", "reasoning_parser")
_MOST_TEMPLATE_BYTES = 2_000_000


class Program(Struct, frozen=True, kw_only=True):
    """
    A program that serves a model.

    Attributes:
        words: Its command line, with the placeholders of `command`.
        flags: By option of the table, what is added where that is set; `{}` stands for a value that has no placeholder.
        help: The words that print all its flags.
        install: The way to get it.
        environment: Its variables.
        model: The name that it knows the model by.
        parsers: The attribute of a family that names its parsers.
        shares_context: Its context is that of all requests together.
    """

    words: str
    flags: Mapping[str, str]
    help: str
    install: str
    environment: Mapping[str, str] = {}
    model: str | None = None
    parsers: str = ""
    shares_context: bool = False


PROGRAMS = {
    "llama-server": Program(
        words="llama-server -m {file} --alias {name} --host {socket} -np {parallel}",
        flags={
            "context": "-c {context}",
            "threads": "-t {threads}",
            "gpu_layers": "-ngl {}",
            "chat_template": "--jinja --chat-template {}",
        },
        help="llama-server --help",
        install="Get a build from https://github.com/ggml-org/llama.cpp/releases, or with `brew install llama.cpp`.",
        environment={"LLAMA_API_KEY": "{key}"},
        shares_context=True,
    ),
    "vllm": Program(
        words="vllm serve {folder} --served-model-name {name} --uds {socket}",
        flags={
            "context": "--max-model-len {context}",
            "parallel": "--max-num-seqs {parallel}",
            "chat_template": "--chat-template {}",
            "tool_parser": "--enable-auto-tool-choice --tool-call-parser {}",
            "reasoning_parser": "--reasoning-parser {}",
        },
        help="vllm serve --help=all",
        install="`pip install vllm` in an environment of its own; see https://docs.vllm.ai.",
        environment={"VLLM_API_KEY": "{key}"},
        parsers="vllm",
    ),
    "sglang": Program(
        words="sglang serve --model-path {folder} --served-model-name {name} --host 127.0.0.1 --port {port} --api-key {key}",
        flags={
            "context": "--context-length {context}",
            "parallel": "--max-running-requests {parallel}",
            "tool_parser": "--tool-call-parser {}",
            "reasoning_parser": "--reasoning-parser {}",
        },
        help="sglang serve --help",
        install="`pip install sglang` in an environment of its own; see https://docs.sglang.io.",
        parsers="sglang",
    ),
    "mlx": Program(
        words="mlx_lm.server --model {folder} --host 127.0.0.1 --port {port}",
        flags={
            "parallel": "--decode-concurrency {parallel}",
            "chat_template": "--chat-template {}",
        },
        help="mlx_lm.server --help",
        install="`pip install mlx-lm`, on Linux with `mlx[cpu]` or `mlx[cuda13]`.",
        model="{folder}",
    ),
    "transformers-serve": Program(
        words="transformers serve {folder} --host 127.0.0.1 --port {port}",
        flags={},
        help="transformers serve --help",
        install="`pip install 'transformers[serving]'`.",
        model="{folder}",
    ),
}


def backend(spec: BackendSpec) -> Backend:
    """
    Make the engine for a model of a program; its files are fetched, and the program's help is read, when it is started.

    Raises:
        ConfigError: There is no such program here, it has no flag for an option, or the model's location is none.
    """
    program, config = PROGRAMS[spec.scheme], spec.config
    for option in _OPTIONS:
        has_flag = option in program.flags or f"{{{option}}}" in program.words
        if config.is_set(option) and not has_flag:
            raise ConfigError(
                f"{option}: has no effect, since `{spec.scheme}:` has no flag for it. Leave it out; other flags of the program go into `arguments`."
            )
    environment = _environment(config)
    name, path = command_line.program_of(program.words), environment.get("PATH")
    if which(name, path=path) is None:
        raise ConfigError(
            f"source: `{spec.scheme}:` needs the program `{name}`, and there is none in PATH, which is {path}. {program.install} If it is elsewhere, "
            f'say where: environment = {{ PATH = "/its/folder:$PATH" }}.'
        )
    placeholder, fetch = FETCHED[FILES[spec.scheme]]
    is_folder = FILES[spec.scheme] == "hf"
    here = hub.local_copy(spec.location, folder=is_folder)
    if here is not None and not (here.is_dir() if is_folder else here.is_file()):
        raise ConfigError(
            f"source: there is no {'folder' if is_folder else 'file'} {here}. Check the path, or name a model of the hub."
        )
    told = ""

    def fetch_all(location: str, on_progress: OnProgress) -> Path:
        nonlocal told
        path = fetch(location, on_progress)
        told = recall_help(program.help.split(), environment)
        return path

    def make(spec: BackendSpec, path: Path) -> Backend:
        expanded = expand(program, spec, template_of(path) if program.parsers else "", told)
        values = {placeholder: str(path.absolute())}
        if program.shares_context and config.context is not None:
            values["context"] = str(config.context * config.most_parallel)
        return engine_of(structs.replace(spec, config=expanded), values)

    return later(spec, fetch_all, make)


def expand(program: Program, spec: BackendSpec, template: str, told: str) -> ModelConfig:
    """
    Return the table of a model with the `command` that its program is started by. What is left out of it is logged.

    Args:
        template: The model's chat template; empty for none.
        told: The program's help; empty where it has none, and nothing is checked.

    Raises:
        ConfigError: The program knows no such flag.
    """
    config, words = spec.config, program.words.split()
    doubts = [] if told else [f"has printed no help, by which its flags could be checked (`{program.help}`)"]  # fmt: skip
    _check_flags(spec, words, told, "")
    found = _parsers(program, template)
    for option, flags in program.flags.items():
        is_own = config.is_set(option)
        value = _value(option, config) if is_own else found.get(option, "")
        if not value:
            continue
        added = flags.split()
        if not is_own and told and not _is_known(added, value, told):
            doubts.append(f"does not know `{' '.join(added).format(value)}`, which suits the model")
            continue
        _check_flags(spec, added, told, option)
        words += [command_line.as_written(value, ()) if word == "{}" else word for word in added]
    for doubt in doubts:
        log.warning("models.%s: `%s` %s", spec.name, words[0], doubt)
    words += command_line.split_words(config.arguments, "arguments") if config.arguments else []
    return structs.replace(
        config,
        command=words,
        model=config.model or program.model,
        environment={**program.environment, **config.environment},
    )


def _check_flags(spec: BackendSpec, words: list[str], told: str, option: str) -> None:
    """
    Raises:
        ConfigError: A help names none of the flags in some words; `option` is set, or empty where the program cannot do without them.
    """
    unknown = [one for one in _flags_in(words) if told and not has_word(told, one)]
    if not unknown:
        return
    program = command_line.program_of(PROGRAMS[spec.scheme].words)
    what = f"Leave `{option}` out, or say it in `arguments`" if option else "Write its command line as `command`"  # fmt: skip
    raise ConfigError(
        f"{option or 'source'}: the `{program}` in PATH does not know {unknown[0]}, says `{PROGRAMS[spec.scheme].help}`. "
        f"{what}, or install another version."
    )


def _is_known(words: list[str], value: str, told: str) -> bool:
    """Return True where a help has all flags in some words, and the value of the last one, if it lists that one's."""
    flags = _flags_in(words)
    return all(has_word(told, one) for one in flags) and value in (choices_of(told, flags[-1]) or [value])  # fmt: skip


def _flags_in(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("-")]


def _value(option: str, config: ModelConfig) -> str:
    """Return the value of an option, as its program reads it; empty for none."""
    value = getattr(config, option)
    if option == "gpu_layers" and value == -1:
        return "all"
    if option == "chat_template":
        from unilect.templates import chat as templates  # with Jinja, which takes 30 ms to import

        return templates.find(value).text
    return str(value)


def _parsers(program: Program, template: str) -> dict[str, str]:
    """Return the parsers that a program needs for the answers of a model with this chat template, by option."""
    family = families.of_template(template)
    if family is None or not program.parsers:
        return {}
    of_calls, of_thoughts = getattr(family, program.parsers)
    thinks = families.may_think(template)
    return dict(zip(_PARSERS, (of_calls, of_thoughts if thinks else ""), strict=True))


def template_of(folder: Path) -> str:
    """Return the chat templates in a folder of transformers; empty where it has none that can be read."""
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        try:
            if (folder / name).stat().st_size > _MOST_TEMPLATE_BYTES:
                continue
            text = (folder / name).read_text(errors="replace")
            given: Any = text if name.endswith(".jinja") else json.loads(text)["chat_template"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        # several, as older folders have them
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ""


def _environment(config: ModelConfig) -> dict[str, str]:
    """Return the variables that a program's help is read with; of those of the table only PATH, since others may have a start's placeholders."""
    found, outside = child_environment(), process_environment()
    if (path := config.environment.get("PATH")) is not None:
        found["PATH"] = command_line.fill(path, dict.fromkeys(command_line.PLACEHOLDERS, ""), lambda name: outside.get(name, ""))  # fmt: skip
    return found
