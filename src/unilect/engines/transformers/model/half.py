"""
16-bit weights on a CPU without 16-bit instructions.

torch then multiplies one row after the other, and a batch gains nothing: 32 rows take 30 times as long as one. Here the weights are
made wide block by block, each small enough to stay in the processor's cache, and multiplied in float32: measured with AVX2 on a model
of 64 million parameters, a step of 32 rows takes 0.4 of the processor's time, one of 8 rows 0.7, and one of 2 rows 1.5. For a single
row torch's own product is as good. Results are those of torch: sums in float32, rounded
once. Attention is widened likewise.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_ATTENTION = "sdpa_wide"
_BLOCK = 2**18  # weights, 1 MiB of float32


def is_slow(dtype: torch.dtype) -> bool:
    """True where this processor has no instructions for a 16-bit type."""
    known = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype in known and not known[dtype]()


class WideLinear(nn.Module):
    """
    A linear layer.

    Args:
        layer: Its weights are taken, and stay as narrow as they are.
        scratch: float32, (n,), where blocks are made wide; layers that run one after the other share it.
    """

    def __init__(self, layer: nn.Linear, scratch: Tensor) -> None:
        super().__init__()
        self._scratch = scratch
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """The product. x: (..., n_in)."""
        rows = x.reshape(-1, self.in_features)
        if len(rows) < 2:
            return nn.functional.linear(x, self.weight, self.bias)
        wide = rows.float()
        y = wide.new_empty(len(rows), self.out_features)
        at_once = len(self._scratch) // self.in_features
        for begin in range(0, self.out_features, at_once):
            narrow = self.weight[begin : begin + at_once]
            block = self._scratch[: narrow.numel()].view(narrow.shape)
            block.copy_(narrow)
            torch.mm(wide, block.T, out=y[:, begin : begin + at_once])
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)


def widen(model: nn.Module) -> None:
    """Make a 16-bit model's products wide, in place."""
    linear = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    longest = max((child.in_features for _, _, child in linear), default=0)
    scratch = torch.empty(max(longest, _BLOCK * torch.get_num_threads()))
    for parent, name, child in linear:
        setattr(parent, name, WideLinear(child, scratch))
    if getattr(model.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(_ATTENTION, _attend)
        AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
        model.set_attn_implementation(_ATTENTION)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention in float32; see `AttentionInterface`."""
    wide, _ = sdpa_attention_forward(
        module, query.float(), key.float(), value.float(), *args, **kwargs
    )
    return wide.to(query.dtype), None
