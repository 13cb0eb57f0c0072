"""The layers that LLaDA and Dream share. Knows tensors; knows no family, file or cache policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rope = tuple[Tensor, Tensor]  # cosine and sine, [1 or B, 1, n, D / 2] float32
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # fresh keys and values in, all of them out
Mix = Callable[[Tensor, Tensor, Tensor, "Tensor | None"], Tensor]  # as `attend` has it
Product = Callable[[nn.Module, Tensor], Tensor]  # as `product` has it


class RMSNorm(nn.Module):
    """Adds a change to the residual stream x [B, n, size] and norms the sum by its root mean square.

    Gives both, the normed one in the weight's dtype. The change may come in pieces to be added,
    [S, B, n, size].
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        x = x + (change.sum(0) if change.dim() > x.dim() else change)
        weight = self.weight.to(x.dtype)
        return x, F.rms_norm(x, weight.shape, weight, self.eps).to(self.weight.dtype)


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


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """What queries [B, H, n, D] see of keys and values [B, H / groups, N, D], [B, n, H * D]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # enable_gqa would leave the fast kernels when there is a mask
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


class Joined:
    """Linear layers with the same input as one matrix; a product of few rows fills a GPU better with it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: list[int]) -> None:
        self.weight = weight
        self.bias = bias
        self.sizes = sizes  # outputs of each layer

    @staticmethod
    def of(*layers: nn.Module) -> Joined | None:
        """The layers joined, their weights now views of the one matrix; None: a layer is no plain one."""
        plain = [layer for layer in layers if type(layer) is nn.Linear]
        if len(plain) < len(layers):
            return None
        sizes = [layer.out_features for layer in plain]
        weight = torch.cat([layer.weight.data for layer in plain])
        for layer, part in zip(plain, torch.split(weight, sizes), strict=True):
            layer.weight.data = part
        biases = [layer.bias.data for layer in plain if layer.bias is not None]
        return Joined(weight, torch.cat(biases) if biases else None, sizes)

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        return torch.split(F.linear(x, self.weight, self.bias), self.sizes, dim=-1)


def product(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output; what says the same may leave it in pieces to be added, [S, B, n, size]."""
    output: Tensor = layer(x)
    return output


class Attention(nn.Module):
    """Bidirectional grouped-query attention."""

    def __init__(self, size: int, *, heads: int, key_heads: int, head_size: int, bias: bool) -> None:
        super().__init__()
        self.head_size = head_size
        self.query = nn.Linear(size, heads * head_size, bias=bias)
        self.key = nn.Linear(size, key_heads * head_size, bias=bias)
        self.value = nn.Linear(size, key_heads * head_size, bias=bias)
        self.output = nn.Linear(heads * head_size, size, bias=False)
        self.joined: Joined | None = None
        self.mix: Mix = attend  # or what says the same faster, see compiled.py
        self.product: Product = product

    def join(self) -> None:
        """From now on compute queries, keys and values in one product."""
        self.joined = Joined.of(self.query, self.key, self.value)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values, [B, n, H * D] each."""
        if self.joined is not None:
            return self.joined(x)
        return self.query(x), self.key(x), self.value(x)

    def forward(self, x: Tensor, rope: Rope, mask: Tensor | None, store: Store | None) -> Tensor:
        query, key, value = map(self._split, self.project(x))
        query, key = rotate(query, rope), rotate(key, rope)
        if store is not None:
            key, value = store(key, value)
        return self.product(self.output, self.mix(query, key, value, mask))

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
        self.joined: Joined | None = None
        self.product: Product = product  # or what says the same faster, see compiled.py

    def join(self) -> None:
        """From now on compute the gate and what it gates in one product."""
        self.joined = Joined.of(self.gate, self.up)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.gate(x), self.up(x)) if self.joined is None else self.joined(x)
        return self.product(self.down, F.silu(gate) * up)
