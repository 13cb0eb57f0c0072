"""Tiles fit into the shared memory of the GPUs that they are used on."""

from __future__ import annotations

import pytest
import torch

from unmask.fast.kernels import SHARED_MEMORY
from unmask.fast.kernels.tiles import CASES, EXPERT_TILES, Tile, tile_of

SMALLEST = 99 * 1024  # of a GPU of capability 8.6
HALF = (torch.bfloat16, torch.float16)
NARROW = (torch.float8_e4m3fn, torch.int8, torch.uint8)


def loaded_bytes(tile: Tile, dtype: torch.dtype, stacks: int = 1) -> int:
    """Return the bytes of inputs and of one or two weights that a program holds at each stage."""
    packed = dtype == torch.uint8  # two weights per byte, inputs of 16 bits
    inputs = (tile.rows + tile.extra) * tile.inner * (2 if packed else dtype.itemsize)
    weights = stacks * tile.outputs * tile.inner * dtype.itemsize // (2 if packed else 1)
    return inputs + weights


@pytest.mark.parametrize("dtype", CASES)
def test_a_tile_fits_into_shared_memory(dtype):
    tiles = [case.tile for case in CASES[dtype] if case.tile is not None]
    assert tiles
    for tile in tiles:
        assert tile.stages * loaded_bytes(tile, dtype) <= SHARED_MEMORY
        if dtype in HALF:  # before Hopper, the last stage needs no memory of its own
            assert (tile.stages - 1) * loaded_bytes(tile, dtype) <= SMALLEST


@pytest.mark.parametrize("dtype", EXPERT_TILES)
def test_the_tiles_of_experts_fit_into_shared_memory_and_have_the_same_rows(dtype):
    for tiles in EXPERT_TILES[dtype].values():
        assert tiles.gate_up.rows == tiles.down.rows
        assert tiles.gate_up.stages * loaded_bytes(tiles.gate_up, dtype, stacks=2) <= SHARED_MEMORY
        assert tiles.down.stages * loaded_bytes(tiles.down, dtype) <= SHARED_MEMORY


@pytest.mark.parametrize("dtype", NARROW)
def test_the_smallest_case_that_a_product_fits_into_gives_its_tile(dtype):
    for rows, outputs in ((1, 4096), (64, 12288), (65, 4096), (80, 24576), (100, 4096)):
        tile = tile_of(dtype, rows, outputs)
        assert tile is not None
        assert (tile.extra > 0) == (64 < rows <= 80)


@pytest.mark.parametrize(
    ("dtype", "rows", "outputs"),
    [
        (torch.float8_e4m3fn, 65, 37888),
        (torch.float8_e4m3fn, 81, 16384),
        (torch.float8_e4m3fn, 384, 24576),
        (torch.float8_e4m3fn, 3072, 37888),
        (torch.bfloat16, 65, 3584),
        (torch.uint8, 769, 4096),
    ],
)
def test_the_library_multiplies_where_no_tile_is_faster(dtype, rows, outputs):
    assert tile_of(dtype, rows, outputs) is None
