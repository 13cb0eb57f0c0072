"""Time the products of a layer in every format and in every way, to choose tiles, splits and thresholds.

    python -m benchmarks.products --columns 64,384,3072 --out FOLDER
    python -m benchmarks.products --small                             # plain ways alone, on the CPU

Each line is the four products of one layer of LLaDA-8B (queries with keys and values, output, gate with up,
down), captured as a CUDA graph, in microseconds. The weights of several layers take turns, so that none stays
in the GPU's cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.bench.timing import machine, milliseconds
from unmask.fast import quantized
from unmask.fast.kernels import tiles
from unmask.models.quantized import fp8
from unmask.models.quantized.convert import FORMATS
from unmask.models.quantized.linear import QuantizedLinear, multiply

SHAPES = ((12288, 4096), (4096, 4096), (24576, 4096), (4096, 12288))  # outputs and inputs of LLaDA-8B
SMALL_SHAPES = ((192, 128), (128, 128))
LAYERS = 4  # whose weights take turns
Product = Callable[[QuantizedLinear, Tensor], Tensor]


def unscaled(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """Multiply in fp8 without scales in the library's product; a compiler applies them afterwards."""
    narrow, row_scale = fp8.quantize_rows(x)
    one = torch.ones((), device=x.device)
    product = torch._scaled_mm(
        narrow, layer.weight.t(), scale_a=one, scale_b=one, out_dtype=x.dtype, use_fast_accum=True
    )
    return (product.float() * row_scale * layer.scale).to(x.dtype)


def ways(columns: int, device: torch.device) -> Iterator[tuple[str, str, Product | None]]:
    """Yield format, name and product of every way; None: a plain product in bfloat16."""
    yield "bf16", "library", None
    for name, chosen in FORMATS.items():
        yield name, "library", multiply
        if name == "fp8" and chosen.layer.has_products(device):
            yield name, "library, scales outside", unscaled
        if device.type == "cuda" and columns <= tiles.FEW_ROWS:
            for splits in (1, 2, 4):
                yield name, f"kernel, {splits} parts", partial(_kernel, splits=splits)


def _kernel(layer: QuantizedLinear, x: Tensor, *, splits: int) -> Tensor:
    return quantized.partial_products(layer, x, splits=splits, dtype=torch.float32)


def weights(name: str, shapes: tuple[tuple[int, int], ...], device: torch.device) -> list[QuantizedLinear]:
    """Return the layers of a format with random weights."""
    made = []
    for outputs, inputs in shapes:
        layer = FORMATS[name].layer(inputs, outputs).to(device)
        layer.weight, layer.scale = layer.encode(torch.randn(outputs, inputs, device=device) / inputs**0.5)
        layer.native = layer.has_products(device)
        made.append(layer)
    return made


def work(
    name: str,
    product: Product | None,
    columns: int,
    shapes: tuple[tuple[int, int], ...],
    device: torch.device,
) -> Callable[[], object]:
    """Return a function that runs the products of LAYERS layers once."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    inputs = {size: torch.randn(columns, size, device=device, dtype=dtype) for _, size in shapes}
    if product is None:
        plain = [torch.randn(*shape, device=device, dtype=dtype) for _ in range(LAYERS) for shape in shapes]
        return _captured(lambda: [F.linear(inputs[one.shape[1]], one) for one in plain], device)
    layers = [layer for _ in range(LAYERS) for layer in weights(name, shapes, device)]
    call = torch.compile(product, dynamic=False) if device.type == "cuda" else product
    return _captured(lambda: [call(layer, inputs[layer.inputs]) for layer in layers], device)


def _captured(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    if device.type != "cuda":
        return run
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--columns", default="64,384,3072")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device = torch.device("cpu" if options.small else "cuda")
    shapes = SMALL_SHAPES if options.small else SHAPES
    found: dict[str, dict[str, float]] = {}
    print(f"tiles: {tiles.OUTPUTS} outputs, {tiles.INNER}, {tiles.WARPS} warps, {tiles.STAGES} stages")
    for columns in map(int, options.columns.split(",")):
        for name, way, product in ways(columns, device):
            try:
                run = work(name, product, columns, shapes, device)
                taken = milliseconds(run, runs=20, warmups=3, device=device) * 1e3 / LAYERS
            except Exception as error:  # one way may not know a size; the others must still be timed
                print(
                    f"{columns:5} {name:5} {way:24} {type(error).__name__}: {str(error).splitlines()[0][:90]}"
                )
                continue
            found.setdefault(str(columns), {})[f"{name}, {way}"] = taken
            print(f"{columns:5} {name:5} {way:24} {taken:9.1f} us")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine(device), "microseconds_of_a_layer": found}
        (options.out / "products.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
