"""Blocks of transformers, small enough to trace in no time."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class ViTBlock(nn.Module):  # type: ignore[misc]
    """A block of a vision transformer: queries, keys and values are one product."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, rows, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(batch, rows, 3, self.heads, width // self.heads)
        y = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind(0))
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, width))
        return x + self.mlp(self.norms[1](x))


class BertAttention(nn.Module):  # type: ignore[misc]
    """The attention of BERT with a mask that is added, written out."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm, self.out = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.projections = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: Any, mask: Any) -> Any:
        batch, rows, width = x.shape
        q, k, v = (p(x).view(batch, rows, self.heads, -1).transpose(1, 2) for p in self.projections)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8.0 + mask, -1)
        return self.norm(self.out((weights @ v).permute(0, 2, 1, 3).reshape(batch, rows, width)) + x)


class RMSNorm(nn.Module):  # type: ignore[misc]
    """A norm in float32, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaBlock(nn.Module):  # type: ignore[misc]
    """A block of Llama: rotary embeddings, heads that share keys, a gated product."""

    def __init__(self, width: int = 256, heads: int = 4, keys: int = 2) -> None:
        super().__init__()
        self.depth, self.shared = width // heads, heads // keys
        self.norms = nn.ModuleList([RMSNorm(width), RMSNorm(width)])
        few = keys * self.depth
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, n, bias=False) for n in (width, few, few, width)
        )  # fmt: skip
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def heads(self, x: Any, projection: Any) -> Any:
        return projection(x).view(*x.shape[:2], -1, self.depth).transpose(1, 2)

    def turned(self, x: Any, cosine: Any, sine: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        y = self.norms[0](x)
        q, k = (self.turned(self.heads(y, p), cosine, sine) for p in (self.q, self.k))
        k, v = (t[:, :, None].expand(-1, -1, self.shared, -1, -1).flatten(1, 2) for t in (k, self.heads(y, self.v)))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))
