"""The results page: every report, one after the other, with the machine that the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import short
from unmask.experiments.lab import Lab
from unmask.experiments.report import Finding, Report, save
from unmask.experiments.runs import Outcome

HEAD = """# Results

Every table and figure of the LESS paper, on the models and tasks named here. Built from stored records by
`unmask reproduce`; the same records give the same page. Intervals are 95 %: of accuracies and of their paired
differences by formula (Agresti and Coull, Agresti and Min), of other numbers by bootstrap over samples. A
finding is "yes" or "no" only where its whole interval says so; of so many intervals, some miss the truth by
chance.
"""


def write_page(
    path: Path, lab: Lab, reports: Mapping[Experiment, Report], outcomes: Sequence[Outcome]
) -> None:
    """Write the page, and its figures into a folder beside it."""
    figures = path.parent / path.stem
    figures.mkdir(parents=True, exist_ok=True)
    parts = [HEAD, _origin(lab, outcomes), _summary(reports)]
    parts += [_section(experiment, report, figures) for experiment, report in reports.items()]
    path.write_text("\n".join(parts), encoding="utf-8")


def _origin(lab: Lab, outcomes: Sequence[Outcome]) -> str:
    """Devices, versions and sizes, as the records have them."""
    if not outcomes:
        return ""
    devices = sorted({str(one.configuration["model"]["device"]) for one in outcomes})
    versions = sorted({_versions(one) for one in outcomes})
    dates = sorted({str(one.environment["date"])[:10] for one in outcomes})
    sizes = sorted({len(one.records) for one in outcomes})
    return (
        f"Models: {', '.join(map(short, lab.models))}. Samples per task: {', '.join(map(str, sizes))}. "
        f"Device: {', '.join(devices)}. {'; '.join(versions)}. "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}.\n"
    )


def _versions(outcome: Outcome) -> str:
    versions = outcome.configuration["versions"]
    return f"unmask {versions['unmask']}, torch {versions['torch']}"


def _summary(reports: Mapping[Experiment, Report]) -> str:
    findings = [finding for report in reports.values() for finding in report.findings]
    counts = {word: sum(one.verdict == word for one in findings) for word in ("yes", "no", "undecided")}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{len(findings)} findings: {told}.\n"


def _section(experiment: Experiment, report: Report, figures: Path) -> str:
    lines = [f"## {experiment.title}", "", f"`unmask reproduce {experiment.name}`. {experiment.about}", ""]
    for table in report.tables:
        lines += [f"**{table.title}**", "", table.markdown()]
    for picture in report.pictures:
        file = save(picture, figures)
        lines += [f"![{picture.caption}]({figures.name}/{file.name})", "", f"*{picture.caption}*", ""]
    lines += _told(report.findings)
    lines += [line for note in report.notes for line in (note, "")]
    return "\n".join([*lines, *report.texts])


def _told(findings: Sequence[Finding]) -> list[str]:
    return [*(f"- {finding.sentence()}" for finding in findings), ""] if findings else []
