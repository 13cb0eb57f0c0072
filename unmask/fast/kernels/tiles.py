"""Tile sizes of products. Needs no Triton.

Timed on an H200 with benchmarks/tiles.py and benchmarks/experts.py. fp8 was timed up to 64 rows and from 129
to 768 in the shapes of LLaDA-8B, and with 65 and 3,072 rows in those of Dream-7B. int8 was timed up to 64
rows and from 129 to 768, int4 up to 64 rows, and the experts of LLaDA-MoE in bfloat16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 128  # inputs that share a scale in int4
ANY = 1 << 30


class Tile(NamedTuple):
    """The part of a product that one program computes."""

    rows: int
    outputs: int
    inner: int  # inner dimension per step of the program
    warps: int
    stages: int
    splits: int = 1  # parts of the inner dimension, where the next norm adds them up
    copies: bool = False  # whether the GPU's copy engine (TMA) loads whole tiles, without extra rows
    extra: int = 0  # rows beyond the tile that share its loaded weights; they need the weight on the left


class Case(NamedTuple):
    """The largest product that a tile is used for. Without a tile, the library is faster."""

    rows: int
    outputs: int
    tile: Tile | None


FEW = [
    Case(64, 8192, Tile(64, 64, 256, 4, 5, splits=2)),
    Case(64, 16384, Tile(64, 64, 128, 4, 5)),
    Case(64, ANY, Tile(64, 64, 128, 4, 3)),
    Case(80, 8192, Tile(64, 64, 256, 4, 5, splits=2, extra=16)),
    Case(80, 32768, Tile(64, 64, 128, 4, 5, extra=16)),
]
# `unmask.fast.split_products` sets the splits. The tile fits into 99 KiB of shared memory (capability 8.6).
# With extra rows for 65 columns, a step of Dream-7B inside a block took 5.09 ms instead of 4.74 ms.
HALF_PRECISION = [Case(64, ANY, Tile(64, 64, 128, 4, 4))]
# the cases for each dtype of a weight; the first one that fits is used
CASES: dict[torch.dtype, list[Case]] = {
    torch.bfloat16: HALF_PRECISION,
    torch.float16: HALF_PRECISION,
    torch.float8_e4m3fn: [
        *FEW,
        Case(80, ANY, None),
        Case(128, 8192, Tile(64, 64, 256, 4, 5)),
        Case(128, ANY, None),
        Case(768, 8192, None),
        Case(768, 16384, Tile(64, 128, 128, 4, 3)),
        Case(768, ANY, None),
        Case(ANY, 4096, Tile(128, 256, 128, 8, 3, copies=True)),
        Case(ANY, 8192, Tile(128, 128, 128, 4, 3, copies=True)),
        Case(ANY, 32768, Tile(128, 256, 128, 8, 3, copies=True)),
        Case(ANY, ANY, None),
    ],
    torch.int8: [
        *FEW,
        Case(80, ANY, Tile(64, 64, 128, 4, 5, extra=16)),
        Case(128, 8192, Tile(64, 64, 256, 4, 5)),
        Case(128, ANY, Tile(128, 64, 128, 4, 3)),
        Case(768, 8192, Tile(64, 128, 128, 4, 4)),
        Case(768, ANY, Tile(64, 128, 128, 4, 3)),
        Case(ANY, ANY, Tile(128, 256, 128, 8, 4, copies=True)),
    ],
    torch.uint8: [
        Case(64, 8192, Tile(64, 64, GROUP, 4, 3, splits=4)),
        Case(64, ANY, Tile(64, 64, GROUP, 4, 3)),
        Case(80, 8192, Tile(64, 64, GROUP, 4, 3, splits=4, extra=16)),
        Case(80, ANY, Tile(64, 64, GROUP, 4, 3, extra=16)),
        Case(768, ANY, Tile(128, 64, GROUP, 4, 3)),
    ],
}


def tile_of(dtype: torch.dtype, rows: int, outputs: int) -> Tile | None:
    """Return the tile of a product, or None to leave it to the library."""
    fitting = (case.tile for case in CASES[dtype] if rows <= case.rows and outputs <= case.outputs)
    return next(fitting, None)


def known_tile(dtype: torch.dtype, rows: int, outputs: int) -> Tile:
    """Return the tile of a product that has one."""
    tile = tile_of(dtype, rows, outputs)
    assert tile is not None
    return tile


class ExpertTiles(NamedTuple):
    """The tiles of both products of a mixture of experts, with the same number of rows."""

    gate_up: Tile  # computes `outputs` outputs of the gate half and of the up half
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
# for each dtype of the weights: tiles by the largest average number of rows per expert that they are used for
EXPERT_TILES: dict[torch.dtype, dict[int, ExpertTiles]] = {
    torch.bfloat16: WIDE_EXPERTS,
    torch.float8_e4m3fn: NARROW_EXPERTS,
    torch.int8: NARROW_EXPERTS,
    torch.uint8: INT4_EXPERTS,
}


def expert_tiles(dtype: torch.dtype, pairs: int, experts: int) -> ExpertTiles | None:
    """Return the tiles for `pairs` pairs of a token and an expert, or None to leave them to the library."""
    rows = pairs / experts
    return next((tiles for most, tiles in EXPERT_TILES.get(dtype, {}).items() if rows <= most), None)


def count_slots(pairs: int, experts: int, rows: int) -> int:
    """Return how many slots of `rows` rows any choice of experts fits into."""
    return pairs // rows + experts
