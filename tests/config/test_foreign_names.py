"""Tests of unilect.config.foreign_names, and of what a file's mistakes say with it."""

from pathlib import Path

import pytest

from unilect.config import foreign_names
from unilect.config.hints import parameters
from unilect.config.limits import Limits
from unilect.config.load import load
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError


def test_the_table_is_of_names_that_there_are() -> None:
    """What the table points at are options, limits and parameters; no option of ours is said to be absent."""
    options = {
        name
        for kind in (Config, ModelConfig, StoreConfig, Limits)
        for name in kind.__struct_fields__
    }

    assert foreign_names._OPTIONS.keys() <= options
    assert foreign_names._PARAMETERS.keys() <= parameters()
    assert not foreign_names._ABSENT.keys() & options
    assert not foreign_names._ABSENT.keys() & foreign_names._MEANT.keys()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ttl = 5", "did you mean `idle_stop_s`, in seconds?"),
        ('keep_alive = "5m"', "did you mean `idle_stop_s`, in seconds?"),
        ("n_ctx = 512", "did you mean `context`?"),
        ("ngl = 99", "did you mean `gpu_layers`?"),
        ("rpm = 5", "put it under `limits`: `limits = { requests_per_minute = 5 }`."),
        ("thinking = false", "`defaults = { enable_thinking = false }`"),
        ("temp = 0.5", "`defaults = { temperature = 0.5 }`"),
        ('system_prompt = "x"', "did you mean `system`?"),
        ('draft_min = "x"', "no such option; `speculative` and `draft_max` are all that is set"),
        ('draft_model = "x"', "`speculative`"),
        ('bind = "::"', "did you mean `host`? It is an option of the server; put it at the top"),
        ("contxt = 5", "did you mean `context`?"),
    ],
)
def test_names_in_a_table(line: str, said: str, tmp_path: Path) -> None:
    """A name of another server in a model's table is told with the option here, or that there is none."""
    file = tmp_path / "c.toml"
    file.write_text(f"[models.a]\n{line}\n")
    with pytest.raises(ConfigError) as raised:
        load(file, environment={})

    assert f"{file}:2: models.a.{line.split()[0]}: " in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rpm = 5", "put it into the table [limits]: `requests_per_minute = 5`."),
        ("api_key = 'k'", "did you mean `api_keys`?"),
        ("verbose = true", "did you mean `log_level`?"),
        ('[[models]]\nname = "qwen"', "Write `[models.qwen]` instead of `[[models]]`"),
        ("[[models]]\nsource = 'x.gguf'", "Write `[models.NAME]` instead of `[[models]]`"),
    ],
)
def test_names_at_the_top(text: str, said: str, tmp_path: Path) -> None:
    """A name of another server at the top of a file, and a list of models, are told with what to write."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(file, environment={})

    assert str(raised.value).startswith(f"{file}:1: ")
    assert said in str(raised.value)


def test_a_model_for_a_configuration(tmp_path: Path) -> None:
    """A model's file in a configuration's place is told as that, without reading all of it."""
    file = tmp_path / "a.gguf"
    with file.open("wb") as opened:
        opened.write(b"GGUF")
        opened.truncate(1 << 40)  # more than any memory holds
    with pytest.raises(ConfigError) as raised:
        load(file, environment={})

    assert "is a model, and no configuration file. Serve it with `unilect serve " in str(raised.value)  # fmt: skip
