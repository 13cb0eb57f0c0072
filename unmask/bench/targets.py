"""`unmask bench gpu --dtypes ...`: compare a step of `less` with its floor, for every dtype, batch and cache.

The floor is the larger of two times: to read the weights once, and to do the arithmetic, at rates that an
H200 reaches. The weights are random, in the published shapes. Their agreement with bf16 shows how much a
format rounds. A trained model is surer of its tokens, so rounding changes fewer of them.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.bench.device import full_size_device
from unmask.bench.gpu import PROGRAM, GpuSettings
from unmask.bench.growth import BYTES_PER_SECOND, FLOPS_PER_SECOND
from unmask.bench.internals import all_bytes, read_bytes
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.step import NAMES, WAYS, Sizes, StepTimer, full_size
from unmask.bench.timing import machine, machine_line
from unmask.experiments.forward_cost import forward_flops
from unmask.fast.compile import compile
from unmask.models.quantized.convert import quantize_model
from unmask.models.trunk import Shape, Trunk

PLAIN = "bf16"
# speed of the layers' products relative to bf16; attention and the head always run in bf16
SPEED = {PLAIN: 1, "fp8": 2, "int8": 2, "int4": 1}
CACHES = ("none", "dual")
FILE = "targets.json"


@torch.no_grad()
def run_targets(
    settings: GpuSettings,
    dtypes: Sequence[str],
    *,
    out: Path | None = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure, print the table, and write `out`/targets.json. Keep its earlier results of this device."""
    check_names("dtypes", dtypes, SPEED)
    check_names("caches", [name for name in settings.caches if name != "prefix"], CACHES)
    device = full_size_device(settings.device, small=settings.small)
    options = [pair for pair in settings.options() if pair[0] != "samplers"]  # for the other tables
    content: dict[str, Any] = {
        "command": command_line(PROGRAM, [("dtypes", ",".join(dtypes)), *options], small=settings.small),
        "machine": machine(device),
        "rates": {"flops_per_second": FLOPS_PER_SECOND, "bytes_per_second": BYTES_PER_SECOND, "times": SPEED},
        "families": {},
    }
    path = None if out is None else out / FILE
    if path is not None and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["machine"]["device"] == content["machine"]["device"]:
            content["families"] = kept["families"]
    report = Report(content, path, time.monotonic() + settings.minutes * 60, log)
    for family in settings.families:
        found = content["families"].setdefault(family, {"name": NAMES[family]})
        _measure_family(report, settings, family, dtypes, device, found)
    log(f"\n{table(content)}")
    report.write()
    return report.result()


def _measure_family(
    report: Report,
    settings: GpuSettings,
    family: str,
    dtypes: Sequence[str],
    device: torch.device,
    found: dict[str, Any],
) -> None:
    make = partial(full_size, family, device, small=settings.small)
    expected = _logits(StepTimer(make(), settings.sizes, device))
    for dtype in dtypes:
        report.log(f"{NAMES[family]}: {dtype}")
        results = found.setdefault(dtype, {})
        model = make() if dtype == PLAIN else quantize_model(make(), dtype)
        timer = StepTimer(model, settings.sizes, device)
        report.attempt(results, "weight_bytes", partial(all_bytes, model))
        report.attempt(results, "agreement", partial(_agreement, timer, expected))
        if (way := WAYS[settings.ways[-1]]) is not None:
            compile(model, bucket=timer.sizes.block, **way)
        for cache in [name for name in CACHES if name in settings.caches]:
            for batch in timer.sizes.batches:
                if (name := f"b{batch}_{cache}") not in results:
                    report.attempt(results, name, partial(_step, timer, dtype, batch, cache))
        report.attempt(results, "parts", timer.parts)
        del model, timer
        gc.collect()  # a compiled model and its runner form a reference cycle


def _logits(timer: StepTimer) -> Tensor:
    """Return the logits of a row of masks, on the CPU."""
    window = slice(timer.sizes.prompt, timer.sizes.prompt + timer.sizes.length)
    logits: Tensor = timer.model(timer.canvas(1).tokens, None, window, None)
    return logits[0].cpu()


def _agreement(timer: StepTimer, expected: Tensor) -> dict[str, float]:
    """Return the share of equal top-1 tokens, and the mean KL divergence from bf16."""
    left, right = (logits.float().log_softmax(-1) for logits in (expected, _logits(timer)))
    same = (left.argmax(-1) == right.argmax(-1)).float().mean()
    return {"top1": float(same), "kl": float((left.exp() * (left - right)).sum(-1).mean())}


def _step(timer: StepTimer, dtype: str, batch: int, cache: str) -> dict[str, float | None]:
    """Time a step without a cache, or inside a block with one, and compare it with its floor."""
    step = timer.step(batch, cache)
    taken = step["ms"] if cache == "none" else step["inside_ms"]
    floor = floor_ms(timer.model, timer.sizes, dtype, batch, cache)
    return {"step_ms": taken, "floor_ms": floor, "ratio": None if taken is None else taken / floor}


def floor_ms(model: Trunk, sizes: Sizes, dtype: str, batch: int, cache: str) -> float:
    """Return the least milliseconds of a step: the time to read its bytes or to do its arithmetic."""
    columns = sizes.prompt + sizes.length
    running, window = (columns, sizes.length) if cache == "none" else (sizes.block, sizes.block)
    products = _products(model.shape, running)
    rest = forward_flops(model.shape, running, head_columns=window) - products
    if cache != "none":  # queries of the block attend to the whole canvas
        rest += (
            model.shape.layers * 4 * model.shape.heads * model.shape.head_size * running * (columns - running)
        )
    seconds = batch * (products / SPEED[dtype] + rest) / FLOPS_PER_SECOND
    return 1e3 * max(seconds, read_bytes(model) / BYTES_PER_SECOND)


def _products(shape: Shape, columns: int) -> int:
    """Return the operations of the layers' products alone: `forward_flops` without attention and head."""
    attention = shape.layers * 4 * shape.heads * shape.head_size * columns**2
    return forward_flops(shape, columns, head_columns=0) - attention


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for family in content["families"].values():
        for dtype in SPEED:
            for name, found in family.get(dtype, {}).items():
                if isinstance(found, dict) and "step_ms" in found:
                    yield family["name"], dtype, name, found


def table(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}; milliseconds",
        "",
        "| | dtype | B | cache | step of `less` | floor | step / floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, dtype, name, found in _rows(content):
        batch, _, cache = name.removeprefix("b").partition("_")
        taken, ratio = found["step_ms"], found["ratio"]
        step, times = ("-", "-") if taken is None else (f"{taken:.2f}", f"{ratio:.2f}")
        lines.append(
            f"| {family} | {dtype} | {batch} | {cache} | {step} | {found['floor_ms']:.2f} | {times} |"
        )
    lines += ["", "| | dtype | GB | top-1 as bf16 | KL to bf16 |", "|---|---|---|---|---|"]
    for family in content["families"].values():
        for dtype in (name for name in SPEED if "agreement" in family.get(name, {})):
            found, same = family[dtype], family[dtype]["agreement"]
            cells = f"{found['weight_bytes'] / 1e9:.2f} | {same['top1']:.2%} | {same['kl']:.2g}"
            lines.append(f"| {family['name']} | {dtype} | {cells} |")
    return "\n".join(lines)
