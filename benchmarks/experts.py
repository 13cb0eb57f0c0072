"""Time mixtures of experts and every tile of their products, to choose those in unmask/fast/kernels/tiles.py.

    python -m benchmarks.experts --formats bf16,fp8 --out FOLDER

The first line is the time of one mixture without its router in microseconds, compiled and captured as a CUDA
graph: with the library, with our kernels and the tiles in use, and the least time in which its weights
arrive. The best tiles of each product follow. Several layers take turns, so that no weight stays in the GPU's
cache. Everything that needs a compiler is compiled in parallel first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.tiles import microseconds
from unmask.bench.timing import machine
from unmask.fast.experts import Slots, run_experts, stacks, tiles_for
from unmask.fast.graphs import allow_shapes
from unmask.fast.kernels import SHARED_MEMORY
from unmask.fast.kernels.tiles import GROUP, Tile
from unmask.fast.quantized import QUANTIZE_ROWS
from unmask.models.experts import Experts, ExpertShape, Route, grouped_product
from unmask.models.quantized.convert import FORMATS
from unmask.models.quantized.experts import QuantizedExperts
from unmask.models.quantized.linear import QuantizedLinear

TURNS = 3  # layers that take turns
PROCESSES = 14  # processes that compile
BANDWIDTH = 4.3e6  # bytes per microsecond that an H200 reads
BEST = 4  # tiles to print
Layer = Experts | QuantizedExperts


class Case(NamedTuple):
    """A mixture of experts and its number of tokens."""

    model: str
    experts: int
    chosen: int
    size: int
    width: int  # width of an expert
    tokens: int


CASES = (
    Case("LLaDA-MoE", 64, 8, 2048, 1024, 384),
    Case("LLaDA-MoE", 64, 8, 2048, 1024, 3072),
    Case("LLaDA2-mini", 256, 8, 2048, 512, 32),
    Case("LLaDA2-mini", 256, 8, 2048, 512, 384),
)


def tiles(name: str, case: Case, *, gated: bool) -> Iterator[Tile]:
    """Yield the tiles to try, with as many stages as let 1, 2 or 3 programs share a multiprocessor."""
    average = case.tokens * case.chosen / case.experts
    rows: tuple[int, ...] = next(
        rows for most, rows in ((8, (16,)), (24, (16, 32)), (96, (64,)), (1 << 20, (128,))) if average <= most
    )
    if name == "int4":  # the sums of a group double the registers
        rows = tuple({min(each, 64) for each in rows})
    inner = ((32, 64) if gated else (64, 128)) if name == "bf16" else (GROUP,)
    of_row, of_weight = {"bf16": (2.0, 2.0), "int4": (2.0, 0.5)}.get(name, (1.0, 1.0))  # bytes per number
    shapes = ((64, 4), (128, 4), (128, 8), *(() if gated else ((256, 8),)))  # outputs and warps
    programs = (1, 2) if average > 96 else (1, 2, 3) if average > 24 else (2, 3)
    found = set()
    loads = (False,) if name == "int4" else (False, True)
    for many, (outputs, warps), step, sharing, copies in product(rows, shapes, inner, programs, loads):
        of_both = outputs * (2 if gated else 1)
        read = int((of_both * of_weight + many * of_row) * step)
        stages = min(8, (SHARED_MEMORY // sharing - 2048) // read)
        sums = many * of_both // (32 * warps)  # registers per thread
        if stages >= 2 and sums <= (64 if name == "int4" else 128):
            found.add(Tile(many, outputs, step, warps, stages, copies=copies))
    yield from sorted(found)


def layer(name: str, case: Case) -> Layer:
    """Return random experts in a format."""
    shape = ExpertShape(router="softmax", experts=case.experts, chosen=case.chosen, size=case.width)
    with torch.device("cuda"):
        experts = Experts(case.size, shape).requires_grad_(False)
        if name == "bf16":
            experts.grouped = True
            return experts.bfloat16()
        narrow = QuantizedExperts(experts, FORMATS[name].layer)
    for part in ("gate_up", "down"):
        of = getattr(narrow, part)
        of.weight, of.scale = of.encode(getattr(experts, part).flatten(0, 1))
        of.native = of.has_products(of.weight.device)
    narrow.grouped = True
    return narrow


def inputs(case: Case) -> tuple[Tensor, Route]:
    """Return random tokens and a random choice of experts for each."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(case.tokens, case.size, device="cuda", dtype=torch.bfloat16, generator=generator)
    score = torch.rand(case.tokens, case.experts, device="cuda", generator=generator)
    best = score.topk(case.chosen)
    return x, (best.values, best.indices)


def mixtures() -> dict[str, Callable[[Layer, Tensor, Route], Tensor]]:
    """Return the library's mixture and ours, compiled."""

    def library(layer: Layer, x: Tensor, route: Route) -> Tensor:
        return layer.run(x, route)

    return {
        "library": torch.compile(library, dynamic=False),
        "ours": torch.compile(run_experts, dynamic=False),
    }


def kernel(x: Tensor, route: Route, slots: Slots, tile: Tile, *, gated: bool) -> Callable[[Layer], Tensor]:
    """Return a function that computes one product of a layer with a tile. It quantizes the rows only once."""
    from unmask.fast.kernels.experts import expert_product

    count = route[1].numel()
    rows: dict[torch.dtype, tuple[Tensor, Tensor | None]] = {}

    def multiply(layer: Layer) -> Tensor:
        weight, scale = stacks(layer)[0 if gated else 1]
        if weight.dtype in QUANTIZE_ROWS and weight.dtype not in rows:
            rows[weight.dtype] = QUANTIZE_ROWS[weight.dtype](x)
        narrow, row_scale = rows.get(weight.dtype, (x, None))
        return expert_product(
            narrow, row_scale, weight, scale, slots, count, tile, gated=gated, dtype=torch.bfloat16
        )

    return multiply


def expected(layer: Layer, x: Tensor, route: Route, *, gated: bool) -> Tensor:
    """Compute one product of a layer with the library, in bfloat16."""
    of = layer.gate_up if gated else layer.down
    if isinstance(layer, QuantizedExperts) and isinstance(of, QuantizedLinear):
        wide = layer.stacked(of.decode(of.weight, of.scale, of.inputs, torch.bfloat16))
    else:
        wide = stacks(layer)[0 if gated else 1][0]
    by_expert, order = route[1].flatten().int().sort(stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(len(wide), device="cuda").int(), right=True)
    rows = grouped_product(wide, x[order // (len(order) // len(x))], ends.int())
    if gated:
        gate, up = rows.float().chunk(2, dim=-1)
        rows = F.silu(gate) * up
    return torch.empty_like(rows).index_copy_(0, order, rows).float()


def least_time(route: Route, stack: Tensor) -> float:
    """Return the microseconds in which the weights of the chosen experts arrive."""
    used = route[1].flatten().bincount(minlength=len(stack)).count_nonzero()
    return float(used) / len(stack) * stack.nbytes / BANDWIDTH


def attempt(what: object, work: Callable[[], None]) -> None:
    """Run `work`. Print its error instead of raising it, so that the rest still runs."""
    try:
        work()
    except Exception as error:
        problem = (str(error).splitlines() or [""])[0][:120]
        print("FAILED", what, type(error).__name__, problem, flush=True)


def warm(names: list[str], number: int) -> None:
    """Compile the share of process `number`."""
    from unmask.fast.kernels.experts import sort_pairs

    def whole(name: str, case: Case, path: str) -> None:
        x, route = inputs(case)
        mixtures()[path](layer(name, case), x, route)

    def one(name: str, case: Case, gated: bool, tile: Tile) -> None:
        few = case._replace(experts=case.chosen, tokens=16)  # the small case needs the same kernel
        x, route = inputs(few)
        rows = x if gated else x.new_zeros(route[1].numel(), case.width)
        slots = sort_pairs(route[1], few.experts, tile.rows)
        kernel(rows, route, slots, tile, gated=gated)(layer(name, few))

    jobs: list[Callable[[], None]] = [
        partial(whole, *each) for each in product(names, CASES, ("library", "ours"))
    ]
    seen = set()
    for name, case, gated in product(names, CASES, (True, False)):
        for tile in tiles(name, case, gated=gated):
            if (name, case.model, gated, tile) not in seen:
                seen.add((name, case.model, gated, tile))
                jobs.append(partial(one, name, case, gated, tile))
    for job in jobs[number::PROCESSES]:
        attempt("to compile", job)


def measure(name: str, case: Case, deadline: float) -> dict[str, object]:
    """Time the mixture of a case, then the tiles of its products."""
    layers = [layer(name, case) for _ in range(TURNS)]
    x, route = inputs(case)
    (gate_up, _), (down, _) = stacks(layers[0])
    least = least_time(route, gate_up) + least_time(route, down)
    found: dict[str, object] = {**case._asdict(), "format": name, "weights": least}
    print(f"\n{case.model}, {case.tokens} tokens, {name}; tiles {tiles_for(gate_up, down, route[1].numel())}")
    results: dict[str, Tensor] = {}

    def whole(path: str, call: Callable[[Layer, Tensor, Route], Tensor]) -> None:
        found[path] = microseconds(lambda layer: call(layer, x, route), layers)
        results[path] = call(layers[0], x, route)

    for path, call in mixtures().items():
        attempt((name, case, path), partial(whole, path, call))
    if len(results) == 2:
        off = (results["ours"] - results["library"]).std() / results["library"].std()
        found["off"] = float(off)
    times = {key: round(value, 4) for key, value in found.items() if isinstance(value, float)}
    print("  ", times, flush=True)
    for gated in (True, False):
        measure_tiles(name, case, layers, found, deadline, gated=gated)
    return found


def measure_tiles(
    name: str, case: Case, layers: list[Layer], found: dict[str, object], deadline: float, *, gated: bool
) -> None:
    """Time the tiles of one product and print the best."""
    from unmask.fast.kernels.experts import sort_pairs

    x, route = inputs(case)
    if not gated:
        x = torch.randn(route[1].numel(), case.width, device="cuda", dtype=torch.bfloat16)
    exact = expected(layers[0], x, route, gated=gated)
    slots = {rows: sort_pairs(route[1], case.experts, rows) for rows in (16, 32, 64, 128)}
    times: list[tuple[float, Tile, float]] = []

    def one(tile: Tile) -> None:
        call = kernel(x, route, slots[tile.rows], tile, gated=gated)
        off = float((call(layers[0]).float() - exact).std() / exact.std())
        times.append((microseconds(call, layers), tile, off))

    skipped = 0
    for tile in tiles(name, case, gated=gated):
        if time.monotonic() > deadline:
            skipped += 1
        else:
            attempt((name, case.model, tile), partial(one, tile))
    times.sort(key=lambda each: each[0])
    which = "gate_up" if gated else "down"
    stack = stacks(layers[0])[0 if gated else 1][0]
    least = least_time(route, stack)
    worst = max((off for *_, off in times), default=0.0)
    late = f", {skipped} tiles skipped: too late" if skipped else ""
    print(f"   {which}: weights {least:.1f}, off {worst:.4f}, {len(times)} tiles{late}")
    for taken, tile, _ in times[:BEST]:
        print(f"      {taken:8.1f}  {tile}", flush=True)
    found[which] = [[*tile, round(taken, 2), round(off, 5)] for taken, tile, off in times]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--formats", default="bf16,fp8", help="of bf16, fp8, int8 and int4")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=1.5, help="after which no more tiles are timed")
    parser.add_argument("--compile-share", type=int, help="number of a process that compiles")
    options = parser.parse_args()
    names = options.formats.split(",")
    allow_shapes()
    if options.compile_share is not None:
        return warm(names, options.compile_share)
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.experts", "--formats", options.formats, "--compile-share"]
    shares = [subprocess.Popen([*command, str(number)]) for number in range(PROCESSES)]
    for share in shares:
        share.wait()
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    found: list[dict[str, object]] = []
    for name, case in product(names, CASES):
        work = partial(measure, name, case, started + 60 * options.minutes)
        attempt((name, case), lambda work=work: found.append(work()))  # type: ignore[misc]
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            line = f"python -m benchmarks.experts --formats {options.formats}"
            content = {"command": line, "machine": machine(torch.device("cuda")), "microseconds": found}
            (options.out / "experts.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"done after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
