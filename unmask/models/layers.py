"""The layers that LLaDA and Dream share. Knows tensors; knows no family, file or cache policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rope = tuple[Tensor, Tensor]  # cosine and sine, [1 or B, 1, n, D / 2] float32
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # fresh keys and values in, all of them out


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight; the result has the weight's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps).to(self.weight.dtype)


def rotary(positions: Tensor, head_size: int, theta: float) -> Rope:
    """Cosine and sine of every position's rotation, in float32."""
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angle = positions[:, None, :, None].float() * (1.0 / theta**exponent)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of x [B, H, n, D]: dimension i pairs with i + D / 2."""
    cosine, sine = rope
    left, right = x.float().chunk(2, dim=-1)
    turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
    return turned.to(x.dtype)


def key_mask(attend: Tensor | None) -> Tensor | None:
    """Which keys every query of a row may see, [B, 1, 1, N]; no row is ever left without a key."""
    if attend is None:
        return None
    # a row of padding only would have an empty softmax, which older torch turns into NaN
    return (attend | ~attend.any(-1, keepdim=True))[:, None, None]


class Attention(nn.Module):
    """Bidirectional grouped-query attention."""

    def __init__(self, size: int, *, heads: int, key_heads: int, head_size: int, bias: bool) -> None:
        super().__init__()
        self.head_size = head_size
        self.groups = heads // key_heads
        self.query = nn.Linear(size, heads * head_size, bias=bias)
        self.key = nn.Linear(size, key_heads * head_size, bias=bias)
        self.value = nn.Linear(size, key_heads * head_size, bias=bias)
        self.output = nn.Linear(heads * head_size, size, bias=False)

    def forward(self, x: Tensor, rope: Rope, mask: Tensor | None, store: Store | None) -> Tensor:
        query = rotate(self._split(self.query(x)), rope)
        key = rotate(self._split(self.key(x)), rope)
        value = self._split(self.value(x))
        if store is not None:
            key, value = store(key, value)
        if self.groups > 1:  # enable_gqa would leave the fast kernels when there is a mask
            key, value = (t.repeat_interleave(self.groups, dim=1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, x: Tensor) -> Tensor:
        """[B, n, H * D] -> [B, H, n, D]."""
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return output
