"""
Ollama's Modelfiles: a model, its parameters and its system message.

Source: https://docs.ollama.com/modelfile
"""

import re
from collections.abc import Iterator
from typing import Any

from unilect.cli.imports._draft import Draft
from unilect.config.foreign_names import parameter_meant, why_absent
from unilect.config.hints import parameters
from unilect.core.errors import ConfigError
from unilect.hub.stores import find_in_ollama
from unilect.models.source_names import name_source

_INSTRUCTIONS = (
    "FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES", "RENDERER", "PARSER",
)  # fmt: skip
_OLLAMA = "http://127.0.0.1:11434/v1"
_QUOTES = '"""', '"'
#: parameter -> option of a model
_OPTIONS = {
    "num_ctx": "context",
    "num_gpu": "gpu_layers",
    "num_thread": "threads",
    "num_batch": "batch",
}
_PARAMETERS = {"num_keep": "n_keep", "num_predict": "max_tokens"}
_HUB = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/([\w.-]{1,96}/[\w.-]{1,96})(?::([\w.-]{1,64}))?")  # fmt: skip
_MAX_ITEMS = 1000  # of a list
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
_FIRST = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*+[ \t]*FROM[ \t]", re.IGNORECASE)


def is_modelfile(text: str) -> bool:
    """Return True for a text that begins as a Modelfile does."""
    return _FIRST.match(text) is not None


def read(text: str, draft: Draft, name: str) -> None:
    """
    Take in all of a file.

    Args:
        name: The model's, where its own file says none.

    Raises:
        ConfigError: A line is none of a Modelfile.
    """
    table: dict[str, Any] = {}
    remarks: list[str] = []
    for line, instruction, name_of, value in _instructions(text):
        match instruction:
            case "FROM" if "source" in table:
                remarks += _add_projector(line, value, table)
            case "FROM":
                table |= _source(value, draft)
            case "SYSTEM" if value:
                table["system"] = value
            case "ADAPTER":
                _append(table, "lora", value)
            case "PARAMETER":
                remarks += _set_parameter(line, name_of.lower(), value, table)
            case "TEMPLATE":
                remarks.append(f"line {line}: TEMPLATE is in Go's language; the file's own template is used. `chat_template` sets another one.")  # fmt: skip
            case _:
                remarks.append(f"line {line}: {instruction} has no counterpart here.")
    source = table.get("source", "")
    if not source:
        raise ConfigError("it has no FROM, so it names no model.")
    made = draft.add(name or name_source(source)[0], table)
    if "model" in table:
        draft.remark(f"FROM {table['model']}: is not in Ollama's store on this machine, so a running Ollama is asked for it.", made)  # fmt: skip
    for remark in remarks:
        draft.remark(remark, made)


def _instructions(text: str) -> Iterator[tuple[int, str, str, str]]:
    """
    Yield the instructions, each with the number of its line, what a parameter or a message begins with, and its value.

    Raises:
        ConfigError: A line is none.
    """
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, value = _cut_word(line)
        instruction = word.upper()
        if instruction not in _INSTRUCTIONS:
            raise ConfigError(f"line {number}: {word[:64]!r} is no instruction of a Modelfile.")
        name, value = _cut_word(value) if instruction in ("PARAMETER", "MESSAGE") else ("", value)
        quotes = next((one for one in _QUOTES if value.startswith(one)), "")
        if quotes:
            parts = [value.removeprefix(quotes)]
            while not _closes(parts[-1], quotes, bool(name)):
                after = next(lines, None)
                if after is None:
                    raise ConfigError(f"line {number}: its {quotes} is not closed.")
                parts.append(after[1].rstrip())
            parts[-1] = parts[-1].rpartition(quotes)[0]  # a comment may be behind it
            value = "\n".join(parts)
        elif name:
            value = value.partition(" #")[0].rstrip()
        yield number, instruction, name, value if name else value.strip()


def _closes(text: str, quotes: str, may_go_on: bool) -> bool:
    """Return True for a line in which a quoted value ends; quotes may stand within one that is all of an instruction."""
    return quotes in text if may_go_on or quotes == _QUOTES[0] else text.endswith(quotes)


def _cut_word(text: str) -> tuple[str, str]:
    """Return the first word of a line, and what is behind it."""
    word, *rest = text.split(maxsplit=1) or [""]
    return word, rest[0].strip() if rest else ""


def _source(value: str, draft: Draft) -> dict[str, Any]:
    """Return the source of a model; of one that Ollama's store lacks a running Ollama, which may have it."""
    if hub := _HUB.fullmatch(value):
        return {"source": f"gguf:{hub[1]}:{hub[2] or 'Q4_K_M'}"}
    if _is_file(value):
        return {"source": draft.place(value)}
    if value and find_in_ollama(value) is not None:
        return {"source": f"ollama:{value}"}
    return {"source": _OLLAMA, "model": value} if value else {}


def _append(table: dict[str, Any], option: str, value: str) -> None:
    """Append a text to a list, which has each once, up to a bound that no real file comes to."""
    values = table.setdefault(option, [])
    if len(values) < _MAX_ITEMS and value not in values:
        values.append(value)


def _add_projector(line: int, value: str, table: dict[str, Any]) -> list[str]:
    """Take in a further FROM, which is the file of the model's vision; returns what is to be remarked."""
    if "mmproj" in table or not _is_file(value):
        return [f"line {line}: FROM {value[:128]}: a model has one FROM, and a second one for its projector; left out."]  # fmt: skip
    table["mmproj"] = value
    return []


def _is_file(value: str) -> bool:
    return (
        value == "." or value.startswith(("/", "./", "../", "~")) or value.lower().endswith(".gguf")
    )


def _set_parameter(line: int, name: str, value: str, table: dict[str, Any]) -> list[str]:
    """Set a parameter; returns what is to be remarked."""
    if name == "stop":
        _append(table, "stop", value)
        return []
    if not _NUMBER.fullmatch(value):
        return [f"line {line}: PARAMETER {name[:64]}: has no counterpart here, or is no number."]
    number = float(value) if "." in value else int(value)
    if name in _OPTIONS:
        table[_OPTIONS[name]] = number
        return []
    ours = _PARAMETERS.get(name) or (name if name in parameters() else parameter_meant(name))
    if not ours:
        why = why_absent(name)
        return [f"line {line}: PARAMETER {name[:64]}: has no counterpart here{f': {why}' if why else ''}."]  # fmt: skip
    if ours != "max_tokens" or number > 0:  # else as many as fit
        table.setdefault("defaults", {})[ours] = number
    return []
