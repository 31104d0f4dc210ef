"""Presets: tables of models with `base`, which are further names for another table's model, with settings of their own."""

from collections.abc import Mapping

from msgspec import structs

from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig
from unilect.config.values import nearest

_ALL = "*"
#: Options that a preset never takes from its base: they are about one name.
_OWN = ("base", "aliases", "limits", "unlisted")
#: Options whose values a preset adds to those of its base.
_ADDED = ("defaults", "completion_defaults", "stop")


def check_presets(models: Mapping[str, ModelConfig]) -> None:
    """
    Check that the base of each preset is a model of its own, that no preset has options of an engine, and that no fallback has the
    same engine.

    Raises:
        ConfigError: It is not so; all is told.
    """
    found = ErrorCollector()
    for name, table in models.items():
        other = models.get(table.fallback or "")
        if other is not None and other is not table and (table.base or name) == (other.base or table.fallback):  # fmt: skip
            found.at(
                ("models", name, "fallback"),
                f"`{table.fallback}` has the same backends, and fails with them. Name another model.",
            )
        if table.base is None:
            continue
        with found:
            _check_base(models, name, table.base)
        for option_name, one in ModelConfig.declared.items():
            if table.is_set(option_name) and not one.of_presets:
                found.at(
                    ("models", name, option_name),
                    f"belongs to the model, not to a preset of it: set it in [models.{table.base}], or leave `base` out.",
                )
    found.raise_all()


def _check_base(models: Mapping[str, ModelConfig], name: str, base: str) -> None:
    """
    Check the base of a preset.

    Raises:
        ConfigError: It is no model that a preset can have.
    """
    path = ("models", name, "base")
    if base not in models:
        owner = next((known for known, one in models.items() if base in one.aliases), None)
        near = owner or nearest(base, [known for known, one in models.items() if one.base is None])
        hint = f"; did you mean `{near}`?" if near else ". Name another model of the file."
        raise OptionError(path, f"unknown model `{base[:100]}`{hint}")
    if (of_base := models[base].base) is not None:
        raise OptionError(path, f"`{base}` is a preset, too. Name the model, `{of_base}`.")
    if models[base].model == _ALL:
        raise OptionError(path, f"`{base}` is no model, but all models of a server. Name a model.")


def resolve_presets(models: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Return the tables with all that presets take from their bases: what they leave out, and what they add to."""
    resolved = dict(models)
    for name, table in models.items():
        if table.base is not None and (base := models.get(table.base)) is not None:
            resolved[name] = _resolve(name, table, base)
    return resolved


def _resolve(name: str, table: ModelConfig, base: ModelConfig) -> ModelConfig:
    """Return the table of a preset with what it takes from its base."""
    changes = {own: getattr(table, own) for own in _OWN}
    for option_name, one in ModelConfig.declared.items():
        if one.of_presets and table.is_set(option_name) and option_name not in _ADDED:
            changes[option_name] = getattr(table, option_name)
    for added in ("defaults", "completion_defaults"):
        changes[added] = getattr(base, added) | getattr(table, added)
    changes["stop"] = [*base.stop, *table.stop]
    merged = structs.replace(base, **changes)
    return structs.replace(merged, fallback=None) if merged.fallback == name else merged
