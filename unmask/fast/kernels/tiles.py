"""Sizes of the products with narrow weights: to be tuned on a GPU. Needs no Triton."""

from __future__ import annotations

import torch

FEW_ROWS = 64  # up to which our kernels read a weight faster than the library
OUTPUTS = 64  # per program
GROUP = 128  # inputs that share a scale in int4
# inputs per step of a program, by the dtype of its weight
INNER = {torch.float8_e4m3fn: 256, torch.int8: 256, torch.uint8: GROUP}
WARPS, STAGES = 4, 4
