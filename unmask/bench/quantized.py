"""`unmask bench quantized`: accuracy of the quantized formats beside plain weights, paired by question.

Both small models answer the questions of the seven mini tasks. Runs are kept in the folder of `--out` and
read again, so a killed command goes on where it was.
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
MOST_LOST = {"fp8": 0.5, "int8": 0.5, "int4": 1.5}  # points of macro accuracy
LOWEST = {"fp8": -1.0, "int8": -1.0}  # points that the interval over all samplers must lie above
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
    """Answer `items` questions of each task (None: all), print the table, and write `out`/quantized.json."""
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
                found[ALL] = _over_samplers(answers, len(samplers))
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
    """Answer with plain weights, then in each format; store the differences, and add the answers by dtype."""
    plain: Outcomes | None = None
    for dtype, lab in labs.items():
        if dtype != PLAIN and plain is None:
            return  # nothing to compare with
        report.log(f"{model}, {sampler}, {dtype}")
        made: list[Outcomes] = []
        report.attempt(found, dtype, partial(_answer, lab, model, sampler, plain, made.append))
        answers.setdefault(dtype, []).extend(made)
        if dtype == PLAIN and made:
            [plain] = made


def _answer(
    lab: Lab, model: str, sampler: str, plain: Outcomes | None, keep: Callable[[Outcomes], None]
) -> dict[str, Any]:
    """Return the accuracy of one dtype, and its difference to that of plain weights."""
    rule = SAMPLERS[sampler](lab.family(model))
    runs = {task: lab.run(model, task, rule) for task in lab.tasks(model)}
    made = lab.results(runs.values())
    outcomes = {task: made[run] for task, run in runs.items()}
    keep(outcomes)
    result: dict[str, Any] = {
        "accuracy": stats.accuracy(outcomes).value,
        "questions": sum(len(one.records) for one in outcomes.values()),
        "forwards": stats.macro({task: one.forwards for task, one in outcomes.items()}),
        "by_task": {task: 100 * one.accuracy for task, one in outcomes.items()},
    }
    if plain is None:
        return result
    return result | _points(stats.difference(plain, outcomes)) | _changed([(plain, outcomes)])


def _over_samplers(answers: Mapping[str, Sequence[Outcomes]], count: int) -> dict[str, Any]:
    """Compare each format with plain weights, a question's difference being its mean over all samplers."""
    found: dict[str, Any] = {}
    plain = answers.get(PLAIN, ())
    for dtype, of_samplers in answers.items():
        if len(plain) < count or len(of_samplers) < count:
            continue  # a sampler is missing
        if min(len(one.records) for one in plain[0].values()) < stats.FEWEST:
            continue  # no interval
        accuracy = fmean(stats.accuracy(outcomes).value for outcomes in of_samplers)
        forwards = fmean(
            stats.macro({task: one.forwards for task, one in outcomes.items()}) for outcomes in of_samplers
        )
        questions = sum(len(one.records) for outcomes in of_samplers for one in outcomes.values())
        found[dtype] = {"accuracy": accuracy, "questions": questions, "forwards": forwards}
        if dtype != PLAIN:
            pairs = list(zip(plain, of_samplers, strict=True))
            gaps = {task: _gaps([(one[task], two[task]) for one, two in pairs]) for task in plain[0]}
            found[dtype] |= _points(stats.macro_mean(gaps).scaled(100)) | _changed(pairs)
    return found


def _gaps(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Return, for each question of a task, the mean over pairs of runs of what the second gained."""
    gains: dict[str, list[float]] = {}
    for first, second in pairs:
        before = {record.id: record.correct for record in first.records}
        for record in second.records:
            gains.setdefault(record.id, []).append(float(record.correct) - before[record.id])
    return [fmean(each) for each in gains.values()]


def _points(gap: stats.Estimate) -> dict[str, float]:
    return {"points": gap.value, "low": gap.low, "high": gap.high}


def _changed(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> dict[str, int]:
    """Count the questions that the second runs lost and gained."""
    flips = [stats.flips(one[task].records, two[task].records) for one, two in pairs for task in one]
    return {"lost": sum(each[0] for each in flips), "gained": sum(each[1] for each in flips)}


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for model, samplers in content["results"].items():
        for sampler, dtypes in samplers.items():
            for dtype, found in dtypes.items():
                yield model, sampler, dtype, found


def wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the formats that lost more than they may."""
    for model, sampler, dtype, found in _rows(content):
        if found.get("points", 0.0) < -MOST_LOST.get(dtype, 0.0):
            most = f"at most {MOST_LOST[dtype]:g} may be lost"
            yield f"{model}, {sampler}: {dtype} lost {-found['points']:.2f} points, {most}"
        if sampler == ALL and found.get("low", 0.0) <= LOWEST.get(dtype, -100.0):
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
