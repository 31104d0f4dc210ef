"""
8-bit linear layers on a CPU: weights with a scale per output, activations with a scale per row.

A row's scale is its own, where torch's dynamic layers take one for the whole batch: there an answer would depend on those beside
it, and lose precision to the largest number among them. Activations have 7 bits, as products of two rows of 8 would run over in
the 16 bits that processors without VNNI add them up in.

Source: https://docs.pytorch.org/docs/stable/quantization.html (fbgemm, reduce_range)
"""

import warnings

import torch
from torch import Tensor, nn

_WEIGHTS, _ACTIVATIONS = 127, 63  # the largest number of each
_ZERO = 64  # where activations have their zero, as they are stored without a sign
_LEAST = 1e-30  # a row of zeros has a scale, too


class Int8Linear(nn.Module):
    """
    A linear layer.

    Args:
        layer: Of float32; the layer itself is not needed any longer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        scales = weight.abs().amax(1).clamp_min(_LEAST).double() / _WEIGHTS
        zeros = torch.zeros(self.out_features, dtype=torch.long)
        with (
            warnings.catch_warnings()
        ):  # to be removed some day; what is to come is three times as slow on AVX2
            warnings.simplefilter("ignore")
            narrow = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._weights = torch.ops.quantized.linear_prepack(narrow, None)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """The product. x: (..., n_in) float32."""
        scale = x.abs().amax(-1, keepdim=True).clamp_min_(_LEAST)
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scale, 1 / _ACTIVATIONS, _ZERO, self._weights
        )
        y *= scale
        return y if self._bias is None else y.add_(self._bias)


def quantize(model: nn.Module) -> None:
    """
    Quantise all linear layers of a model, in place.

    Raises:
        ValueError: The model is not one of float32.
    """
    if next(model.parameters()).dtype != torch.float32:
        raise ValueError("quantize: 8bit on a CPU requires `dtype` float32 or auto.")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
