"""`unmask bench growth`: how the cost of a step grows with the canvas and with the batch.

Each time is compared with two floors: the time for the forward's arithmetic, and the time to read its weights
once. Both assume rates that an H200 reaches on large products and copies. On other devices they serve for
comparison only.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch

from unmask.bench.device import full_size_device
from unmask.bench.internals import read_bytes
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.step import NAMES, WAYS, Sizes, StepTimer, full_size
from unmask.bench.timing import machine, machine_line, timed
from unmask.experiments.drawing import COLOURS, colour, legend, panels, save_png
from unmask.experiments.forward_cost import forward_flops
from unmask.fast.compile import compile
from unmask.models.trunk import Trunk

FLOPS_PER_SECOND = 790e12
BYTES_PER_SECOND = 4.3e12
WARM_STEPS = 3  # enough to run a decision of every shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The sizes to run. A third of the columns is prompt."""

    columns: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)  # tried with one row
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    usual: int = 384  # columns of each row while the number of rows grows
    steps: int = 8
    runs: int = 5
    warmups: int = 1


SMALL = Range(columns=(24, 48), rows=(1, 2, 4), usual=24, steps=4, runs=2)


class Point(TypedDict):
    """One size, in milliseconds."""

    rows: int
    columns: int
    forward_ms: float
    step_ms: float
    compute_floor_ms: float
    bytes_floor_ms: float
    tokens_per_second: float  # counts all columns, the prompt included


@torch.no_grad()
def run_growth(
    *,
    families: Sequence[str] = tuple(NAMES),
    way: str = "compiled",
    device: str | None = None,
    small: bool = False,
    minutes: float = 20.0,
    out: Path | None = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure, print the table, and write `out`/growth.json and `out`/growth.png. Return the results."""
    check_names("families", families, NAMES)
    check_names("ways", [way], WAYS)
    place = full_size_device(device, small=small)
    options = [("families", ",".join(families)), ("ways", way), ("device", place.type)]
    content: dict[str, Any] = {
        "command": command_line("unmask bench growth", [*options, ("minutes", f"{minutes:g}")], small=small),
        "machine": machine(place),
        "rates": {"flops_per_second": FLOPS_PER_SECOND, "bytes_per_second": BYTES_PER_SECOND},
        "way": way,
        "families": {},
    }
    path = None if out is None else out / "growth.json"
    report = Report(content, path, time.monotonic() + minutes * 60, log)
    for family in families:
        log(f"{NAMES[family]}: making the weights")
        model = full_size(family, place, small=small)
        if (settings := WAYS[way]) is not None:
            compile(model, **settings)
        points = content["families"].setdefault(NAMES[family], {})
        for rows, columns in sizes(SMALL if small else Range()):
            work = partial(point, model, rows, columns, SMALL if small else Range(), place)
            report.attempt(points, f"{rows} x {columns}", work)
        del model, work
        gc.collect()  # a compiled model and its runner form a reference cycle
    log(f"\n{table(content)}")
    report.draw(draw, "growth.png")
    report.write()
    return report.result()


def sizes(given: Range) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of every point, cheap ones first."""
    wanted = {(1, columns) for columns in given.columns} | {(rows, given.usual) for rows in given.rows}
    yield from sorted(wanted, key=lambda size: (size[0] * size[1], size))


def point(model: Trunk, rows: int, columns: int, given: Range, device: torch.device) -> Point:
    """Time a forward by itself, and a step of `less` in a short run without a cache."""
    prompt = columns // 3
    lengths = Sizes(prompt=prompt, length=columns - prompt, runs=given.runs, warmups=given.warmups)
    timer = StepTimer(model, lengths, device)
    forward = timer.forward(rows)
    run = partial(timer.decode, rows, "none", fill_leftovers=False)
    run(steps=WARM_STEPS)
    taken, result = timed(partial(run, steps=given.steps), device)
    step = taken * 1e3 / result.evaluations
    flops = forward_flops(model.shape, columns, head_columns=columns - prompt) * rows
    return Point(
        rows=rows,
        columns=columns,
        forward_ms=forward,
        step_ms=step,
        compute_floor_ms=flops / FLOPS_PER_SECOND * 1e3,
        bytes_floor_ms=read_bytes(model) / BYTES_PER_SECOND * 1e3,
        tokens_per_second=rows * columns / step * 1e3,
    )


def table(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}; milliseconds",
        "",
        "| | B | N | forward | step of `less` | compute floor | bytes floor | tokens per second |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, points in content["families"].items():
        for found in points.values():
            times = (found[key] for key in ("forward_ms", "step_ms", "compute_floor_ms", "bytes_floor_ms"))
            cells = " | ".join(f"{value:.2f}" for value in times)
            lines.append(
                f"| {name} | {found['rows']} | {found['columns']} | {cells} "
                f"| {found['tokens_per_second']:,.0f} |"
            )
    return "\n".join(lines)


def draw(content: Mapping[str, Any], path: Path) -> None:
    """Draw time over columns, time over rows and tokens per second for each family, as a PNG."""
    families = {name: list(points.values()) for name, points in content["families"].items() if points}
    if not families:
        raise ValueError("nothing was measured")
    figure, axes = panels(3 * len(families), width=4, height=3.4, columns=3)
    by_family = zip(axes[::3], axes[1::3], axes[2::3], strict=True)
    for (name, points), (by_columns, by_rows, rate) in zip(families.items(), by_family, strict=True):
        alone = sorted((p for p in points if p["rows"] == 1), key=lambda p: p["columns"])
        usual = min(p["columns"] for p in points if p["rows"] == max(p["rows"] for p in points))
        batch = sorted((p for p in points if p["columns"] == usual), key=lambda p: p["rows"])
        _times(by_columns, alone, "columns")
        _times(by_rows, batch, "rows")
        by_columns.set_title(f"{name}, B = 1", fontsize=10)
        by_rows.set_title(f"{name}, N = {usual}", fontsize=10)
        rate.set_title(f"{name}, N = {usual}", fontsize=10)
        _rate(rate, batch)
    legend(figure, axes[0])
    save_png(figure, path)


LINES: dict[str, dict[str, Any]] = {  # drawn in this order, later ones on top
    "compute_floor_ms": {"label": "floor: arithmetic", "color": "0.3", "linestyle": "--"},
    "bytes_floor_ms": {"label": "floor: reading the weights", "color": "0.3", "linestyle": ":"},
    "forward_ms": {
        "label": "forward",
        "color": COLOURS[0],
        "marker": "s",
        "markersize": 9,
        "fillstyle": "none",
    },
    "step_ms": {"label": "step of less", "color": colour("LESS"), "marker": "o", "markersize": 4},
}


def _times(axes: Any, points: Sequence[Point], over: str) -> None:
    found: Sequence[Mapping[str, Any]] = points
    for key, look in LINES.items():
        axes.plot([p[over] for p in found], [p[key] for p in found], **look)
    _below(axes, [p[over] for p in found], {"columns": "columns N", "rows": "rows B"}[over])
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds")


def _rate(axes: Any, points: Sequence[Point]) -> None:
    """Draw the tokens per second and their arithmetic limit."""
    rows = [p["rows"] for p in points]
    most = [p["rows"] * p["columns"] / p["compute_floor_ms"] * 1e3 for p in points]
    axes.plot(rows, most, **LINES["compute_floor_ms"])
    axes.plot(rows, [p["tokens_per_second"] for p in points], **LINES["step_ms"])
    _below(axes, rows, "rows B")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("tokens per second")


def _below(axes: Any, sizes: Sequence[int], label: str) -> None:
    """Label a logarithmic axis with the sizes. Of two sizes close together, label the first."""
    ticks: list[int] = []
    for size in sizes:
        if not ticks or size >= 1.6 * ticks[-1]:
            ticks.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(True, alpha=0.3)
