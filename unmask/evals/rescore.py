"""Judge stored texts again, without a model: after a scorer changed, or under another protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unmask.evals.decode import judge
from unmask.evals.records import Record, prompt_hash
from unmask.evals.task import Sample, Task, Verdict


@dataclass(frozen=True, slots=True)
class Rescored:
    """The records with their old and their new verdicts."""

    before: tuple[Record, ...]
    after: tuple[Record, ...]
    other_prompts: tuple[str, ...]  # ids of samples whose prompt has changed since

    @property
    def changed(self) -> list[tuple[Record, Record]]:
        """Return the old and the new record of every sample that is judged differently now."""
        pairs = zip(self.before, self.after, strict=True)
        return [(old, new) for old, new in pairs if old != new]


def rescore(task: Task, samples: Sequence[Sample], records: Sequence[Record]) -> Rescored:
    """Judge the records again; each must have its sample."""
    known = {sample.id: sample for sample in samples}
    missing = next((record.id for record in records if record.id not in known), None)
    if missing is not None:
        raise ValueError(
            f"{task.name} has no sample {missing}; name the task, the protocol and the data of the run"
        )
    own = [known[record.id] for record in records]
    verdicts = judge(task, own, [record.text for record in records]) if records else []
    pairs = list(zip(records, own, strict=True))
    return Rescored(
        before=tuple(records),
        after=tuple(_judged(record, verdict) for record, verdict in zip(records, verdicts, strict=True)),
        other_prompts=tuple(record.id for record, sample in pairs if record.prompt != prompt_hash(sample)),
    )


def _judged(record: Record, verdict: Verdict) -> Record:
    return replace(record, correct=verdict.correct, extracted=verdict.extracted, also=dict(verdict.also))
