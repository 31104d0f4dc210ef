"""Tests of unilect.config.fleet."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unilect.config.fleet import FleetConfig, cache_folder, head_of, resources_of
from unilect.config.load import load
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "head"),
    [
        ("", ""),
        ("head:6379", "head:6379"),
        ("ray://head:6379", "head:6379"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        ("[fd00::1]:6379", "[fd00::1]:6379"),
    ],
)
def test_address(address: str, head: str) -> None:
    """An address is host and port of a head, with Ray's scheme or without."""
    assert head == head_of(FleetConfig(address=address))


@pytest.mark.parametrize(
    "address",
    ["head", "head:", "head:0", "head:65536", "http://head:6379", "a b:1", "u@h:1", "auto"],
)
def test_wrong_address(tmp_path: Path, address: str) -> None:
    """What is no address is told with its line, and where the right one is found."""
    file = tmp_path / "x.toml"
    file.write_text(f'[fleet]\naddress = "{address}"\n')

    with pytest.raises(ConfigError, match=r"x.toml:2: fleet.address: .* no HOST:PORT.*fleet start"):
        load(file, environment={})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("resources = { gpu = 1 }", "resources: has no effect without replicas; set replicas too"),
        ('accelerator = "H200"', "accelerator: has no effect without replicas; set replicas too"),
        ("replicas = 0", "replicas"),
        ("replicas = { min = 3, max = 2 }", r"min \(3\) is more than max \(2\)"),
        (
            "replicas = { min = 0, most = 2 }",
            "replicas: expected an integer from 1 to 1000 or a table",
        ),
        ('replicas = 2\nsource = ["demo:", "demo:"]', "takes one source, and this model has 2"),
        ('replicas = 2\nsource = "http://a/v1"', "replicas: applies to GGUF models"),
        ("replicas = 2\nidle_stop_s = 5", r"replicas = \{ min = 0, max = N \}"),
        ('replicas = 2\nresources = { memory = "much" }', "memory: 'much' is no size.*24GiB"),
        ('replicas = 2\nresources = { gpu = "one" }', "gpu: 'one' is no number"),
        ("replicas = 2\nresources = { gpu = -1 }", "gpu: -1.* is no number"),
    ],
)
def test_wrong_replicas(tmp_path: Path, table: str, said: str) -> None:
    """What a model with replicas cannot have, and one without, is told by its option, with what to write."""
    file = tmp_path / "x.toml"
    file.write_text(f"[models.m]\n{table}\n")

    with pytest.raises(ConfigError, match=said) as failure:
        config = load(file, environment={})
        sources_of(config.models["m"])
    assert "m" in str(failure.value)


def sources_of(config: ModelConfig) -> None:
    """Check a model's table, as a start does."""
    from unilect.models import sources

    sources.model("m", config)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/unilect/fleet"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}, "/c/unilect/fleet"),
        ({"XDG_CACHE_HOME": "c"}, None),  # which the standard has ignored, too
        ({}, None),
    ],
)
def test_cache_folder(environment: dict[str, str], folder: str | None) -> None:
    """Files that were sent are kept in the user's cache."""
    assert (Path(folder) if folder else None) == cache_folder(environment)


def test_resources() -> None:
    """What a replica needs is told as Ray names it; a processor for each thread where nothing is said of it."""
    config = ModelConfig(
        replicas=1,
        threads=3,
        resources={"gpu": 0.5, "memory": "1.5GiB", "fast_disk": 1},
        accelerator="H200",
    )

    assert {
        "num_cpus": 3,
        "num_gpus": 0.5,
        "memory": 1_610_612_736,
        "resources": {"fast_disk": 1},
        "accelerator_type": "H200",
    } == resources_of("m", config)
    assert {"num_cpus": 2} == resources_of("m", ModelConfig(replicas=1, resources={"cpu": 2}))


@given(st.one_of(st.text(max_size=30), st.floats(), st.integers()))
@example(float("inf"))
@example("9" * 400)
def test_any_size(size: str | float) -> None:
    """Any value is a size in whole bytes, not below 0, or an error that says what a size is."""
    config = ModelConfig(replicas=1, resources={"memory": size})
    try:
        found = resources_of("m", config)["memory"]
    except ConfigError as error:
        assert "is no size" in str(error)
    else:
        assert isinstance(found, int)
        assert found >= 0
