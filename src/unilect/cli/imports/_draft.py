"""
A configuration in the making: options, and remarks about what has no counterpart.

Whatever a foreign file says, what is written is valid: an option that is not is left out, with its reason as a remark.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unilect.config.digests import check_secrets
from unilect.config.document import write_key, write_value
from unilect.config.hints import parameters, unknown_option
from unilect.config.mistakes import ErrorCollector, OptionPath
from unilect.config.model import ModelConfig, check_options, name_from, wrong_name
from unilect.config.option import Option, map_texts
from unilect.config.presets import check_presets
from unilect.config.server import Config, is_loopback, process_environment
from unilect.config.values import convert_table
from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.models import sources
from unilect.models.checked_defaults import check_defaults

MAX_MODELS = 500
_SHOWN = 300  # characters of a remark
#: A variable of the environment, as LiteLLM, llama-swap and a shell write it.
_VARIABLE = re.compile(
    r"os\.environ/(\w{1,128})|\$\{(?:env\.)?(\w{1,128})\}|\$([A-Za-z_]\w{0,127})"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_REMARKS = 200
_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def _in_line(text: str) -> str:
    """Return the beginning of a foreign text as the text of a comment."""
    return " ".join(_CONTROL.sub(" ", text[: 2 * _SHOWN]).split())[:_SHOWN]


class Draft:
    """
    A configuration in the making.

    Args:
        folder: That of the foreign file, which relative paths are relative to.

    Attributes:
        server: The options of the server.
        models: The models' tables by name, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.server: dict[str, Any] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self._folder = folder
        self._remarks: dict[str, dict[str, None]] = {}  # in order, each once

    def remark(self, text: str, model: str = "") -> None:
        """Say something about a model, or the whole: what has no counterpart, and why."""
        line = _in_line(text)
        remarks = self._remarks.setdefault(model, {})
        if len(remarks) >= _MAX_REMARKS:
            line = "There is more that has no counterpart."
        remarks[line] = None

    def absent(self, names: Iterable[str], where: str, model: str = "") -> None:
        """Say of some names in a foreign table that they have no counterpart; their values may be secret."""
        for name in names:
            self.remark(f"{where}{name}: has no counterpart here.", model)

    def add(self, name: str, table: Mapping[str, Any]) -> str:
        """
        Take a model in, with its paths as they are from anywhere; returns its name, which is another one where no model can have this one, or another model has it.

        Raises:
            ConfigError: There are too many.
        """
        if len(self.models) >= MAX_MODELS:
            raise ConfigError(f"it has more than {MAX_MODELS} models. Import parts of it.")
        own = name_from(name) if wrong_name(name) else name
        number = 1
        while own in self.models:
            number += 1
            own = f"{name_from(name)[:120]}-{number}"
        given = {key: value for key, value in table.items() if value not in (None, [], {})}
        self.models[own] = map_texts(given, ModelConfig, self._move)
        if own != name:
            self.remark(f"is called {name[:128]} there, which is no name here, or another model's.", own)  # fmt: skip
        return own

    def leave_out(self, name: str, why: str) -> None:
        """Say of a model that it cannot be served, or of another source of one that is here."""
        if name in self.models:
            return self.remark(f"another source of it is left out: {why}", name)
        self.remark(f"the model {name[:128]} is left out: {why}")
        for remark in self._remarks.pop(name, {}):
            self.remark(f"{name[:128]}: {remark}")

    def place(self, path: str) -> str:
        """Return a path as it is from anywhere; variables of the environment are put in, and one that is not set is told."""
        path, missing = self.put_in(path)
        for name in missing:
            self.remark(f"the variable {name} is not set: put its value into the path {path}.")
        return path if path.startswith("~") else str((self._folder / path).absolute())

    def put_in(self, text: str) -> tuple[str, list[str]]:
        """Return a text with the variables of the environment put in, and the names of those that are not set, which stay."""
        missing: list[str] = []

        def value(use: re.Match[str]) -> str:
            name = use[1] or use[2] or use[3]
            if (found := process_environment().get(name)) is None:
                missing.append(name)
            return use[0] if found is None else found

        return _VARIABLE.sub(value, text), missing

    def key(self, value: Any, where: str) -> str:
        """
        Return a secret as a configuration has it: the name of its variable stays a reference, in whatever form it is written. Empty,
        with a remark, for what is no key.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.remark(f"{where}: is a number there, and the same digits here.")
            value = str(value)
        text = self.text(value, where).strip()
        if found := _VARIABLE.fullmatch(text):
            return f"${found[1] or found[2] or found[3]}"
        if _VARIABLE.search(text):
            self.remark(f"{where}: a variable is a part of it, and here it is all of a key: set one that holds the whole key; left out.")  # fmt: skip
            return ""
        return text

    def _move(self, option: Option, text: str, path: OptionPath) -> str:
        return option.path(text, self.place) if option.path else text

    def mapping(self, value: Any, where: str) -> dict[str, Any]:
        """Return a value that is a mapping; an empty one, with a remark, of anything else."""
        return {str(key): one for key, one in self._as(dict, value, where, {}).items()}

    def items(self, value: Any, where: str) -> list[Any]:
        """Return a value that is a list; an empty one, with a remark, of anything else."""
        return list(self._as(list, value, where, []))

    def text(self, value: Any, where: str) -> str:
        """Return a value that is a text; an empty one, with a remark, of anything else."""
        return str(self._as(str, value, where, ""))

    def number(self, value: Any, where: str) -> float | None:
        """Return a value that is a number, or a text that is one; None, with a remark, of anything else."""
        if isinstance(value, str) and re.fullmatch(
            r"-?\d{1,18}(\.\d{1,9})?([eE]-?\d{1,2})?", value
        ):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value if abs(value) < 1e18 else None
        self._as(int, value, where, 0)
        return None

    def _as(self, kind: type, value: Any, where: str, empty: Any) -> Any:
        if isinstance(value, kind):
            return value
        if value is not None:
            found = _KINDS.get(type(value), "another value")
            self.remark(f"{where}: expected {_KINDS[kind]}, found {found}; left out.")
        return empty

    def finish(self) -> None:
        """Leave out what no configuration can have."""
        self._check_server()
        taken = set(self.models)
        for name in list(self.models):
            self._check_table(name, taken)
        self._check_bonds()
        if not self.models:
            self.remark("there is no model that can be served: without one the bundled model is.")

    def _check_server(self) -> None:
        keys = self.server.pop("api_keys", [])
        for key in dict.fromkeys(filter(None, keys)):
            wrong = ErrorCollector()
            check_secrets([key], ("api_keys",), wrong)
            for error in wrong.errors:
                self.remark(f"{error} Left out.")
            if not wrong.errors:
                self.server.setdefault("api_keys", []).append(key)
        if keys and "api_keys" not in self.server:
            self.remark("api_keys: none is left, so no key is asked for: set one.")
        host = self.server.get("host")
        if isinstance(host, str) and not (is_loopback(host) or self.server.get("api_keys")):
            del self.server["host"]
            self.remark(f"host {host[:64]}: other machines reach it, and there is no API key: set `api_keys`, then `host`.")  # fmt: skip
        found = ErrorCollector()
        self.server = convert_table(Config, self.server, (), unknown_option, found)
        for error in found.errors:
            self.remark(f"{error} Left out.")

    def _check_table(self, name: str, taken: set[str]) -> None:
        """Leave out the options of a model that are wrong, and the model where it has no source that can be served."""
        table, path = self.models[name], ("models", name)
        aliases = []
        for alias in table.pop("aliases", []):
            if isinstance(alias, str) and wrong_name(alias) is None and alias not in taken:
                taken.add(alias)
                aliases.append(alias)
            else:
                self.remark(f"alias {str(alias)[:128]}: is no name here, or another model's; left out.", name)  # fmt: skip
        table |= {"aliases": aliases} if aliases else {}
        known = parameters()
        given = self.mapping(table.get("defaults"), f"models.{name}.defaults")
        for parameter in given.keys() - known:
            del table["defaults"][parameter]
            self.remark(f"{parameter}: is no parameter of requests; left out.", name)
        found = ErrorCollector()
        convert_table(ModelConfig, table, path, unknown_option, found)
        self._drop(name, found)
        config, kinds, found = ModelConfig(**_structs(table)), dict[str, str](), ErrorCollector()
        try:
            kinds = sources.kinds(config)
        except ConfigError as error:
            del self.models[name]
            return self.leave_out(name, str(error))
        if config.base is None:
            with found:
                check_options(name, config, kinds)
        with found:
            check_defaults(name, config.defaults, ChatRequest, CompletionRequest)
        self._drop(name, found)

    def _check_bonds(self) -> None:
        """Leave out presets of models that are not there, and fallbacks to such."""
        for name, table in list(self.models.items()):
            if "base" in table and "base" in self.models.get(table["base"], {"base": ""}):
                del self.models[name]
                self.leave_out(name, f"there is no model {table['base']}.")
        for name, table in self.models.items():
            if "fallback" not in table:
                continue
            seen, at = {name}, table["fallback"]
            while at in self.models and at not in seen:
                seen.add(at)
                at = self.models[at].get("fallback", "")
            if at:
                del table["fallback"]
                self.remark(f"fallback: `{at[:128]}` is no model here, or falls back to this one; left out.", name)  # fmt: skip
        tables = {name: ModelConfig(**_structs(table)) for name, table in self.models.items()}
        found = ErrorCollector()
        with found:
            check_presets(tables)
        for error in found.errors:
            self.models[str(error.path[1])].pop(str(error.path[2]), None)
            self.remark(f"{error} Left out.", str(error.path[1]))

    def _drop(self, name: str, found: ErrorCollector) -> None:
        """Leave out what errors are about."""
        for error in found.errors:
            *within, option = [str(step) for step in error.path[2:]]
            table = self.models[name]
            for step in within:
                table = table[step] if isinstance(table.get(step), dict) else {}
            value = table.pop(option, None)
            good = _good_items(option, value) if isinstance(value, list) and not within else []
            if 0 < len(good) < len(value or ()):  # it is about an item
                table[option] = good
            self.remark(f"{error} Left out.", name)

    def to_toml(self, title: str) -> str:
        """Write it as a file."""
        lines = [f"# {_in_line(title)}", *self._comments("")]
        lines += [f"{name} = {write_value(value)}" for name, value in self.server.items()]
        for name, table in self.models.items():
            lines += ["", f"[models.{write_key(name)}]", *self._comments(name)]
            lines += [f"{option} = {write_value(value)}" for option, value in table.items()]
        return "\n".join(lines) + "\n"

    def _comments(self, model: str) -> list[str]:
        return [f"# {remark}" for remark in self._remarks.get(model, ())]


def _good_items(option: str, items: list[Any]) -> list[str]:
    """Return the texts of a list that an option can have; none of a list of numbers, of which each has its place."""
    texts = [item for item in items if isinstance(item, str)]
    return [text for text in texts if _structs({option: [text]})] if texts == items else []


def _structs(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table that is right, as its options have them."""
    return convert_table(ModelConfig, table, (), unknown_option, ErrorCollector())
