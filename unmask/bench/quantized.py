"""`unmask bench quantized`: compare the accuracy of quantized formats with plain weights, by question.

Both small models answer the questions of the seven mini tasks. Runs are stored in the folder `--out`, so
running a killed command again resumes it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from unmask.bench.report import Report, check_names, command_line
from unmask.bench.timing import machine, machine_line
from unmask.experiments import methods, stats
from unmask.experiments.lab import Lab, LabSettings
from unmask.experiments.runs import Outcome
from unmask.models.checkpoint.hub import SHIPPED
from unmask.models.checkpoint.load import pick_device
from unmask.samplers import SAMPLERS as REGISTERED
from unmask.samplers import Threshold
from unmask.types import Sampler

PLAIN = "auto"  # float32 on a CPU, bfloat16 on a GPU
MOST_LOST = {"fp8": 0.5, "int8": 0.5, "int4": 1.5}  # points of macro accuracy that a format may lose
LOWEST = {"fp8": -1.0, "int8": -1.0}  # points above which the interval over all samplers must begin
ALL = "all"  # the mean over the samplers
SAMPLERS: dict[str, Callable[[str], Sampler]] = {
    "base": methods.base,
    "less": lambda family: REGISTERED["less"],
    "threshold": lambda family: Threshold(min_confidence=0.9),
    "first-mask": lambda family: REGISTERED["first-mask"],
}
SMALL_TASKS = ("mini-mmlu", "mini-winogrande")
Outcomes = Mapping[str, Outcome]  # by task


def run_quantized(
    *,
    models: Sequence[str] = tuple(SHIPPED),
    dtypes: Sequence[str] = tuple(MOST_LOST),
    samplers: Sequence[str] = tuple(SAMPLERS),
    items: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    small: bool = False,
    minutes: float = 600.0,
    out: Path | None = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Answer `items` questions of each task, print the table, and write `out`/quantized.json.

    Without `items`, answer all questions, or two of each task in a small run. Return the results.
    """
    check_names("dtypes", dtypes, MOST_LOST)
    check_names("samplers", samplers, SAMPLERS)
    place = pick_device(device or ("cpu" if small else "auto"))
    tasks = SMALL_TASKS if small else tuple(f"mini-{role}" for role in methods.ROLES)
    count = 2 if small and items is None else items
    options = {"model": ",".join(models), "dtypes": ",".join(dtypes), "samplers": ",".join(samplers)}
    for name, value in {"items": items, "batch-size": batch_size}.items():
        options |= {} if value is None else {name: str(value)}
    options |= {"device": place.type, "minutes": f"{minutes:g}"}
    content: dict[str, Any] = {
        "command": command_line("unmask bench quantized", options.items(), small=small),
        "machine": machine(place),
        "tasks": list(tasks),
        "results": {},
    }
    path = None if out is None else out / "quantized.json"
    report = Report(content, path, time.monotonic() + minutes * 60, log)
    with tempfile.TemporaryDirectory() as spare:
        labs = {
            dtype: Lab(
                LabSettings(
                    models=tuple(models),
                    out=(out or Path(spare)) / "quantized" / dtype,
                    tasks=tasks,
                    limit=None if count is None else count * len(tasks),
                    device=str(place),
                    dtype=dtype,
                    batch_size=batch_size,
                )
            )
            for dtype in (PLAIN, *dtypes)
        }
        for model in models:
            answers: dict[str, list[Outcomes]] = {}
            found = content["results"].setdefault(model, {})
            for sampler in samplers:
                _compare(report, labs, model, sampler, found.setdefault(sampler, {}), answers)
            if len(samplers) > 1:
                found[ALL] = over_samplers(answers, len(samplers))
    for sentence in wrong(content):
        report.problem(sentence)
    log(f"\n{table(content)}")
    report.write()
    return report.result()


def _compare(
    report: Report,
    labs: Mapping[str, Lab],
    model: str,
    sampler: str,
    found: dict[str, Any],
    answers: dict[str, list[Outcomes]],
) -> None:
    """Answer with plain weights and then in each format. Add the differences to `found`."""
    made: dict[str, Outcomes] = {}
    for dtype, lab in labs.items():
        if dtype != PLAIN and PLAIN not in made:
            return  # nothing to compare with
        report.log(f"{model}, {sampler}, {dtype}")
        report.attempt(made, dtype, partial(_answer, lab, model, sampler))
        if dtype in made:
            found[dtype] = summary([made[dtype]])
            found[dtype] |= {"by_task": {task: 100 * one.accuracy for task, one in made[dtype].items()}}
            found[dtype] |= {} if dtype == PLAIN else difference([made[PLAIN]], [made[dtype]])
            answers.setdefault(dtype, []).append(made[dtype])
            report.write()


def _answer(lab: Lab, model: str, sampler: str) -> Outcomes:
    """Answer all tasks."""
    rule = SAMPLERS[sampler](lab.family(model))
    runs = {task: lab.run(model, task, rule) for task in lab.tasks(model)}
    made = lab.results(runs.values())
    return {task: made[run] for task, run in runs.items()}


def over_samplers(answers: Mapping[str, Sequence[Outcomes]], count: int) -> dict[str, Any]:
    """Compare each format with plain weights over `count` samplers, unless it lacks one of them."""
    complete = {dtype: runs for dtype, runs in answers.items() if len(runs) == count}
    if PLAIN not in complete:
        return {}
    found = {dtype: summary(runs) for dtype, runs in complete.items()}
    for dtype in complete.keys() - {PLAIN}:
        found[dtype] |= difference(complete[PLAIN], complete[dtype])
    return found


def summary(runs: Sequence[Outcomes]) -> dict[str, Any]:
    """Return the mean accuracy and forwards of some runs, and how many questions they answered."""
    return {
        "accuracy": fmean(stats.accuracy(run).value for run in runs),
        "questions": sum(len(one.records) for run in runs for one in run.values()),
        "forwards": fmean(stats.macro({task: one.forwards for task, one in run.items()}) for run in runs),
    }


def difference(plain: Sequence[Outcomes], runs: Sequence[Outcomes]) -> dict[str, float]:
    """Return the points that `runs` gain over `plain`. A question counts with its mean gain over the runs."""
    pairs = list(zip(plain, runs, strict=True))
    gains = {
        task: [stats.gains(one[task].records, two[task].records) for one, two in pairs] for task in plain[0]
    }
    gap = stats.macro_gain(gains)
    flips = [gain for part in gains.values() for run in part for gain in run.values()]
    changed = {"lost": flips.count(-1), "gained": flips.count(1)}
    return {**changed, "points": gap.value, "low": gap.low, "high": gap.high}


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for model, samplers in content["results"].items():
        for sampler, dtypes in samplers.items():
            for dtype, found in dtypes.items():
                yield model, sampler, dtype, found


def wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for every format that lost more than it may."""
    for model, sampler, dtype, found in _rows(content):
        if found.get("points", 0.0) < -MOST_LOST.get(dtype, 0.0):
            most = f"at most {MOST_LOST[dtype]:g} may be lost"
            yield f"{model}, {sampler}: {dtype} lost {-found['points']:.2f} points, {most}"
        if sampler == ALL and dtype in LOWEST and found["low"] <= LOWEST[dtype]:
            begin = f"the interval of {dtype} begins at {found['low']:+.2f}"
            yield f"{model}: {begin}, it must begin above {LOWEST[dtype]:g}"


def table(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}; {len(content['tasks'])} tasks",
        "",
        "| model | sampler | dtype | macro accuracy, % | points to plain [95 %] | lost / gained | forwards |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, sampler, dtype, found in _rows(content):
        gap = flips = ""
        if "points" in found:
            gap = f"{found['points']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"
            flips = f"{found['lost']} / {found['gained']} of {found['questions']}"
        cells = [model, f"`{sampler}`", "plain" if dtype == PLAIN else dtype, f"{found['accuracy']:.2f}"]
        cells += [gap, flips, f"{found['forwards']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
