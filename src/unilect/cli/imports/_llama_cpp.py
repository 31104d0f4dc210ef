"""
llama-server's command lines, in a file as a shell, systemd or Docker Compose reads it, and its presets of models, an INI file.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from unilect.cli import _llama_server as llama_server
from unilect.cli.imports._draft import Draft
from unilect.config.command_line import read_shell
from unilect.config.model import name_from
from unilect.core.errors import ConfigError

_IMAGE = re.compile(r"llama\.cpp:(?:server|full)[\w.-]{0,64}")
#: Variables that are called otherwise than their flags, those of llama-server without its prefix.
_OTHER_VARIABLES = {
    "LLAMA_API_KEY": "--api-key",
    "LLAMA_CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs",
    "N_PARALLEL": "--parallel",
    "BATCH": "--batch-size",
    "UBATCH": "--ubatch-size",
    "ENDPOINT_METRICS": "--metrics",
    "ENDPOINT_SLOTS": "--slots",
    "ENDPOINT_PROPS": "--props",
    "THINK": "--reasoning-format",
    "THINK_BUDGET": "--reasoning-budget",
}
_STARTS = re.compile(r"^[ \t]*ExecStart=", re.MULTILINE)
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,127}=")
_COMMENT = re.compile("[;#]")
_ALL = "*"
#: Keys of presets that are no flags of llama-server.
_LOADS = "load-on-startup"
_TRUE = ("1", "true", "on", "enabled", "yes")
_MAX_COMMANDS, _MAX_WORD = 65_536, 4096  # characters; a longer text takes the square of its length
_USE = re.compile(r"\$(?:\{(\w{1,128})(?::?-([^{}]*))?\}|(\w{1,128}))")


def find_flags(words: Sequence[str]) -> list[str] | None:
    """
    Return the flags of llama-server in a command that starts it, also in a container, with paths as they are outside; None for no such
    command. The variables that it is given are the first of them.
    """
    for start, word in enumerate(words, 1):
        in_container = _IMAGE.search(word) is not None
        if not (_is_program(word) or in_container):
            continue
        before = [*words[: start - 1]]
        mounts = [_of_mount(*one) for one in _values(before, "-v", "--volume", "--mount")]
        given = [one for _, one in _values(before, "-e", "--env")] if in_container else before
        flags = list[str]()
        for name, equals, value in (one.partition("=") for one in given):
            if equals and (flag := flag_of(name)):
                flags += _flag(flag, value)
        return [_mount(flag, mounts) for flag in (*flags, *words[start:])]
    return None


def flag_of(variable: str) -> str:
    """Return the flag that a variable of llama-server stands for; empty for another variable."""
    name = variable.removeprefix("LLAMA_ARG_")
    if name == variable:
        return _OTHER_VARIABLES.get(variable, "")
    return _OTHER_VARIABLES.get(name) or f"--{name.lower().replace('_', '-')}"


def _variables(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the variables that stand before a program, or are given to its container."""
    for flag, word in pairwise(["", *words]):
        if _is_program(word) or _IMAGE.search(word):
            return
        if _VARIABLE.match(word) and (flag[:1] != "-" or flag in ("-e", "--env")):
            yield word.partition("=")[0]


def _values(words: Sequence[str], *flags: str) -> Iterator[tuple[str, str]]:
    """Yield the values of some flags, each with its flag."""
    for flag, value in pairwise([*words, ""]):
        name, equals, own = flag.partition("=")
        if name in flags:
            yield name, own if equals else value


def _of_mount(flag: str, value: str) -> list[str]:
    """Return a folder outside of a container, and its path inside."""
    if flag != "--mount":
        return value.split(":")[:2]
    given = {name: path for name, _, path in (one.partition("=") for one in value.split(","))}
    paths = [given.get("source", given.get("src")), given.get("target", given.get("destination", given.get("dst")))]  # fmt: skip
    return [path for path in paths if path] if all(paths) else [""]


def _is_program(word: str) -> bool:
    """Return True for the name or the path of llama-server."""
    name = PurePosixPath(word.replace("\\", "/")).name.lower().removesuffix(".exe")
    return name.startswith("llama-server")


def read_commands(text: str, draft: Draft) -> None:
    """
    Take in the models of all command lines of a file.

    Raises:
        ConfigError: None of them is one of llama-server.
    """
    found, variables, exported = False, dict[str, str](), dict[str, str]()
    for words in _commands(text):
        words = [_put_in(word, variables) for word in words]
        if all(_VARIABLE.match(word) or word == "export" for word in words):
            variables |= (own := dict(word.split("=", 1) for word in words if word != "export"))
            exported |= own if words[0] == "export" else {}
            continue
        words = [*(f"{name}={value}" for name, value in exported.items()), *words]
        if (flags := find_flags(words)) is None:
            words = words[len(exported) :]
            draft.remark(f"{words[0][:64]}: is no command line of llama-server.")
            continue
        found = True
        _add_started(words, flags, draft)
    if not found:
        raise ConfigError("no command line of llama-server was found.")


def _add_started(words: Sequence[str], flags: list[str], draft: Draft) -> None:
    """Take in the model of a command that starts llama-server."""
    for name in _variables(words):
        if not flag_of(name):
            draft.remark(f"{name[:128]}: set it for unilect, whose engines inherit it.")
    if _take(flags, "--models-preset") is not None:
        draft.remark("--models-preset: import that file by itself.")
    folder = _take(flags, "--models-dir")
    with_model(flags, draft, model=folder and draft.place(folder))


def read_services(services: Mapping[str, Any], draft: Draft) -> None:
    """Take in the models of the services of Docker Compose, each as the command that starts its container."""
    for name, value in services.items():
        service, where = draft.mapping(value, f"services.{name}"), f"services.{name}"
        given = service.get("environment") or []
        pairs = [f"{key}={one}" for key, one in given.items()] if isinstance(given, dict) else given
        command = service.get("command") or []
        words = ["docker", "run"]
        for flag, items in (("-v", service.get("volumes")), ("-e", pairs)):
            words += [word for one in draft.items(items, f"{where} {flag}") for word in (flag, str(one))]  # fmt: skip
        words.append(draft.text(service.get("image"), f"{where}.image"))
        words += [*map(str, command)] if isinstance(command, list) else [word for line in _commands(str(command)) for word in line]  # fmt: skip
        if (flags := find_flags(words)) is None:
            draft.remark(f"{where}: is no llama-server.")
        else:
            _add_started(words, flags, draft)


def _take(flags: list[str], name: str) -> str | None:
    """Take a flag out of a command line; returns its value, or None where it is not there."""
    for at, flag in enumerate(flags):
        if flag == name and at + 1 < len(flags):
            value = flags[at + 1]
            del flags[at : at + 2]
            return value
        if flag.startswith(f"{name}="):
            del flags[at]
            return flag.partition("=")[2]
    return None


def _put_in(word: str, variables: dict[str, str]) -> str:
    """Return a word with the variables that the file itself has set, and the defaults that it has for others."""
    if "$" not in word or len(word) > _MAX_WORD:
        return word

    def value(use: re.Match[str]) -> str:
        other = use[0] if use[2] is None else _put_in(use[2], variables)
        return variables.get(use[1] or use[3], other)

    return _USE.sub(value, word)[:_MAX_WORD]


def _mount(word: str, mounts: list[list[str]]) -> str:
    """Return a path of a container as it is outside."""
    for outside, *inside in mounts:
        if inside and word.startswith(f"{inside[0].rstrip('/')}/"):
            return outside.rstrip("/") + word[len(inside[0].rstrip("/")) :]
    return word


def _commands(text: str) -> Iterator[list[str]]:
    """
    Yield the words of each command, without what a shell does with it.

    Raises:
        ConfigError: A quote is not closed, or the text is too long.
    """
    if len(text) > _MAX_COMMANDS:
        raise ConfigError(f"command lines of more than {_MAX_COMMANDS} characters are not read.")
    words, skips = list[str](), False
    for word, is_sign in read_shell(text):
        if is_sign and {"<", ">"} & {*word}:
            words = words[:-1] if words and words[-1] in ("1", "2") else words
            skips = True  # the file that a redirection names
        elif is_sign:
            if words:
                yield words
            words, skips = [], False
        elif skips:
            skips = False
        else:
            words.append(word)
    if words:
        yield words


def is_unit(text: str) -> bool:
    """Return True for a unit of systemd."""
    return _STARTS.search(text) is not None


def is_presets(text: str) -> bool:
    """Return True for a text whose lines are those of an INI file."""
    lines = [line for _, line in _preset_lines(text)]
    sections = [line for line in lines if line.startswith("[") and line.endswith("]")]
    return bool(sections) and not is_unit(text) and all("=" in line or line.startswith("[") for line in lines)  # fmt: skip


def _preset_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of presets with their numbers, without comments: llama.cpp takes one behind a value, too."""
    for number, line in enumerate(text.splitlines(), 1):
        if line := _COMMENT.split(line, 1)[0].strip():
            yield number, line


def read_unit(text: str, draft: Draft) -> None:
    """
    Take in the models that a unit of systemd starts.

    Raises:
        ConfigError: None of them is one of llama-server.
    """
    lines = list[str]()
    for line in text.replace("\\\n", " ").splitlines():
        key, _, value = line.strip().partition("=")
        if key == "ExecStart":
            lines.append(value.lstrip(" -@:+!"))
        elif key == "Environment":
            lines.append(f"export {value}")
    read_commands("\n".join(lines), draft)


def with_model(
    words: Sequence[str], draft: Draft, name: str | None = None, model: str | None = None
) -> str | None:
    """
    Take in the model of a command line's flags; returns its name here, or None where it cannot be served.

    Args:
        name: The name that it is to have; without one also the server's address and keys are taken in.
        model: The model, where no flag names one.
    """
    try:
        own, table, server, notices = llama_server.import_flags(words, model)
    except ConfigError as error:
        draft.leave_out(name or "of a command line", str(error))
        return None
    if name is not None and name != own:
        table["aliases"] = [one for one in table.get("aliases", []) if one != name]
    if own == _ALL:  # of a folder
        own, table["model"] = name_from(PurePosixPath(table["source"]).name), _ALL
    made = draft.add(name or own, table)
    for notice in notices:
        draft.remark(notice, made)
    if name is not None and server.get("api_keys"):
        draft.remark("--api-key: one server answers for all models here: set `api_keys`.", made)
    if name is None:
        keys = [draft.key(key, "--api-key") for key in server.pop("api_keys", [])]
        for option, value in (server | ({"api_keys": keys} if keys else {})).items():
            if draft.server.setdefault(option, value) != value:
                draft.remark(f"{option}: one server answers for all models here; the first is taken.", made)  # fmt: skip
    return made


def read_presets(text: str, draft: Draft) -> None:
    """
    Take in the models of a file of presets.

    Raises:
        ConfigError: A line is none of such a file.
    """
    shared: dict[str, str] = {}
    sections: dict[str, dict[str, str]] = {}
    section = shared
    for number, line in _preset_lines(text):
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1].strip()
            section = shared if name == _ALL else sections.setdefault(name, {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"line {number}: expected [NAME] or `key = value`.")
        section[key.strip()] = value.strip().strip('"')
    shared.pop("version", None)
    for name, own in sections.items():
        _add_preset(name, {**shared, **own}, draft)


def _add_preset(name: str, values: dict[str, str], draft: Draft) -> None:
    """Take in the model of a section, whose keys are flags without dashes, or the names of their variables."""
    loads = values.pop(_LOADS, "") in (name, *_TRUE)
    words = list[str]()
    for key, value in values.items():
        flag = next((one for one in (f"--{key}", f"-{key}") if one in llama_server.KNOWN), f"--{key}")  # fmt: skip
        flag = flag_of(key) or flag
        words += _flag(flag, value)
    model = f"gguf:{name}" if re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}(:[\w.-]{1,32})?", name) else None  # fmt: skip
    if name.lower().endswith(".gguf"):  # in a folder that the command line of the router names
        model = draft.place(name)
        draft.remark(f"{name[:128]}: put the path of the router's folder (--models-dir) before it.")
    made = with_model(words, draft, name, model)
    if made is not None and not loads:
        draft.models[made]["load"] = "demand"


def _flag(flag: str, value: str) -> list[str]:
    """Return the words of a flag and its value; of a switch that is off none."""
    if llama_server.is_switch(flag):
        return [flag] if value.lower() in ("", *_TRUE) else []
    return [flag, value] if value else [flag]
