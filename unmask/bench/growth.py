"""How the cost of a step grows with the canvas and with the batch, beside what the hardware allows.

The two floors are the time of a forward's arithmetic and that of reading its weights once, at rates that one
H200 reaches on large products and copies; on other devices they are lines to compare with, no limits.
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

from unmask.bench.gpu import NAMES, WAYS, Bench, Sizes, full_size
from unmask.bench.gpu_table import words
from unmask.bench.place import pick_place
from unmask.bench.report import Report, command, some_of
from unmask.bench.timing import machine, timed
from unmask.experiments.drawing import COLOURS, legend, panels, save_png
from unmask.experiments.forward_cost import forward_flops
from unmask.fast.compile import compile
from unmask.models.trunk import Trunk

FLOPS_PER_SECOND = 790e12
BYTES_PER_SECOND = 4.3e12
WARM_STEPS = 3  # after so many, every shape of a decision has been met


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What is run; a third of the columns is prompt."""

    columns: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)  # of one row
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    usual: int = 384  # columns where the rows grow
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
    tokens_per_second: float  # columns that went through the model


@torch.no_grad()
def run_growth(
    *,
    families: Sequence[str] = tuple(NAMES),
    way: str = "compiled",
    device: str | None = None,
    small: bool = False,
    minutes: float = 20.0,
    out: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The results, which are also in `out`/growth.json, with the figure beside it, and said as tables."""
    some_of("families", families, NAMES)
    some_of("ways", [way], WAYS)
    place = pick_place(device, small=small)
    options = [("families", ",".join(families)), ("ways", way), ("device", place.type)]
    content: dict[str, Any] = {
        "command": command("growth", [*options, ("minutes", f"{minutes:g}")], small=small),
        "machine": machine(place),
        "rates": {"flops_per_second": FLOPS_PER_SECOND, "bytes_per_second": BYTES_PER_SECOND},
        "way": way,
        "families": {},
    }
    path = None if out is None else out / "growth.json"
    report = Report(content, path, time.monotonic() + minutes * 60, say)
    for family in families:
        say(f"{NAMES[family]}: making the weights")
        model = full_size(family, place, small=small)
        if (settings := WAYS[way]) is not None:
            compile(model, **settings)
        points = content["families"].setdefault(NAMES[family], {})
        for rows, columns in sizes(SMALL if small else Range()):
            work = partial(point, model, rows, columns, SMALL if small else Range(), place)
            report.attempt(points, f"{rows} x {columns}", work)
        del model, work
        gc.collect()  # a compiled model and its runner hold each other
    say(f"\n{table(content)}")
    if out is not None:
        try:
            draw(content, out / "growth.png")
        except ValueError as error:  # a missing library is no reason to lose the numbers
            report.problem(f"no figure: {error}")
    report.write()
    return report.result()


def sizes(given: Range) -> Iterator[tuple[int, int]]:
    """Rows and columns of every point, cheap ones first."""
    wanted = {(1, columns) for columns in given.columns} | {(rows, given.usual) for rows in given.rows}
    yield from sorted(wanted, key=lambda size: (size[0] * size[1], size))


def point(model: Trunk, rows: int, columns: int, given: Range, device: torch.device) -> Point:
    """A forward by itself, and a step of `less` in a short run without a cache."""
    prompt = columns // 3
    lengths = Sizes(prompt=prompt, length=columns - prompt, runs=given.runs, warmups=given.warmups)
    bench = Bench(model, lengths, device)
    forward = bench.forward(rows)
    run = partial(bench.decode, rows, "none", fill_leftovers=False)
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
        bytes_floor_ms=bench.weight_bytes() / BYTES_PER_SECOND * 1e3,
        tokens_per_second=rows * columns / step * 1e3,
    )


def table(content: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"`{content['command']}`, {words(content['machine'])}; milliseconds",
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
    """Per family: time against columns, time against rows, and tokens per second, as a PNG."""
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


LINES: dict[str, dict[str, Any]] = {  # in the order in which they are drawn, one over the other
    "compute_floor_ms": {"label": "floor: arithmetic", "color": "0.3", "linestyle": "--"},
    "bytes_floor_ms": {"label": "floor: reading the weights", "color": "0.3", "linestyle": ":"},
    "forward_ms": {
        "label": "forward",
        "color": COLOURS[1],
        "marker": "s",
        "markersize": 9,
        "fillstyle": "none",
    },
    "step_ms": {"label": "step of less", "color": COLOURS[0], "marker": "o", "markersize": 4},
}


def _times(axes: Any, points: Sequence[Point], over: str) -> None:
    found: Sequence[Mapping[str, Any]] = points
    for key, look in LINES.items():
        axes.plot([p[over] for p in found], [p[key] for p in found], **look)
    _below(axes, [p[over] for p in found], {"columns": "columns N", "rows": "rows B"}[over])
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds")


def _rate(axes: Any, points: Sequence[Point]) -> None:
    """Tokens per second, and how many the arithmetic allows."""
    rows = [p["rows"] for p in points]
    most = [p["rows"] * p["columns"] / p["compute_floor_ms"] * 1e3 for p in points]
    axes.plot(rows, most, **LINES["compute_floor_ms"])
    axes.plot(rows, [p["tokens_per_second"] for p in points], **LINES["step_ms"])
    _below(axes, rows, "rows B")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("tokens per second")


def _below(axes: Any, sizes: Sequence[int], label: str) -> None:
    """A logarithmic axis of the sizes that were run; of two close ones the first is named."""
    ticks: list[int] = []
    for size in sizes:
        if not ticks or size >= 1.6 * ticks[-1]:
            ticks.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(True, alpha=0.3)
