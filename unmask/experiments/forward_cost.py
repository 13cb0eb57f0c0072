"""FLOPs of one forward pass, counted as in the paper."""

from __future__ import annotations

import torch

from unmask.models.checkpoint.config import read_config
from unmask.models.checkpoint.hub import find_folder
from unmask.models.checkpoint.load import build
from unmask.models.trunk import Shape


def forward_flops(shape: Shape, columns: int, *, head_columns: int | None = None) -> int:
    """Return F(N), the FLOPs of the linear layers, attention and head in one forward over N columns.

    The paper counts the head on every column. `head_columns` counts it on that many.
    """
    inner, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    linear = shape.layers * 2 * shape.size * (inner + keys) + 3 * shape.size * shape.mlp_width(active=True)
    layers = 2 * linear * columns + shape.layers * 4 * inner * columns**2
    return layers + 2 * shape.size * shape.vocab_size * (columns if head_columns is None else head_columns)


def model_shape(model: str) -> Shape:
    """Return the sizes of a model, from its config alone."""
    with torch.device("meta"):
        return build(read_config(find_folder(model))).shape
