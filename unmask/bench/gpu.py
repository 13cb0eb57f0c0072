"""`unmask bench gpu`: a reverse step at full size on one GPU, in tables and a file.

The weights are random, in the published shapes, and are made on the device. Every way to run the model is
compared with the first. Recorded forwards must write the same tokens, and the fused summary must match the
torch path.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from unmask.bench.device import full_size_device
from unmask.bench.gpu_table import table, wrong
from unmask.bench.internals import read_bytes
from unmask.bench.parts import draw_parts, parts_table
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.step import CACHES, NAMES, SMALL, WAYS, Sizes, StepTime, StepTimer, full_size
from unmask.bench.timing import machine
from unmask.fast.compile import compile
from unmask.samplers import SAMPLERS as REGISTERED

SAMPLERS = ("base", "klass", "less")
PROGRAM = "unmask bench gpu"


class Reference(Protocol):
    """A sampler from other code to time in the same run. See benchmarks/reference.py."""

    @property
    def name(self) -> str: ...

    def time(self, timer: StepTimer) -> StepTime: ...


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """The measurements to make, their device and their time limit."""

    families: Sequence[str] = tuple(NAMES)
    ways: Sequence[str] = tuple(WAYS)
    batches: Sequence[int | str] | None = None  # None means all of the sizes
    caches: Sequence[str] = tuple(CACHES)  # runs without a cache are always timed
    samplers: Sequence[str] = SAMPLERS
    device: str | None = None  # None means the first GPU, or the CPU for a small run
    small: bool = False
    minutes: float = 20.0

    def __post_init__(self) -> None:
        check_names("families", self.families, NAMES)
        check_names("ways", self.ways, WAYS)
        check_names("caches", self.caches, CACHES)
        check_names("samplers", self.samplers, list(dict.fromkeys((*SAMPLERS, *REGISTERED))))
        known = [str(batch) for batch in self._all_sizes.batches]
        check_names("batches", list(map(str, known if self.batches is None else self.batches)), known)
        # compiling cannot be undone, so the ways run in the order of WAYS
        object.__setattr__(self, "ways", [way for way in WAYS if way in self.ways])

    @property
    def _all_sizes(self) -> Sizes:
        return SMALL if self.small else Sizes()

    @property
    def sizes(self) -> Sizes:
        """The lengths and the chosen batch sizes."""
        return self._all_sizes if self.batches is None else self._all_sizes.only(list(map(int, self.batches)))

    def options(self) -> list[tuple[str, str]]:
        """Return the command line options that repeat the run."""
        lists: dict[str, Sequence[object]] = {
            "families": self.families,
            "ways": self.ways,
            "batches": self.sizes.batches,
            "caches": self.caches,
            "samplers": self.samplers,
        }
        chosen = [(name, ",".join(map(str, values))) for name, values in lists.items()]
        device = full_size_device(self.device, small=self.small).type
        return [*chosen, ("device", device), ("minutes", f"{self.minutes:g}")]


def run_gpu(
    settings: GpuSettings,
    *,
    out: Path | None = None,
    log: Callable[[str], None] = print,
    references: Sequence[Reference] = (),
    command: str | None = None,
) -> dict[str, Any]:
    """Measure, print the tables, and write `out`/gpu.json and `out`/gpu.png. Return the results.

    `command` is the command line to record, if it is not that of `unmask bench gpu`.
    """
    content: dict[str, Any] = {
        "command": command or command_line(PROGRAM, settings.options(), small=settings.small),
        "batches": list(settings.sizes.batches),
        "families": {},
    }
    path = None if out is None else out / "gpu.json"
    report = Report(content, path, time.monotonic() + settings.minutes * 60, log)
    measure(report, settings, references)
    for sentence in wrong(content):
        report.problem(sentence)
    log(f"\n{table(content)}")
    for family in content["families"].values():
        for way in WAYS:
            if "parts" in family.get(way, {}):
                log("\n" + parts_table(f"{family['name']} {way}", family[way]["parts"]))
    report.draw(draw_parts, "gpu.png")
    report.write()
    return report.result()


@torch.no_grad()
def measure(report: Report, settings: GpuSettings, references: Sequence[Reference]) -> None:
    """Check and time every family in every way, and store the results in the report."""
    device = full_size_device(settings.device, small=settings.small)
    report.content["machine"] = machine(device)
    for family in settings.families:
        report.log(f"{NAMES[family]}: making the weights")
        timer = StepTimer(full_size(family, device, small=settings.small), settings.sizes, device)
        results = report.content["families"].setdefault(family, {"name": NAMES[family]})
        _measure_family(report, timer, settings, references, results)
        del timer
        gc.collect()


def _measure_family(
    report: Report,
    timer: StepTimer,
    settings: GpuSettings,
    references: Sequence[Reference],
    results: dict[str, Any],
) -> None:
    report.attempt(results, "summary", timer.summary)
    report.attempt(results, "weight_bytes", partial(read_bytes, timer.model))
    for reference in references:  # before the model is compiled
        timed = results.setdefault("references", {})
        report.attempt(timed, reference.name, partial(reference.time, timer))
    for way in settings.ways:
        report.log(f"{results['name']}: {way}")
        if (options := WAYS[way]) is not None:
            compile(timer.model, bucket=timer.sizes.block, **options)
        _measure_way(report, timer, settings, results.setdefault(way, {}))


def _measure_way(report: Report, timer: StepTimer, settings: GpuSettings, found: dict[str, Any]) -> None:
    """Time the important parts first, and caches last, because their keys and values count as memory."""
    for batch in timer.sizes.batches:
        report.attempt(found, f"forward_b{batch}", partial(timer.forward, batch))
        report.attempt(found, f"step_b{batch}_none", partial(timer.step, batch, "none"))
        if batch == 1:
            for sampler in settings.samplers:
                timed = found.setdefault("samplers", {})
                report.attempt(timed, sampler, partial(timer.sampler, sampler))
            report.attempt(found, "parts", timer.parts)
    for cache in [name for name in ("dual", "prefix") if name in settings.caches]:
        for batch in timer.sizes.batches:
            if cache == "dual":
                report.attempt(found, f"block_b{batch}", partial(timer.block_forward, batch))
            report.attempt(found, f"step_b{batch}_{cache}", partial(timer.step, batch, cache))
    if len(settings.ways) > 1:
        report.attempt(found, "same_tokens", partial(timer.compare, settings.caches))
