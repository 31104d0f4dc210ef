"""Tests of unilect.engines.transformers.model.devices."""

import pytest

from support.models.torchside import need

need("torch")

import torch

from unilect.engines.transformers.model.devices import free, placement, resolve

GIB = 2**30


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sees two GPUs, with 10 and 20 GiB free."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: ((device.index + 1) * 10 * GIB, 80 * GIB)
    )


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "indices"),
    [("auto", [0]), ("cuda", [0]), ("cuda:1", [1]), ("cuda:1,0", [1, 0]), ("cuda:1,1", [1])],
)
def test_names(name: str, indices: list[int]) -> None:
    """GPUs are those that are named, in their order."""
    assert [torch.device("cuda", index) for index in indices] == resolve(name)


def test_the_processor() -> None:
    """A processor needs no placement."""
    assert [torch.device("cpu")] == resolve("cpu")
    assert {} == placement(resolve("cpu"))
    assert free(resolve("cpu")) > 0


@pytest.mark.usefixtures("two_gpus")
def test_one_gpu_gets_all_and_several_share() -> None:
    """One GPU holds the whole model; several share it, each within its own free memory."""
    assert {"device_map": {"": 1}} == placement(resolve("cuda:1"))
    shared = placement(resolve("cuda:0,1"))
    assert "balanced" == shared["device_map"]
    assert {0: 8 * GIB, 1: 16 * GIB} == shared["max_memory"]
    assert 30 * GIB == free(resolve("cuda:0,1"))


@pytest.mark.usefixtures("two_gpus")
def test_as_many_gpus_as_it_takes() -> None:
    """`auto` takes the first GPU alone, unless the weights need more; without a GPU it is the processor."""
    assert [1, 2, 2] == [len(resolve("auto", size * GIB)) for size in (7, 9, 99)]


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is the processor where torch sees no GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert [torch.device("cpu")] == resolve("auto", 1.0)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there() -> None:
    """The one that is missing is named."""
    with pytest.raises(ValueError, match=r"device: cuda:2 does not exist; torch finds 2"):
        resolve("cuda:0,2")
