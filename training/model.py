"""
The network: a small Llama (RMSNorm, rotary positions, grouped attention, SwiGLU, tied embeddings).

Written out for speed on a CPU; parameter names are Hugging Face's, so an export is a plain copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 5
    heads: int = 8
    kv_heads: int = 4
    inner: int = 512
    context: int = 2048
    theta: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head/2) by their position's angle. x: (batch, heads, length, head)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with fewer key-value heads than query heads."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head, s.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend. x: (batch, length, hidden)."""
        b, n, _ = x.shape
        s = self.s
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        heads = F.linear(x, weight).view(b, n, -1, s.head).transpose(1, 2)
        turned = rotate(heads[:, : s.heads + s.kv_heads], cos, sin)
        group = s.heads // s.kv_heads
        # Heads that share keys are rows of one product, so that keys and values are not repeated.
        q = (turned[:, : s.heads] * s.head**-0.5).reshape(b, s.kv_heads, group * n, s.head)
        k, v = turned[:, s.heads :], heads[:, s.heads + s.kv_heads :]
        # Plain products: the fused kernel's backward pass is 3 times slower at these lengths.
        ahead = torch.full((n, n), -30000.0, dtype=x.dtype).triu(1).repeat(group, 1)
        scores = q @ k.transpose(-1, -2) + ahead
        with torch.autocast("cpu", enabled=False):  # it would compute this in float32
            shares = scores.softmax(-1)
        y = (shares @ v).view(b, s.heads, n, s.head).transpose(1, 2).reshape(b, n, -1)
        out: Tensor = self.o_proj(y)
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply. x: (batch, length, hidden)."""
        both = F.linear(x, torch.cat((self.gate_proj.weight, self.up_proj.weight)))
        gate, up = both.chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden, s.epsilon)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, s.epsilon)
        self.mlp = Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply. x: (batch, length, hidden)."""
        # A product would convert its input by itself, but once for each product.
        x = x + self.self_attn(self.input_layernorm(x).to(cos.dtype), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x).to(cos.dtype))
        return out


class Llama(nn.Module):
    """The whole network; `forward` gives hidden states, `loss` the mean over chosen targets."""

    cos: Tensor
    sin: Tensor

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, s.epsilon)
        rate = s.theta ** (-torch.arange(0, s.head, 2).float() / s.head)
        angle = torch.outer(torch.arange(s.context).float(), rate)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = (
                    (2 * s.layers) ** -0.5
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else 1.0
                )
                nn.init.normal_(p, std=0.02 * (scale if "embed" not in name else 1.0))

    def forward(self, ids: Tensor) -> Tensor:
        """Return hidden states. ids: (batch, length) int64 -> (batch, length, hidden)."""
        n = ids.shape[1]
        x = self.embed_tokens(ids)
        is_whole = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        kind = torch.float32 if is_whole else torch.bfloat16
        cos, sin = self.cos[:n].to(kind), self.sin[:n].to(kind)
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out

    def loss(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted mean loss. ids, mask (weights, float32): (batch, length)."""
        chosen = mask[:, 1:] > 0
        hidden = self.forward(ids)[:, :-1][chosen]
        logits = F.linear(hidden, self.embed_tokens.weight)
        each = F.cross_entropy(logits.float(), ids[:, 1:][chosen], reduction="none")
        weight = mask[:, 1:][chosen]
        return (each * weight).sum() / weight.sum()
