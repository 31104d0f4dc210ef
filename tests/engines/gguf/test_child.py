"""Tests of unilect.engines.gguf._child: what it makes of the devices that llama.cpp lists."""

import pytest
import xllamacpp

from unilect.engines.gguf import _child

KIND = xllamacpp.ggml_backend_dev_type


def device(kind: int) -> dict[str, object]:
    """A device as xllamacpp describes it."""
    return {"name": "D0", "description": "device", "memory_free": 3, "memory_total": 4, "type": kind}  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "has_gpu", "sizes"),
    [
        ([KIND.GGML_BACKEND_DEVICE_TYPE_CPU, KIND.GGML_BACKEND_DEVICE_TYPE_ACCEL], False, []),
        ([KIND.GGML_BACKEND_DEVICE_TYPE_GPU, KIND.GGML_BACKEND_DEVICE_TYPE_CPU], True, [(3, 4)]),
        ([KIND.GGML_BACKEND_DEVICE_TYPE_IGPU], True, []),
    ],
)
def test_gpus(
    kinds: list[int], has_gpu: bool, sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is one by the kind that llama.cpp says; one that shares the processor's memory adds none."""
    monkeypatch.setattr(xllamacpp, "get_device_info", lambda: [device(kind) for kind in kinds])

    assert has_gpu == _child.has_gpu()
    assert sizes == _child.gpu_sizes()


def test_the_devices_of_this_machine() -> None:
    """The kinds of the installed llama.cpp are members of the enumeration that they are compared with."""
    assert {type(one["type"]) for one in xllamacpp.get_device_info()} == {KIND}
