"""Sizes of the products with narrow weights, tuned on an H200 by benchmarks/tiles.py. Needs no Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 128  # inputs that share a scale in int4


class Tile(NamedTuple):
    """What one program multiplies, and the programs that share a tile of the output."""

    rows: int
    outputs: int
    inner: int  # per step of the program
    warps: int
    stages: int
    splits: int = 1  # of the inner dimension, where the next norm adds up the parts
    copies: bool = False  # the GPU's copy engine (TMA) loads whole tiles; better for many rows


# by the dtype of a weight: the most rows that a tile is used for; the library multiplies more
TILES: dict[torch.dtype, dict[int, Tile]] = {
    torch.float8_e4m3fn: {
        64: Tile(64, 64, 128, 4, 5, splits=2),
        1 << 20: Tile(128, 256, 128, 8, 3, copies=True),
    },
    torch.int8: {
        64: Tile(64, 64, 128, 4, 5, splits=2),
        768: Tile(128, 128, 128, 4, 4, copies=True),
        1 << 20: Tile(128, 256, 128, 8, 4, copies=True),
    },
    torch.uint8: {64: Tile(64, 64, GROUP, 4, 4, splits=2), 1024: Tile(128, 128, GROUP, 8, 3)},
}


def tile_of(dtype: torch.dtype, rows: int) -> Tile | None:
    """Return the tile for a product of so many rows, or None to leave it to the library."""
    return next((tile for most, tile in TILES[dtype].items() if rows <= most), None)
