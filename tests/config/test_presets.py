"""presets.py: tables that are further names for another table's model."""

import pytest

from unilect.config.limits import Limits
from unilect.config.model import ModelConfig, Price
from unilect.config.names import check_names
from unilect.config.presets import resolve_presets
from unilect.core.errors import ConfigError

BIG = ModelConfig(
    source="echo:",
    aliases=["x"],
    defaults={"temperature": 0.5, "top_k": 3},
    stop=["a"],
    price=Price(prompt=1.0),
    limits=Limits(parallel=2),
    unlisted=True,
    fallback="spare",
)
SPARE = ModelConfig(source="echo:")
MODELS = {"big": BIG, "spare": SPARE}


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("p", ModelConfig(base="bgi"), "base: unknown model `bgi`; did you mean `big`"),
        ("p", ModelConfig(base="x"), "base: unknown model `x`; did you mean `big`"),
        ("p", ModelConfig(base="q"), "base: `q` is a preset, too. Name the model, `big`"),
        ("p", ModelConfig(base="every"), "base: `every` is no model"),
        ("p", ModelConfig(base="big", context=512), r"context: belongs to the model.*\[models.big\]"),
        ("p", ModelConfig(base="big", source="x.gguf"), "source: belongs to the model"),
        ("p", ModelConfig(base="big", idle_stop_s=5.0), "idle_stop_s: belongs to the model"),
        ("p", ModelConfig(base="big", fallback="big"), "fallback: .* has the same backends"),
        ("p", ModelConfig(base="big", fallback="q"), "fallback: .* has the same backends"),
        ("p", ModelConfig(base="p"), "base: `p` is a preset"),
        ("big", ModelConfig(fallback="q"), "fallback: .* has the same backends"),
    ],
)  # fmt: skip
def test_what_is_no_preset(name: str, table: ModelConfig, words: str) -> None:
    """A base is another table's model, and what belongs to an engine is refused where it has no effect."""
    others = {"q": ModelConfig(base="big"), "every": ModelConfig(source="http://h/v1", model="*")}
    with pytest.raises(ConfigError, match=f"models.{name}.{words}"):
        check_names(MODELS | others | {name: table})


def test_a_cycle_of_what_a_preset_inherits() -> None:
    """A fallback that comes back by the fallback of a preset's base is refused."""
    cyclic = {"spare": ModelConfig(source="echo:", fallback="q"), "q": ModelConfig(base="big")}
    with pytest.raises(ConfigError, match="q -> spare -> q is a cycle"):
        check_names(MODELS | cyclic)


def test_what_a_preset_takes_from_its_base() -> None:
    """It has its base's engine and settings, adds to defaults and stop sequences, and shares no name, limit or place in lists."""
    preset = ModelConfig(base="big", defaults={"top_k": 4}, stop=["b"], system="Be brief.")
    resolved = resolve_presets(MODELS | {"p": preset})
    found = resolved["p"]

    assert BIG == resolved["big"]
    assert ("echo:", "spare", BIG.price) == (found.source, found.fallback, found.price)
    assert {"temperature": 0.5, "top_k": 4} == found.defaults
    assert (["a", "b"], "Be brief.") == (found.stop, found.system)
    assert ([], None, False) == (found.aliases, found.limits, found.unlisted)


def test_a_preset_is_not_its_own_fallback() -> None:
    """A preset that is its base's fallback has none of its base."""
    assert None is resolve_presets(MODELS | {"spare": ModelConfig(base="big")})["spare"].fallback
