"""
LoRA adapters, selected per row of the batch.

A linear layer that an adapter changes is wrapped: beside its own product it adds, for each row, that of the row's adapter. Several
adapters of one model name are one *blend*: their ranks are laid side by side, their scales multiplied in. What cannot be added
like that (whole layers, DoRA, embeddings) is merged into the weights by peft when the model is loaded.

Source: https://huggingface.co/docs/peft/developer_guides/checkpoint (files and names of an adapter)
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_KEY = re.compile(r"^base_model\.model\.(.+)\.lora_(A|B)(?:\.default)?\.weight$")
WEIGHTS = "adapter_model.safetensors"


class Selection:
    """
    Which blend each row of the running step has; all wrapped layers look here.

    Attributes:
        kinds: The blends in use, in the order of `index`; empty where no row has one.
        index: For each row its blend, or `len(kinds)` for none; None where all rows have the same.
    """

    def __init__(self) -> None:
        self.kinds: tuple[str, ...] = ()
        self.index: Tensor | None = None

    def choose(self, names: Sequence[str | None], device: torch.device) -> None:
        """Set the blends of all rows."""
        used = sorted({name for name in names if name is not None})
        self.kinds = tuple(used)
        self.index = None
        if used and (len(used) > 1 or None in names):
            places = {name: place for place, name in enumerate(used)}
            self.index = torch.tensor(
                [len(used) if name is None else places[name] for name in names], device=device
            )


class MixedLinear(nn.Module):
    """A linear layer, and what the blends add to it."""

    def __init__(self, inner: nn.Module, selection: Selection) -> None:
        super().__init__()
        self.inner = inner
        self._selection = selection
        self._blends: dict[str, tuple[Tensor, Tensor]] = {}
        self._stacked: tuple[tuple[str, ...], Tensor, Tensor] | None = None

    def set_blend(self, name: str, down: Tensor | None, up: Tensor | None) -> None:
        """Add a blend, (rank, n_in) and (n_out, rank); or take it away."""
        self._stacked = None
        if down is None or up is None:
            self._blends.pop(name, None)
        else:
            self._blends[name] = (down, up)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's product, with what each row's blend adds. x: (n_rows, ..., n_in), or flattened (OPT)."""
        y: Tensor = self.inner(x)
        chosen = self._selection
        if not any(name in self._blends for name in chosen.kinds):
            return y
        if chosen.index is None:
            down, up = self._blends[chosen.kinds[0]]
            return y + (x @ down.T) @ up.T
        downs, ups = self._stack(chosen.kinds)
        index = chosen.index.to(downs.device)
        rows = x.reshape(len(index), -1, x.shape[-1])
        changes = (rows @ downs[index].transpose(1, 2)) @ ups[index].transpose(1, 2)
        return y + changes.view(y.shape)

    def _stack(self, kinds: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """These blends, and one that adds nothing, as one tensor each, padded to the largest rank."""
        if self._stacked is None or self._stacked[0] != kinds:
            blends = [self._blends.get(name) for name in kinds]
            down, up = next(iter(self._blends.values()))
            rank = max(pair[0].shape[0] for pair in blends if pair is not None)
            downs = down.new_zeros(len(kinds) + 1, rank, down.shape[1])
            ups = up.new_zeros(len(kinds) + 1, up.shape[0], rank)
            for place, pair in enumerate(blends):
                if pair is not None:
                    downs[place, : pair[0].shape[0]] = pair[0]
                    ups[place, :, : pair[1].shape[1]] = pair[1]
            self._stacked = (kinds, downs, ups)
        return self._stacked[1], self._stacked[2]


class Adapters:
    """
    The blends of a model.

    Args:
        model: Its linear layers are wrapped when the first blend needs them.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._selection = Selection()
        self._names: set[str] = set()
        self._layers: dict[str, MixedLinear] = {}

    def choose(self, names: Sequence[str | None]) -> None:
        """Set the blend of each row of the coming step."""
        if self._names:
            self._selection.choose(names, self._device)

    def add(self, name: str, parts: Sequence[tuple[str, float]]) -> None:
        """
        Make a blend of adapters, each with its scale.

        Raises:
            ValueError: A folder is no adapter of this model.
        """
        downs: dict[str, list[Tensor]] = {}
        ups: dict[str, list[Tensor]] = {}
        for path, scale in parts:
            for layer, (down, up) in _read(Path(path)).items():
                self._check(layer, down, up)
                downs.setdefault(layer, []).append(down)
                ups.setdefault(layer, []).append(up * scale)
        try:
            for layer in downs:
                mixed = self._wrap(layer)
                weight = next(mixed.inner.parameters(), None)
                device = self._device if weight is None else weight.device
                down, up = torch.cat(downs[layer]), torch.cat(ups[layer], 1)
                mixed.set_blend(name, down.to(device, self._dtype), up.to(device, self._dtype))
        except BaseException:  # no memory for all of it
            self.remove(name)
            raise
        self._names.add(name)

    def has(self, name: str) -> bool:
        """True while there is a blend of this name."""
        return name in self._names

    def remove(self, name: str) -> None:
        """Take a blend away."""
        self._names.discard(name)
        for layer in self._layers.values():
            layer.set_blend(name, None, None)
        self._selection.choose([], self._device)

    def _check(self, layer: str, down: Tensor, up: Tensor) -> None:
        try:
            module: Any = self._layers.get(layer) or self._model.get_submodule(layer)
        except AttributeError as error:
            raise ValueError(
                f"lora: the adapter targets {layer}, which this model does not have; it was trained for another model."
            ) from error
        module = module.inner if isinstance(module, MixedLinear) else module
        inside = getattr(module, "in_features", getattr(module, "nx", None))  # GPT-2's are nx, nf
        outside = getattr(module, "out_features", getattr(module, "nf", None))
        if inside is None:
            raise ValueError(
                f"lora: the adapter targets {layer}, which is not a linear layer of this model."
            )
        if (inside, outside) != (down.shape[1], up.shape[0]):
            raise ValueError(
                f"lora: the adapter's {layer} is {down.shape[1]} to {up.shape[0]}, and this model's is "
                f"{inside} to {outside}; it was made for another."
            )

    def _wrap(self, path: str) -> MixedLinear:
        if path not in self._layers:
            parent_path, _, child = path.rpartition(".")
            parent = self._model.get_submodule(parent_path)
            mixed = MixedLinear(getattr(parent, child), self._selection)
            setattr(parent, child, mixed)
            self._layers[path] = mixed
        return self._layers[path]


def _read(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """The two factors of each layer that an adapter changes, its own scale multiplied in."""
    config = json.loads((folder / "adapter_config.json").read_text())
    factors: dict[str, dict[str, Tensor]] = {}
    try:
        tensors = load_file(str(folder / WEIGHTS))
    except SafetensorError as error:
        raise ValueError(f"lora: {folder.name}/{WEIGHTS} is broken ({error}).") from error
    for key, tensor in tensors.items():
        match = _KEY.match(key)
        if match is None:
            raise ValueError(f"lora: {folder.name} holds {key}, which is not a LoRA weight.")
        factors.setdefault(match.group(1), {})[match.group(2)] = tensor
    found = {}
    for layer, pair in factors.items():
        if len(pair) != 2:
            raise ValueError(f"lora: {folder.name} holds only a half of {layer}.")
        rank = pair["A"].shape[0]
        alpha = _pattern(config.get("alpha_pattern"), layer, config.get("lora_alpha", rank))
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        found[layer] = (pair["A"].float(), pair["B"].float() * scale)
    return found


def _pattern(patterns: dict[str, float] | None, layer: str, default: float) -> float:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return default
