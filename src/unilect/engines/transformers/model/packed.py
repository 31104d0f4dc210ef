"""
Linear layers with weights packed in oneDNN's layout, for float32 on a CPU.

torch's own layer puts the weights in order again for each product, which costs most where few rows are multiplied, as in every
step of a batch. Measured with AVX-512 on a model of 64 million parameters, a step takes 0.8 of the processor's time for 2 rows and
for 32, 0.9 for 8, and 1.1 for a single one.

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
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """The product. x: (..., n_in)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weights, self._bias, "none", [], "")


def pack(model: nn.Module) -> None:
    """Pack the linear layers of a model, in place, where this torch can."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
