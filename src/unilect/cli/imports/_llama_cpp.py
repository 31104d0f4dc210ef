"""
llama-server's command lines, in a file as a shell reads it, and its presets of models, an INI file.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from unilect.cli import _llama_server as llama_server
from unilect.cli.imports._draft import Draft
from unilect.config.model import name_from
from unilect.core.errors import ConfigError

_IMAGE = re.compile(r"llama\.cpp:(?:server|full)[\w.-]{0,64}")
_SHELL = frozenset(";&|()<>")
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,127}=")
_ALL = "*"
#: Keys of presets that are no flags of llama-server.
_LOADS = "load-on-startup"
_TRUE = ("1", "true", "on", "enabled", "yes")
_MAX_COMMANDS, _MAX_WORD = 65_536, 4096  # characters; a longer text takes the square of its length
_USE = re.compile(r"\$(?:\{(\w{1,128})\}|(\w{1,128}))")


def find_flags(words: Sequence[str]) -> list[str] | None:
    """Return the flags of llama-server in a command that starts it, also in a container, with paths as they are outside; None for no such command."""
    for start, word in enumerate(words, 1):
        if _is_program(word) or _IMAGE.search(word):
            pairs = pairwise(words[:start])
            mounts = [path.split(":")[:2] for flag, path in pairs if flag in ("-v", "--volume")]
            return [_mount(flag, mounts) for flag in words[start:]]
    return None


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
    found, variables = False, dict[str, str]()
    for words in _commands(text):
        words = [_put_in(word, variables) for word in words]
        if all(_VARIABLE.match(word) or word == "export" for word in words):
            variables |= dict(word.split("=", 1) for word in words if word != "export")
            continue
        if (flags := find_flags(words)) is None:
            draft.remark(f"{words[0][:64]}: is no command line of llama-server.")
            continue
        found = True
        for word in words[: -len(flags) or None]:
            if _VARIABLE.match(word):
                draft.remark(f"{word.partition('=')[0]}: set it for unilect, whose engines inherit it.")  # fmt: skip
        if _take(flags, "--models-preset") is not None:
            draft.remark("--models-preset: import that file by itself.")
        folder = _take(flags, "--models-dir")
        with_model(flags, draft, model=folder and draft.place(folder))
    if not found:
        raise ConfigError("no command line of llama-server was found.")


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
    """Return a word with the variables that the file itself has set."""
    if "$" not in word or len(word) > _MAX_WORD:
        return word
    return _USE.sub(lambda use: variables.get(use[1] or use[2], use[0]), word)[:_MAX_WORD]


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
    lines = [line for line in text.replace("\\\n", " ").split("\n") if line.lstrip()[:1] != "#"]
    lexer = shlex.shlex(" ; ".join(lines), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words, skipped = list[str](), 0
    try:
        for word in lexer:
            is_sign = _SHELL.issuperset(word)
            if is_sign and {"<", ">"} & {*word}:
                words = words[:-1] if words and words[-1] in ("1", "2") else words
                skipped = max(skipped, 1)  # the file that a redirection names
            elif is_sign:
                if words:
                    yield words
                words, skipped = [], 0
            elif skipped:
                skipped -= 1
            elif word.startswith("#"):
                skipped = _MAX_COMMANDS  # to the end of the line
            else:
                words.append(word)
    except ValueError as error:
        raise ConfigError(f"it cannot be read as a shell would ({error}).") from error
    if words:
        yield words


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
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
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
        key = key.removeprefix("LLAMA_ARG_").lower().replace("_", "-") if key.isupper() else key
        flag = next((one for one in (f"--{key}", f"-{key}") if one in llama_server.NAMES), f"--{key}")  # fmt: skip
        words += _flag(flag, value)
    hub = f"gguf:{name}" if re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}(:[\w.-]{1,32})?", name) else None  # fmt: skip
    made = with_model(words, draft, name, hub)
    if made is not None and not loads:
        draft.models[made]["load"] = "demand"


def _flag(flag: str, value: str) -> list[str]:
    """Return the words of a flag and its value; of a switch that is off none."""
    if llama_server.is_switch(flag):
        return [flag] if value.lower() in ("", *_TRUE) else []
    return [flag, value] if value else [flag]
