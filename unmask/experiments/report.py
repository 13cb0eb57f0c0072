"""A report: tables, figures, and findings computed from the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.experiments.stats import Estimate, holm, p_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TINY = 1e-9  # smaller p-values are shown as a bound
ALPHA = 0.05  # the chance of one wrong decision in a family of corrected claims
Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of formatted cells, and its numbers in full precision."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[Mapping[str, Any], ...] = ()  # a mapping per row of the CSV file

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines) + "\n"

    def csv(self) -> str:
        """Return the numbers as CSV, or the cells if there are none."""
        rows = self.data or [dict(zip(self.header, row, strict=True)) for row in self.rows]
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that is drawn on demand."""

    name: str
    caption: str
    draw: Callable[[], Drawing]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.png"


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement and whether the numbers support it."""

    statement: str
    verdict: Verdict
    numbers: str

    def sentence(self) -> str:
        """Return the finding as one line."""
        return f"{self.statement}: **{self.verdict}** ({self.numbers})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The tables, figures and findings of an experiment."""

    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # Markdown
    glance: Table | None = None  # the table that a page begins with; its title is a sentence


def above(statement: str, estimate: Estimate, threshold: float = 0.0, *, unit: str = "points") -> Finding:
    """Test whether the whole interval of an estimate lies above a threshold."""
    return _decided(statement, estimate.low > threshold, estimate.high < threshold, estimate, threshold, unit)


def below(statement: str, estimate: Estimate, threshold: float = 0.0, *, unit: str = "points") -> Finding:
    """Test whether the whole interval of an estimate lies below a threshold."""
    return _decided(statement, estimate.high < threshold, estimate.low > threshold, estimate, threshold, unit)


def corrected(
    claims: Sequence[tuple[str, Estimate]], bar: float = 0.0, *, unit: str = "points", digits: int = 2
) -> list[Finding]:
    """Test whether estimates lie above a bar, corrected for the number of claims by Holm's method."""
    p_values = holm([p_value(estimate, bar) for _, estimate in claims])
    found = []
    for (statement, estimate), p in zip(claims, p_values, strict=True):
        sure = p < ALPHA
        verdict: Verdict = "undecided" if not sure else "holds" if estimate.value > bar else "does not hold"
        limit = f", bar {bar:g}" if bar else ""
        chance = f"= {p:.2g}" if p >= TINY else f"< {TINY:g}"
        numbers = f"{estimate.shown(digits, sign=bar == 0)} {unit}{limit}, Holm p {chance}"
        found.append(Finding(statement, verdict, numbers))
    return found


def _decided(
    statement: str, true: bool, false: bool, estimate: Estimate, threshold: float, unit: str
) -> Finding:
    verdict: Verdict = "holds" if true else "does not hold" if false else "undecided"
    limit = f", bar {threshold:g}" if threshold else ""
    return Finding(statement, verdict, f"{estimate.shown(2, sign=threshold == 0)} {unit}{limit}")


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
    """Join groups into one tuple."""
    return tuple(item for group in groups for item in group)
