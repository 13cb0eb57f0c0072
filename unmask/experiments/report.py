"""What an experiment says: tables, figures, and findings that are computed from the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.experiments.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is read, and its numbers in full."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[Mapping[str, Any], ...] = ()  # a mapping per number or cell, for the CSV file

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines) + "\n"

    def csv(self) -> str:
        """The numbers in full, or the cells where there are none."""
        rows = self.data or [dict(zip(self.header, row, strict=True)) for row in self.rows]
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that is drawn when it is needed."""

    name: str
    caption: str
    draw: Callable[[], Drawing]

    @property
    def file(self) -> str:
        """What its file is called."""
        return f"{self.name}.png"


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement, and whether the numbers bear it out."""

    statement: str
    verdict: Verdict
    numbers: str

    def sentence(self) -> str:
        """The finding as one line."""
        return f"{self.statement}: **{self.verdict}** ({self.numbers})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole answer of an experiment."""

    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # ready Markdown


def above(statement: str, estimate: Estimate, bar: float = 0.0, *, unit: str = "points") -> Finding:
    """A finding that an estimate lies above a bar: its whole interval decides."""
    return _decided(statement, estimate.low > bar, estimate.high < bar, estimate, bar, unit)


def below(statement: str, estimate: Estimate, bar: float = 0.0, *, unit: str = "points") -> Finding:
    """A finding that an estimate lies below a bar."""
    return _decided(statement, estimate.high < bar, estimate.low > bar, estimate, bar, unit)


def _decided(statement: str, true: bool, false: bool, estimate: Estimate, bar: float, unit: str) -> Finding:
    verdict: Verdict = "holds" if true else "does not hold" if false else "undecided"
    limit = f", bar {bar:g}" if bar else ""
    return Finding(statement, verdict, f"{estimate.shown(2, sign=bar == 0)} {unit}{limit}")


def write(report: Report, tables: Path, figures: Path) -> list[Path]:
    """Write the tables as Markdown and CSV and the figures as PNG, each into its folder."""
    from unmask.experiments.drawing import save_png

    for folder in (tables, figures):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in report.tables:
        for ending, content in ((".md", table.markdown()), (".csv", table.csv())):
            written.append(tables / f"{table.name}{ending}")
            written[-1].write_text(content, encoding="utf-8")
    return [*written, *(save_png(picture.draw(), figures / picture.file) for picture in report.pictures)]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def flat(groups: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """One tuple of many."""
    return tuple(item for group in groups for item in group)
