"""A model of a grid as `evidence` judges it, and the groups that models fall into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unmask.evals.agreement import MAX_CHANGED, Agreement
from unmask.evals.agreement import choose as choose_bar
from unmask.experiments import stats
from unmask.experiments.frontier import choose
from unmask.experiments.frontier_study import Method
from unmask.experiments.grid import Cells
from unmask.experiments.runs import Outcome
from unmask.training.grid import Trained

RECOMMENDED, BASE, GATED, UNGATED = "First mask", "Base", "LESS", "LESS, confidence only"
END_RULE = "Threshold, end rule"
HALVES = (0, 1)
Outcomes = Mapping[str, Outcome]  # by task


@dataclass(frozen=True)
class Judged:
    """A model of the grid: the chosen settings and the curves of its samplers."""

    trained: Trained
    cells: Cells
    study: Sequence[Method]
    bars: Sequence[Agreement]

    @property
    def name(self) -> str:
        """Its name in tables, without the hash."""
        return f"{self.trained.family}-{self.trained.size}-{self.trained.seed}"

    @cached_property
    def methods(self) -> list[Method]:
        """The samplers that ran on it."""
        return [method for method in self.study if set(method.swept) <= set(self.cells.rows)]

    @cached_property
    def chosen(self) -> dict[str, list[str]]:
        """The settings of each sampler for the first half of the items and for the second."""
        return {method.label: [self._best(method, 1 - half) for half in HALVES] for method in self.methods}

    def _best(self, method: Method, half: int) -> str:
        """Return a sampler's best setting on a half of the items, or on all items if the half is empty."""
        rows = {label: self.cells.rows[label] for label in method.swept}
        halves = {
            label: {task: one for task, one in _half(outcomes, half).items() if one.records}
            for label, outcomes in rows.items()
        }
        return choose(halves if all(halves.values()) else rows, list(method.swept))

    @cached_property
    def tuned(self) -> dict[str, Outcomes]:
        """Each sampler at its chosen settings."""
        return {method: self.at(settings) for method, settings in self.chosen.items()}

    def at(self, settings: Sequence[str]) -> Outcomes:
        """Return the outcomes of each half of the items at its own setting."""
        parts = [_half(self.cells.rows[label], half) for half, label in zip(HALVES, settings, strict=True)]
        return {
            task: replace(one, records=tuple(record for part in parts for record in part[task].records))
            for task, one in self.cells.rows[settings[0]].items()
        }

    @cached_property
    def areas(self) -> dict[str, stats.Area]:
        """The accuracy under parallelism of each sampler."""
        rows = self.cells.rows
        return stats.aup(
            {method.label: stats.curve([rows[label] for label in method.swept]) for method in self.methods}
        )

    def ran(self, *samplers: str) -> bool:
        """Whether all of these samplers ran on it."""
        return set(samplers) <= set(self.tuned)

    def without(self, task: str) -> Judged:
        """Return the model as it would be judged without a task."""
        rows = {
            label: {name: one for name, one in outcomes.items() if name != task}
            for label, outcomes in self.cells.rows.items()
        }
        return replace(self, cells=Cells(self.cells.model, rows))

    def gap(self, first: str, second: str) -> stats.Estimate:
        """Return the tuned accuracy of the second sampler minus that of the first, in points."""
        return stats.difference(self.tuned[first], self.tuned[second])

    @property
    def ungated(self) -> Outcomes:
        """LESS without its gate, at the bars that were chosen for LESS."""
        return self.at([UNGATED + setting.removeprefix(GATED) for setting in self.chosen[GATED]])

    @property
    def bar_settings(self) -> dict[float, str]:
        """The settings of the recommended sampler by their bar."""
        method = next(method for method in self.study if method.label == RECOMMENDED)
        assert method.sweep is not None
        return dict(zip(method.sweep[1], method.swept, strict=True))

    @property
    def unlabelled_bar(self) -> float:
        """The bar that would be chosen without labels, among those that ran."""
        return choose_bar([bar for bar in self.bars if bar.bar in self.bar_settings], MAX_CHANGED).bar

    @property
    def unlabelled(self) -> Outcomes:
        """The recommended sampler at the bar that was chosen without labels."""
        return self.cells.rows[self.bar_settings[self.unlabelled_bar]]


def _half(outcomes: Outcomes, half: int) -> dict[str, Outcome]:
    """Return every second item of each task, in the order of the ids."""
    return {
        task: replace(one, records=tuple(sorted(one.records, key=lambda record: record.id)[half::2]))
        for task, one in outcomes.items()
    }


def pooled_gain(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> stats.Estimate:
    """Return what the second of each pair gains, in points. An item counts once, with its mean over pairs."""
    return stats.macro_gain(
        {
            task: [stats.gains(first[task].records, second[task].records) for first, second in pairs]
            for task in pairs[0][0]
        }
    )


def by_family(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in judged:
        found.setdefault(one.trained.family, []).append(one)
    return found


def by_size(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: one.trained.parameters):
        found.setdefault(one.trained.size, []).append(one)
    return found


def by_kind(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Return the models of each family and size."""
    return {
        f"{family}-{size}": group
        for size, both in by_size(judged).items()
        for family, group in by_family(both).items()
    }


def most_seeds(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Return, for each family, the models of the size with the most seeds. The largest size wins a tie."""
    groups = sorted(by_kind(judged).values(), key=len)
    return list({group[0].trained.family: group for group in groups}.values())
