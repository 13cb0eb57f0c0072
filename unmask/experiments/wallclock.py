"""Seconds per sample on this machine, one sample at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from unmask.evals.manifest import device_name
from unmask.evals.records import settings_of
from unmask.experiments import drawing, methods, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.flops import first_task
from unmask.experiments.grid import Cells, short
from unmask.experiments.lab import Lab
from unmask.experiments.paper import reported
from unmask.experiments.report import Picture, Report, Table, above, flat
from unmask.experiments.runs import Run
from unmask.samplers.wrapper import kind
from unmask.text.generate import generate
from unmask.text.prompts import TextModel, device_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 10
WARM_UP = 2  # samples decoded before the clock starts, as in the paper
STOPPED = "Base that stops at the end"


def _declare(lab: Lab, model: str) -> dict[str, Run]:
    task = first_task(lab, model)
    samplers = methods.paper_methods(lab.family(model), task)
    runs = {label: lab.run(model, task, sampler) for label, sampler in samplers.items()}
    full = lab.run(model, task, samplers["Base"], stop_at_eos=False)
    return {"Base": full, STOPPED: runs.pop("Base"), **runs}


def measure(model: TextModel, prompts: list[Any], run: Run) -> dict[str, Any]:
    """Return seconds and steps per prompt, each decoded alone after a warm-up."""
    for prompt in prompts[:WARM_UP]:
        generate(model, [prompt], run.sampler, run.config)
    seconds, steps = [], []
    for prompt in prompts:
        _synchronize(model)
        began = perf_counter()
        [answer] = generate(model, [prompt], run.sampler, run.config)
        _synchronize(model)
        seconds.append(perf_counter() - began)
        steps.append(answer.steps)
    return {"seconds": seconds, "steps": steps}


def _synchronize(model: TextModel) -> None:
    """Wait for the device to finish."""
    device = device_of(model)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measured(lab: Lab, model: str) -> dict[str, dict[str, Any]]:
    measured = {}
    for label, run in _declare(lab, model).items():
        samples = lab.samples(run.task, SAMPLES)
        settings = {
            "task": run.task,
            "samples": len(samples),
            "sampler": [kind(run.sampler), settings_of(run.sampler)],
            "config": settings_of(run.config),
        }

        def make(run: Run = run, samples: list[Any] = samples) -> dict[str, Any]:
            loaded = lab.model(run.model)
            times = measure(loaded, [sample.prompt for sample in samples], run)
            return {**times, "device": device_name(loaded), "threads": torch.get_num_threads()}

        measured[label] = lab.measurement(model, "wallclock", settings, make)
    return measured


def _build(lab: Lab, _: Sequence[Cells]) -> Report:
    by_model = {model: _measured(lab, model) for model in lab.models}
    return Report(
        tables=tuple(_table(model, times) for model, times in by_model.items()),
        pictures=(_picture(by_model),),
        findings=flat(
            [
                [
                    above(
                        f"{short(model)}: LESS is faster than {base}",
                        stats.ratio(times[base]["seconds"], times["LESS"]["seconds"]),
                        1.0,
                        unit="times as fast",
                    )
                    for base in ("Base", STOPPED)
                ]
                for model, times in by_model.items()
            ]
        ),
    )


def _table(model: str, by_label: Mapping[str, Mapping[str, Any]]) -> Table:
    rows, data, paper = [], [], reported("wallclock", model)
    for label, times in by_label.items():
        seconds: list[float] = times["seconds"]
        deviation = stdev(seconds) if len(seconds) > 1 else 0.0
        printed = paper.get(label)
        rows.append(
            (
                label,
                f"{fmean(seconds):.3g} ± {deviation:.2g}",
                stats.ratio(by_label["Base"]["seconds"], seconds).shown(2),
                f"{fmean(times['steps']):.1f}",
                "" if printed is None else f"{printed[0]} ± {printed[1]}",
            )
        )
        for number, (second, steps) in enumerate(zip(seconds, times["steps"], strict=True)):
            data.append(
                {"model": short(model), "method": label, "place": number, "seconds": second, "steps": steps}
            )
    first = next(iter(by_label.values()))
    title = f"{short(model)}, one sample at a time on {first['device']}, {first['threads']} CPU threads"
    header = ("method", "seconds per sample ± deviation", "speed-up against Base", "steps", "paper, s")
    return Table(f"wallclock-{short(model)}", title, header, tuple(rows), tuple(data))


def _picture(by_model: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(by_model), width=4.8, height=2.6)
        for panel, (model, times) in zip(axes, by_model.items(), strict=True):
            values = {label: stats.mean(one["seconds"]) for label, one in times.items()}
            colours = [drawing.colour(label) for label in values]
            drawing.bars(panel, values, colours, label="seconds per sample", digits=2)
            faster = stats.ratio(times["Base"]["seconds"], times["LESS"]["seconds"])
            message = f"LESS is {faster.shown()} times as fast as Base"
            drawing.title(panel, short(model), message)
        return figure

    return Picture("wallclock", "Mean seconds per sample, with 95 % intervals.", draw)


EXPERIMENT = Experiment(
    name="wallclock",
    title="Wall-clock time",
    about=(
        f"The first {SAMPLES} samples, each decoded alone between two synchronisations of the device, after "
        f"{WARM_UP} samples of warm-up per method. These figures depend on the machine; they are kept, not "
        "measured again."
    ),
    runs=lambda lab: {},
    build=_build,
)
