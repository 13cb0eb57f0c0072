"""An experiment: the runs it needs, and the report that is built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from unmask.experiments.grid import Cells, RunKey, collect
from unmask.experiments.lab import Lab, Watch
from unmask.experiments.report import Report
from unmask.experiments.runs import Outcome, Run
from unmask.experiments.stats import FEWEST, NO_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One section of the results page, such as a table or figure of the paper.

    Attributes:
        name: Its name in `unmask reproduce`.
        title: Its title on the results page.
        about: How it is made, and how it differs from the paper's.
        runs: Returns the runs that it needs.
        build: Builds the report from the outcomes of the runs, per model.
        then: Returns further runs, chosen from the outcomes. None means there are none.
    """

    name: str
    title: str
    about: str
    runs: Callable[[Lab], Mapping[RunKey, Run]]
    build: Callable[[Lab, Sequence[Cells]], Report]
    then: Callable[[Lab, Sequence[Cells]], Mapping[RunKey, Run]] | None = None

    def make(self, lab: Lab, watch: Watch | None = None) -> tuple[Report, dict[Run, Outcome]]:
        """Make the missing runs and build the report. Also return the outcome of every run."""
        runs, outcomes = self.gather(lab, watch)
        return _explained(self.build(lab, _cells(runs, outcomes))), outcomes

    def gather(self, lab: Lab, watch: Watch | None = None) -> tuple[dict[RunKey, Run], dict[Run, Outcome]]:
        """Make the missing runs. Return all runs and their outcomes."""
        runs = dict(self.runs(lab))
        outcomes = lab.results(runs.values(), watch)
        if self.then is not None:
            runs |= self.then(lab, _cells(runs, outcomes))
            outcomes |= lab.results(runs.values(), watch)
        return runs, outcomes


def _explained(report: Report) -> Report:
    """Add a note on missing intervals if the report has any."""
    cells = [cell for table in report.tables for row in table.rows for cell in row]
    if not any(NO_INTERVAL in text for text in (*cells, *(one.numbers for one in report.findings))):
        return report
    note = f"{NO_INTERVAL}: no interval, because a task has fewer than {FEWEST} samples; raise --limit."
    return replace(report, notes=(*report.notes, note))


def _cells(runs: Mapping[RunKey, Run], outcomes: Mapping[Run, Outcome]) -> list[Cells]:
    return collect({key: outcomes[run] for key, run in runs.items()})
