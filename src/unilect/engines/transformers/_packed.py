"""
Linear layers with weights packed in oneDNN's layout, for float32 on a CPU.

torch's own layer puts the weights in order again for each product, which costs most where few rows are multiplied, as in every
step of a batch. Only layers that widen gain: measured on AVX2, the output over 32,000 tokens takes 0.54 of the time for 8 rows and
0.71 for 32, a layer from 512 to 1,408 takes 0.79 and 0.89; one from 1,408 to 512 gains nothing, and loses a third for one row.

Source: torch/_inductor/fx_passes/mkldnn_fusion.py of https://github.com/pytorch/pytorch (torch.compile does the same)
"""

import torch
from torch import Tensor, nn

_ROWS = 32  # what the order is chosen for; other numbers of rows run as well with it
_WIDENS = 2  # so many outputs for each input


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
    """Pack the linear layers of a model that widen, in place, where this torch can."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.out_features >= _WIDENS * child.in_features:
                setattr(module, name, PackedLinear(child))
