"""Sizes of products, to be tuned on a GPU. Needs no Triton.

Those with narrow weights were tuned on an H200 by benchmarks/tiles.py; benchmarks/experts.py tunes experts.
"""

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


class ExpertTiles(NamedTuple):
    """The tiles of both products of a mixture of experts; they have the same rows."""

    gate_up: Tile  # `outputs` of the gate and as many of the up half
    down: Tile


WIDE_EXPERTS = {
    8: ExpertTiles(Tile(16, 64, 64, 4, 5), Tile(16, 64, 128, 4, 4)),
    24: ExpertTiles(Tile(32, 64, 64, 4, 4), Tile(32, 64, 128, 4, 4)),
    96: ExpertTiles(Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4)),
    1 << 20: ExpertTiles(Tile(128, 128, 64, 8, 4, copies=True), Tile(128, 128, 64, 8, 4, copies=True)),
}
NARROW_EXPERTS = {
    8: ExpertTiles(Tile(16, 64, 128, 4, 5), Tile(16, 64, 128, 4, 5)),
    24: ExpertTiles(Tile(32, 64, 128, 4, 5), Tile(32, 64, 128, 4, 5)),
    96: ExpertTiles(Tile(64, 64, 128, 4, 4), Tile(64, 128, 128, 4, 4)),
    1 << 20: ExpertTiles(Tile(128, 128, 128, 8, 4, copies=True), Tile(128, 128, 128, 8, 4, copies=True)),
}
INT4_EXPERTS = {
    8: ExpertTiles(Tile(16, 64, GROUP, 4, 5), Tile(16, 64, GROUP, 4, 5)),
    24: ExpertTiles(Tile(32, 64, GROUP, 4, 4), Tile(32, 64, GROUP, 4, 4)),
    96: ExpertTiles(Tile(64, 64, GROUP, 4, 4), Tile(64, 64, GROUP, 4, 4)),
}
# by the dtype of the weights: the most rows of an average expert that the tiles are used for
EXPERT_TILES: dict[torch.dtype, dict[int, ExpertTiles]] = {
    torch.bfloat16: WIDE_EXPERTS,
    torch.float8_e4m3fn: NARROW_EXPERTS,
    torch.int8: NARROW_EXPERTS,
    torch.uint8: INT4_EXPERTS,
}


def expert_tiles(dtype: torch.dtype, pairs: int, experts: int) -> ExpertTiles | None:
    """Return the tiles for so many pairs of a token and an expert, or None to leave them to the library."""
    rows = pairs / experts
    return next((tiles for most, tiles in EXPERT_TILES.get(dtype, {}).items() if rows <= most), None)


def count_slots(pairs: int, experts: int, rows: int) -> int:
    """Return the slots of so many rows that any choice of experts fits into."""
    return pairs // rows + experts
