"""The command line of a model: its words, its environment, and what is filled in at a start."""

from collections.abc import Mapping
from shutil import which
from typing import Any

from unilect.config import command_line
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.runtime.child_environment import child_environment


class Line:
    """
    The command line of a model, checked.

    Args:
        config: The model's settings.
        values: The placeholders that are known before a start.
        environment: Where `$NAME` is looked up.
        finds: It need not say where the server listens.

    Attributes:
        has_socket, has_key: It names these.
        finds: As given.
        model: The model's name on the server; None: detected.
        places: How many requests the server takes at a time, where its command says so.
        secrets: What its log must not repeat.

    Raises:
        ConfigError: It cannot be run so.
    """

    def __init__(
        self,
        config: ModelConfig,
        values: Mapping[str, str],
        environment: Mapping[str, str],
        finds: bool = False,
    ) -> None:
        self._values, self._outside = dict(values), environment
        self._words = command_line.split_words(config.command or ())
        stop, option = config.stop_command, "stop_command"
        self._stop_words = [] if stop is None else command_line.split_words(stop, option)
        used = command_line.placeholders_in(self._words, command_line.PLACEHOLDERS)
        in_stop = command_line.placeholders_in(self._stop_words, command_line.OF_STOP, option)
        self._own = dict(config.environment)
        for name, text in self._own.items():
            if not name or "=" in name or "\0" in name + text:
                raise ConfigError(
                    f"environment: {name[:64]!r} cannot be set: a variable has a name without `=`, and neither name nor value holds the character NUL."
                )
        own = [*self._own.values()]
        used |= command_line.placeholders_in(own, command_line.PLACEHOLDERS, "environment")
        if not finds and len({"port", "socket"} & used) != 1:
            what = "both" if "port" in used else "neither"
            raise ConfigError(
                f"command: has {what} of `{{port}}` and `{{socket}}`. Say with one of them where the server is to listen, such as "
                "`--port {port}`; a server on a unix socket takes `{socket}`."
            )
        _check_values(config, used, in_stop, values)
        self.finds, self.model = finds, _model_of(config, values)
        self.has_socket, self.has_key = "socket" in used, "key" in used
        self.places = config.most_parallel if "parallel" in used else None
        names = command_line.variables_in([*self._words, *self._stop_words, *own])
        self.secrets = [self._look_up(name) for name in sorted(names)]
        filled = self.fill({"port": "0", "socket": "", "key": "", "pid": "0"})
        program, path = filled["words"][0], filled["environment"].get("PATH")
        if which(program, path=path) is None:
            raise ConfigError(
                f"command: there is no program `{program}` that can be run. Install it, or write its path; PATH is {path}."
            )

    def fill(self, own: Mapping[str, str]) -> dict[str, Any]:
        """Return the words of both commands and the environment, with the placeholders of a start, too."""
        values = {**self._values, **own}
        filled = {
            "words": [command_line.fill(word, values, self._look_up) for word in self._words],
            "stop_words": [
                command_line.fill(word, values, self._look_up) for word in self._stop_words
            ],
        }
        own_variables = {
            name: command_line.fill(text, values, self._look_up) for name, text in self._own.items()
        }
        return {**filled, "environment": child_environment() | own_variables}

    def _look_up(self, name: str) -> str:
        found = self._outside.get(name)
        if found is None:
            raise ConfigError(
                f"command: the environment variable {name} is not set. Set it, or double the sign to mean the text: $${name}."
            )
        return found


def _model_of(config: ModelConfig, values: Mapping[str, str]) -> str | None:
    """
    Return the model's name on the server, which may be the path that it was given.

    Raises:
        ConfigError: A placeholder in it is none, or has no value.
    """
    if config.model is None:
        return None
    used = command_line.placeholders_in([config.model], ("file", "folder", "name"), "model")
    if missing := used - values.keys():
        raise ConfigError(f"model: `{{{missing.pop()}}}` needs a `source`, and a `command` that says it.")  # fmt: skip
    return command_line.fill_placeholders(config.model, values)


def _check_values(
    config: ModelConfig, used: set[str], in_stop: set[str], values: Mapping[str, str]
) -> None:
    """
    Check that the placeholders of a command have values, and that what is set has a placeholder.

    Raises:
        ConfigError: One has none.
    """
    for name in ("context", "parallel", "threads"):
        if config.is_set(name) and name not in used:
            raise ConfigError(
                f"{name}: has no effect, since `command` does not say `{{{name}}}`. Write it there, or leave `{name}` out."
            )
    missing = sorted((used | in_stop) - {"port", "socket", "key", "pid"} - values.keys())
    if not missing:
        return
    needs = {
        "file": "a GGUF file as `source`, such as `models/a.gguf` or `gguf:org/repo:Q4_K_M`",
        "folder": "a folder of transformers as `source`, such as `hf:org/name`",
    }
    need = needs.get(missing[0], f"`{missing[0]}` to be set")
    raise ConfigError(f"command: `{{{missing[0]}}}` needs {need}.")
