"""Judge stored texts again, without a model: after a scorer changed, or under another protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unmask.evals.decode import judge
from unmask.evals.records import Record, prompt_hash
from unmask.evals.task import Sample, Task, Verdict


@dataclass(frozen=True, slots=True)
class Rescored:
    """The records under their new verdicts, beside the old ones."""

    before: tuple[Record, ...]
    after: tuple[Record, ...]
    asked_otherwise: tuple[str, ...]  # ids whose prompt is not the one that the texts answer

    @property
    def changed(self) -> list[tuple[Record, Record]]:
        """Old and new record of every sample whose verdict or reading is another now."""
        pairs = zip(self.before, self.after, strict=True)
        return [(old, new) for old, new in pairs if old != new]


def rescore(task: Task, samples: Sequence[Sample], records: Sequence[Record]) -> Rescored:
    """The records as the task judges them now; every one must have its sample."""
    known = {sample.id: sample for sample in samples}
    missing = next((record.id for record in records if record.id not in known), None)
    if missing is not None:
        raise ValueError(
            f"{task.name} has no sample {missing}; name the task, the protocol and the data of the run"
        )
    asked = [known[record.id] for record in records]
    verdicts = judge(task, asked, [record.text for record in records]) if records else []
    pairs = list(zip(records, asked, strict=True))
    return Rescored(
        before=tuple(records),
        after=tuple(_judged(record, verdict) for record, verdict in zip(records, verdicts, strict=True)),
        asked_otherwise=tuple(record.id for record, sample in pairs if record.prompt != prompt_hash(sample)),
    )


def _judged(record: Record, verdict: Verdict) -> Record:
    return replace(record, correct=verdict.correct, extracted=verdict.extracted, also=dict(verdict.also))
