"""Sizes of the products with narrow weights, chosen on an H200 with benchmarks/tiles.py. Needs no Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 128  # inputs that share a scale in int4
ANY = 1 << 30


class Tile(NamedTuple):
    """The part of a product that one program computes."""

    rows: int
    outputs: int
    inner: int  # per step of the program
    warps: int
    stages: int
    splits: int = 1  # of the inner dimension, where the next norm adds up the parts
    copies: bool = False  # the GPU's copy engine (TMA) loads whole tiles


class Case(NamedTuple):
    """The largest product that a tile is used for; without a tile, the library is faster."""

    rows: int
    outputs: int
    tile: Tile | None


FEW = [
    Case(64, 8192, Tile(64, 64, 256, 4, 5, splits=2)),
    Case(64, 16384, Tile(64, 64, 128, 4, 5)),
    Case(64, ANY, Tile(64, 64, 128, 4, 3)),
]
# by the dtype of a weight; the first case that fits is taken
CASES: dict[torch.dtype, list[Case]] = {
    torch.float8_e4m3fn: [
        *FEW,
        Case(768, 8192, None),
        Case(768, 16384, Tile(64, 128, 128, 4, 3)),
        Case(768, ANY, None),
        Case(ANY, ANY, Tile(128, 256, 128, 8, 3, copies=True)),
    ],
    torch.int8: [
        *FEW,
        Case(768, 8192, Tile(64, 128, 128, 4, 4)),
        Case(768, ANY, Tile(64, 128, 128, 4, 3)),
        Case(ANY, ANY, Tile(128, 256, 128, 8, 4, copies=True)),
    ],
    torch.uint8: [
        Case(64, 8192, Tile(64, 64, GROUP, 4, 3, splits=4)),
        Case(64, ANY, Tile(64, 64, GROUP, 4, 3)),
        Case(768, ANY, Tile(128, 64, GROUP, 4, 3)),
    ],
}


def tile_of(dtype: torch.dtype, rows: int, outputs: int) -> Tile | None:
    """Return the tile of a product, or None to leave it to the library."""
    fitting = (case.tile for case in CASES[dtype] if rows <= case.rows and outputs <= case.outputs)
    return next(fitting, None)
