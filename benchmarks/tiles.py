"""Time every tile of the products with narrow weights, to choose tiles for unmask/fast/kernels/tiles.py.

    python -m benchmarks.tiles --columns 64,65,384,3072 --out FOLDER
    python -m benchmarks.tiles --columns 64,65 --formats bf16
    python -m benchmarks.tiles --columns 65,520,3072 --formats fp8 --family dream

Each product of a layer is timed in microseconds, captured as a CUDA graph: with the library, then with the
best tiles by splits and extra rows. Several weights take turns, so that none stays in the GPU's cache. Tiles
are compiled in parallel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.bench.timing import machine, milliseconds
from unmask.fast.kernels import SHARED_MEMORY
from unmask.fast.kernels.tiles import GROUP, Tile
from unmask.fast.quantized import QUANTIZE_ROWS
from unmask.models.quantized.convert import FORMATS
from unmask.models.quantized.linear import multiply

SHAPES = {  # outputs and inputs of the products of a layer
    "llada": ((12288, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    "dream": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
}
TURNS = 4  # weights that take turns
PROCESSES = 12  # processes that compile


def tiles(name: str, columns: int) -> Iterator[Tile]:
    """Yield the tiles to try for a number of columns."""
    inner = GROUP if name == "int4" else 128
    if columns <= 80:
        yield from few_columns(name, columns)
        return
    if columns <= 128:
        sizes = product((64, 128), (32, 64, 128), (128, 256), (3, 4, 5), (1, 2, 4))
        for rows, outputs, width, stages, splits in sizes:
            fits = (rows + outputs) * width * stages <= SHARED_MEMORY
            if fits and (name != "int4" or (width == GROUP and outputs > 32 and stages < 5)):
                yield Tile(rows, outputs, width, 4, stages, splits)
        return
    for rows, outputs, warps, stages in product((64, 128), (64, 128, 256), (4, 8), (3, 4)):
        sums = rows * outputs // (32 * warps)  # registers per thread
        if 32 <= sums <= 128 and (columns < 1024 or rows * outputs >= 128 * 128):
            yield Tile(rows, outputs, inner, warps, stages)
            if name != "int4" and rows * outputs >= 128 * 128:
                yield Tile(rows, outputs, inner, warps, stages, copies=True)


def few_columns(name: str, columns: int) -> Iterator[Tile]:
    """Yield the tiles for a block. Up to 64 columns, extra rows only decide which factor is on the left."""
    rows = [(64, 0), (64, 16)] if columns <= 64 else [(64, 16)]
    steps = [(128, 3), (128, 5), (256, 5)]
    if name == "int4":  # its weight is always on the left
        rows, steps = [(64, 0)] if columns <= 64 else [(64, 16), (128, 0)], [(GROUP, 3), (GROUP, 4)]
    elif name == "bf16":
        steps = [(128, 4), (64, 5)]
    for (many, extra), outputs, (width, stages), splits in product(rows, (64, 128), steps, (1, 2, 4)):
        if outputs > 64 and (name == "int4" or not extra):
            continue  # too many registers, or known to be slower
        size = (many + extra + outputs) * width * stages * (2 if name == "bf16" else 1)
        if size <= SHARED_MEMORY and splits <= (4 if name == "int4" else 2):
            yield Tile(many, outputs, width, 4, stages, splits, extra=extra)


def weight(name: str, outputs: int, inputs: int) -> nn.Module:
    if name == "bf16":
        return nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
    layer = FORMATS[name].layer(inputs, outputs).cuda()
    layer.weight, layer.scale = layer.encode(torch.randn(outputs, inputs, device="cuda") / inputs**0.5)
    layer.native = layer.has_products(layer.weight.device)
    return layer


def kernel(name: str, x: Tensor, tile: Tile) -> Callable[[Any], Tensor]:
    """Return a function that multiplies by a layer with a tile. The rows are quantized beforehand."""
    from unmask.fast.kernels.quantized import int4_product, scaled_product

    dtype = torch.bfloat16 if tile.splits == 1 else torch.float32
    if name == "int4":
        return lambda layer: int4_product(x, layer.weight, layer.scale, tile, tile.splits, dtype)
    if name == "bf16":
        return lambda layer: scaled_product(x, None, layer.weight, None, tile, tile.splits, dtype)
    narrow, row_scale = QUANTIZE_ROWS[FORMATS[name].layer.empty(1, 1)[0].dtype](x)
    return lambda layer: scaled_product(
        narrow, row_scale, layer.weight, layer.scale, tile, tile.splits, dtype
    )


def library(name: str, x: Tensor) -> Callable[[Any], Tensor]:
    """Return the library's product, which includes quantizing the rows."""
    if name == "bf16":
        return lambda layer: F.linear(x, layer.weight)
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    call = torch.compile(multiply, dynamic=False)
    return lambda layer: call(layer, x)


def microseconds(call: Callable[[Any], Tensor], layers: Sequence[object]) -> float:
    """Return the time of one call, over layers that take turns."""
    for layer in layers[:2]:
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            call(layer)
    taken = milliseconds(graph.replay, runs=7, warmups=2, device=torch.device("cuda"))
    return taken * 1e3 / len(layers)


def warm(family: str, formats: list[str], columns: list[int], number: int) -> None:
    """Compile the share of process `number`."""
    todo = [
        (name, count, inputs, tile)
        for name, count in product(formats, columns)
        for inputs in sorted({inputs for _, inputs in SHAPES[family]})
        for tile in tiles(name, count)
    ]
    made: dict[tuple[str, int], nn.Module] = {}
    for name, count, inputs, tile in todo[number::PROCESSES]:
        if (name, inputs) not in made:
            made[name, inputs] = weight(name, SHAPES[family][1][0], inputs)
        try:
            kernel(name, torch.randn(count, inputs, device="cuda", dtype=torch.bfloat16), tile)(
                made[name, inputs]
            )
        except Exception as error:  # a tile may not fit on this GPU
            print(name, count, tile, type(error).__name__, str(error).splitlines()[0][:90])


def measure(family: str, formats: list[str], columns: list[int], deadline: float) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    made: dict[tuple[str, int], list[nn.Module]] = {}
    for name, number, count in product(formats, range(len(SHAPES[family])), columns):
        outputs, inputs = SHAPES[family][number]
        if (name, number) not in made:
            made.clear()
            made[name, number] = [weight(name, outputs, inputs) for _ in range(TURNS)]
        layers = made[name, number]
        x = torch.randn(count, inputs, device="cuda", dtype=torch.bfloat16)
        wide = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        plain = microseconds(partial(F.linear, x), wide)
        of_library = microseconds(by_library := library(name, x), layers)
        expected = by_library(layers[0]).float()
        times = []
        for tile in tiles(name, count):
            if inputs % (tile.inner * tile.splits) or time.monotonic() > deadline:
                continue
            if tile.splits > 1 and outputs > 4096:  # no norm follows that adds up the parts
                continue
            try:
                call = kernel(name, x, tile)
                out = call(layers[0]).float().sum(0)
                error = float((out - expected).std() / expected.std())
                times.append((microseconds(call, layers), tile, error))
            except Exception as problem:  # others must still be timed
                print(name, count, tile, type(problem).__name__, str(problem).splitlines()[0][:90])
        times.sort(key=lambda each: each[0])
        worst = max((error for *_, error in times), default=0.0)
        times_of = f"bf16 {plain:.1f}, library {of_library:.1f}, off {worst:.3f}"
        print(f"{count:5} {name} {outputs}x{inputs}: {times_of}")
        for kind in sorted({(tile.splits, tile.extra) for _, tile, _ in times}):
            best = [each for each in times if (each[1].splits, each[1].extra) == kind][:4]
            print("      ", "  ".join(f"{taken:.1f} {tuple(tile)}" for taken, tile, _ in best))
        found.append(
            {
                "format": name,
                "columns": count,
                "outputs": outputs,
                "inputs": inputs,
                "bf16": plain,
                "library": of_library,
                "tiles": [[*tile, round(taken, 2)] for taken, tile, _ in times],
            }
        )
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--columns", default="64,65,384,3072")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--family", choices=SHAPES, default="llada")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--compile-share", type=int, help="number of a process that compiles")
    options = parser.parse_args()
    formats, columns = options.formats.split(","), [int(each) for each in options.columns.split(",")]
    if options.compile_share is not None:
        return warm(options.family, formats, columns, options.compile_share)
    started = time.monotonic()
    line = f"--formats {options.formats} --columns {options.columns} --family {options.family}"
    command = [sys.executable, "-m", "benchmarks.tiles", *line.split(), "--compile-share"]
    shares = [subprocess.Popen([*command, str(number)]) for number in range(PROCESSES)]
    for share in shares:
        share.wait()
    print(f"compiled in {time.monotonic() - started:.0f} s")
    found = measure(options.family, formats, columns, started + 60 * options.minutes)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {
            "command": f"python -m benchmarks.tiles {line}",
            "machine": machine(torch.device("cuda")),
            "microseconds": found,
        }
        (options.out / "tiles.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
