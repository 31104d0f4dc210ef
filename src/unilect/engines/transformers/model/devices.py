"""
The devices of a transformers model: the CPU, one GPU, or several that share its layers.

Source: https://huggingface.co/docs/accelerate/concept_guides/big_model_inference (device_map)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from unilect.engines.transformers.model.memory import FOR_WEIGHTS
from unilect.runtime.memory import free_bytes


def resolve(name: str, weight_bytes: float = 0.0) -> list[torch.device]:
    """
    The devices of the option `device`: `cpu`, `cuda`, `cuda:1`, `cuda:0,1`; `auto` for as many GPUs as it takes. Inputs go to the first.

    Args:
        weight_bytes: Of the model, on a GPU.

    Raises:
        ValueError: One is not there.
    """
    count = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and count == 0):
        return [torch.device("cpu")]
    if name == "auto":
        gpus = [torch.device("cuda", number) for number in range(count)]
        enough = (n for n in range(1, count) if weight_bytes <= FOR_WEIGHTS * free(gpus[:n]))
        return gpus[: next(enough, count)]
    numbers = dict.fromkeys(int(number) for number in (name.partition(":")[2] or "0").split(","))
    for number in numbers:
        if number >= count:
            raise ValueError(
                f"device: cuda:{number} does not exist; torch finds {count} CUDA devices. Set another device."
            )
    return [torch.device("cuda", number) for number in numbers]


def placement(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Make the arguments of `from_pretrained` that place a model on its devices."""
    if devices[0].type == "cpu":
        return {}
    if len(devices) == 1:
        return {"device_map": {"": devices[0].index}}
    most = {device.index: int(FOR_WEIGHTS * _free_on(device)) for device in devices}
    return {"device_map": "balanced", "max_memory": most}


def free(devices: Sequence[torch.device]) -> float:
    """Bytes that are free there; endless where nobody knows."""
    if devices[0].type == "cpu":
        known = free_bytes()
        return math.inf if known is None else known
    return sum(map(_free_on, devices))


def _free_on(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0])
