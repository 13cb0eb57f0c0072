"""The results page: every report, and the machine that the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import short
from unmask.experiments.lab import Lab
from unmask.experiments.report import Finding, Report, Table, Verdict
from unmask.experiments.runs import Outcome

TITLE = "Results"  # title of a page with several experiments
ALONE = "Tables and findings"  # section title on a page with one experiment, which gives the page its title
HEAD = """\
`unmask reproduce` builds this page from stored records; the same records give the same page. Intervals are
95 %: Wilson's for accuracies, Agresti and Min's for paired differences of accuracies (both combined over
tasks by adding squares), bootstrap over samples for other numbers. A finding "holds" or "does not hold" only
if its whole interval lies on one side and, where a Holm p stands beside it, that p is below 0.05; otherwise
it is undecided. With this many intervals, some miss the true value by chance.
"""
READING = "reading.md"  # in the output folder, written by people


def write_page(
    path: Path,
    lab: Lab,
    reports: Mapping[Experiment, Report],
    outcomes: Sequence[Outcome],
    *,
    absent: Sequence[str] = (),
) -> None:
    """Write the page with links into `figures_folder(path)`. Name the absent experiments."""
    read = _reading(lab.settings.out / READING)
    alone = next(iter(reports)) if len(reports) == 1 else None
    parts = [
        f"# {TITLE if alone is None else alone.title}\n",
        *_first_table(reports),
        HEAD,
        _origin(lab, outcomes),
        _summary(reports),
        *read,
        _glance(lab, reports),
    ]
    if absent:
        parts.append(f"Left out, because records are missing: {', '.join(absent)}.\n")
    for experiment, report in reports.items():
        words = _words(lab.settings.out / f"{experiment.name}.md")
        title = experiment.title if alone is None else ALONE
        parts.append(_section(experiment, title, report, figures_folder(path).name, words))
    path.write_text("\n".join(parts), encoding="utf-8")


def figures_folder(page: Path) -> Path:
    """Return the folder next to a page that its figures belong in."""
    return page.parent / page.stem


def _first_table(reports: Mapping[Experiment, Report]) -> list[str]:
    """Return the opening table of the page and its sentence, from the last report that has one."""
    tables = [report.glance for report in reports.values() if report.glance]
    return [f"{table.markdown()}\n{table.title}\n" for table in tables[-1:]]


def _origin(lab: Lab, outcomes: Sequence[Outcome]) -> str:
    """Return devices, versions and sample counts, from the records."""
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
    counts = {word: sum(one.verdict == word for one in findings) for word in get_args(Verdict)}
    verdicts = ", ".join(f"{word}: {count}" for word, count in counts.items())
    return f"{len(findings)} findings: {verdicts}.\n"


def _reading(file: Path) -> list[str]:
    """Return the section written by people, if the file exists."""
    words = _words(file)
    return [f"## In plain words\n\n{words}\n"] if words else []


def _words(file: Path) -> str:
    """Return the text that people wrote in a file, or "" if the file does not exist."""
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _glance(lab: Lab, reports: Mapping[Experiment, Report]) -> str:
    """Return the table of findings about whole models."""
    models = list(map(short, lab.models))
    rows = []
    for experiment, report in reports.items():
        verdicts: dict[str, dict[str, str]] = {}
        for finding in report.findings:
            model, _, statement = finding.statement.partition(": ")
            if model in models:
                verdicts.setdefault(statement, {})[model] = f"{finding.verdict} ({finding.numbers})"
        rows += [
            (experiment.name, statement, *(by_model.get(model, "") for model in models))
            for statement, by_model in verdicts.items()
        ]
    if not rows:
        return ""
    table = Table("findings", "", ("experiment", "finding", *models), tuple(rows))
    head = "## What holds\n\nFindings about single tasks are in the sections below.\n"
    return f"{head}\n{table.markdown()}"


def _section(experiment: Experiment, title: str, report: Report, figures: str, words: str) -> str:
    """Return the section of an experiment. People's words about it come first."""
    lines = [f"## {title}", "", f"`unmask reproduce {experiment.name}`. {experiment.about}", ""]
    lines += [words, ""] if words else []
    for table in report.tables:
        lines += [f"**{table.title}**", "", table.markdown()]
    for picture in report.pictures:
        lines += [f"![{picture.caption}]({figures}/{picture.file})", "", f"*{picture.caption}*", ""]
    lines += _told(report.findings)
    lines += [line for note in report.notes for line in (note, "")]
    return "\n".join([*lines, *report.texts])


def _told(findings: Sequence[Finding]) -> list[str]:
    return [*(f"- {finding.sentence()}" for finding in findings), ""] if findings else []
