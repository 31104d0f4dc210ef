"""llama-swap's commands of other servers than llama-server, as the options of a model by `command`."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from unilect.cli.imports._draft import Draft
from unilect.config.command_line import as_written

_MACRO = re.compile(r"\$\{(PORT|PID|env\.\w{1,100})\}")
_OURS = {"PORT": "{port}", "PID": "{pid}"}
_PORT = re.compile(r"https?://[^/\s]{1,255}:(\d{2,5})(?:/|$)")


def read_command(
    where: str, words: Sequence[str], proxy: str, model: dict[str, Any], draft: Draft
) -> dict[str, Any]:
    """
    Return the options of a model whose server is started by a command; none where it is not known which port the server is to take.

    Args:
        where: The model, for remarks.
        proxy: The server's address, where it is not the default one.
        model: The model as it is there; what is read is taken out.
    """
    command = [_write(word) for word in words]
    if not any("{port}" in word for word in command):
        port = _PORT.match(proxy)
        number = re.compile(rf"(?<!\d){port[1]}(?!\d)") if port else re.compile(r"(?!)")
        command = [number.sub("{port}", word) for word in command]
    if not command or not any("{port}" in word for word in command):
        return {}
    table: dict[str, Any] = {"command": command}
    health = draft.text(model.pop("checkEndpoint", None), f"{where}.checkEndpoint")
    if health.startswith("/"):
        table["health"] = health
    elif health:
        draft.remark(f"{where}.checkEndpoint {health[:64]}: a server is ready once it answers.")
    if stop := draft.text(model.pop("cmdStop", None), f"{where}.cmdStop"):
        table["stop_command"] = [_write(word) for word in _split(stop)]
    if name := draft.text(model.pop("useModelName", None), f"{where}.useModelName"):
        table["model"] = name
    if seconds := draft.number(model.pop("unloadTimeout", None), f"{where}.unloadTimeout"):
        table["stop_timeout_s"] = seconds
    variables: dict[str, str] = {}
    for variable in draft.items(model.pop("env", None), f"{where}.env"):
        name, equals, value = str(variable).partition("=")
        variables |= {name: _write(value)} if equals else {}
    return table | ({"environment": variables} if variables else {})


def _split(text: str) -> list[str]:
    """Split a command that stops a server; one with an open quote is left out."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _write(word: str) -> str:
    """Return a word with placeholders as they are here, and what would be read as one written so that it is not."""
    pieces = _MACRO.split(word)
    for at, piece in enumerate(pieces):
        if at % 2:
            pieces[at] = _OURS.get(piece) or f"${{{piece.removeprefix('env.')}}}"
        else:
            pieces[at] = as_written(piece, known=())
    return "".join(pieces)
