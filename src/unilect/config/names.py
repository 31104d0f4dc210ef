"""The names of models, aliases, fallbacks and bases: what they must not contradict."""

from collections.abc import Mapping

from unilect.config.mistakes import ErrorCollector, OptionError
from unilect.config.model import ModelConfig
from unilect.config.presets import check_presets, resolve_presets
from unilect.config.values import nearest


def check_names(models: Mapping[str, ModelConfig]) -> None:
    """
    Check that no name is two models', and that every fallback, and every base of a preset, is a model.

    Raises:
        ConfigError: It is not so.
    """
    found = ErrorCollector()
    owners: dict[str, str] = {}
    for name, model in models.items():
        for alias in (name, *model.aliases):
            if alias in owners:
                found.add(
                    f"models.{name}: the name `{alias}` is already used by models.{owners[alias]}. Rename one of them.",
                    ("models", name, "aliases"),
                )
            owners.setdefault(alias, name)
    resolved = resolve_presets(models)
    for name, model in models.items():
        with found:
            _check_fallback(resolved, name, resolved[name])
        with found:
            _check_known(models, name, "while_loading", model.while_loading)
    with found:
        check_presets(models)
    found.raise_all()


def _check_fallback(models: Mapping[str, ModelConfig], name: str, model: ModelConfig) -> None:
    """
    Check that a fallback is a model, and that following fallbacks, also those that presets have of their bases, comes to an end.

    Raises:
        ConfigError: It is not so.
    """
    seen, path = [name], ("models", name, "fallback")
    while model.fallback is not None:
        if model.fallback not in models:
            base = models.get(model.base or "")
            if len(seen) > 1 or (base is not None and base.fallback == model.fallback):
                return  # told of the model whose fallback it is
            _check_known(models, name, "fallback", model.fallback)
        if model.fallback in seen:
            if seen[0] != min(seen[seen.index(model.fallback) :]):
                return  # told of another model of the circle
            raise OptionError(
                path, f"{' -> '.join([*seen, model.fallback])} is a cycle. Remove one fallback."
            )
        seen.append(model.fallback)
        model = models[model.fallback]


def _check_known(
    models: Mapping[str, ModelConfig], name: str, option: str, other: str | None
) -> None:
    """
    Check that a model that an option names is another one of the file.

    Raises:
        ConfigError: It is not so.
    """
    if other is None or (other in models and other != name):
        return
    near = nearest(other, [one for one in models if one != name])
    hint = f"; did you mean `{near}`?" if near else ". Name another model of the file."
    what = "the model itself," if other == name else "unknown model"
    raise OptionError(("models", name, option), f"{what} `{other[:100]}`{hint}")
