"""Run a benchmark: samples in, summary out. The decoder of the batches is a parameter, see cluster.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from unmask.errors import FieldError, whole
from unmask.evals.batches import EvalBatch, encode, make_batches
from unmask.evals.decode import Decoded, decode_batch
from unmask.evals.folder import SUMMARY, RunFolder, write_json
from unmask.evals.manifest import Manifest, describe
from unmask.evals.records import Record, Timing, hash_line, to_line
from unmask.evals.summary import Summary, summarize
from unmask.evals.task import Sample, Task
from unmask.samplers.registry import as_sampler
from unmask.text.config import GenerationConfig
from unmask.text.generate import DEFAULT_SAMPLER, check_settings
from unmask.text.prompts import TextModel
from unmask.types import Sampler

BATCH_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run."""

    done: int  # samples
    total: int
    correct: int
    steps: int
    forwards: int
    resumed: int  # samples that were done before the run was resumed
    seconds: float  # since the run was started or resumed

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate from the samples done since the start, or None before the first."""
        decoded = self.done - self.resumed
        return self.seconds / decoded * (self.total - self.done) if decoded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """The batches of a run and the settings to decode them."""

    task: Task
    batches: Sequence[EvalBatch]
    sampler: Sampler
    config: GenerationConfig
    manifest: Manifest

    def decode(self, model: TextModel, batch: EvalBatch) -> Decoded:
        """Decode one batch."""
        return decode_batch(model, self.task, batch, self.sampler, self.config)


Watch: TypeAlias = Callable[[Progress], None]  # called at the start and after every batch
Decode: TypeAlias = Callable[[Sequence[EvalBatch]], Iterable[Decoded]]  # in any order


def evaluate(
    model: TextModel,
    task: Task,
    sampler: str | Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig | None = None,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Watch | None = None,
) -> Summary:
    """Decode a task's samples and judge the answers; with `out`, store every batch and resume a stopped run.

    `sampler` is a sampler or its name. Without a config, the task sets length and stop strings. `data` is a
    local folder of benchmark files.
    To evaluate a compiled model, hand in `unmask.compile(model)`.
    """
    _check_objects(model, task)
    samples = load_samples(task, data, limit)
    settings = config or task_config(task)
    return evaluate_samples(
        model, task, samples, as_sampler(sampler), settings, out=out, batch_size=batch_size, progress=progress
    )


def _check_objects(model: object, task: object) -> None:
    """Raise if the model or the task is a name."""
    if isinstance(model, (str, Path)):
        raise FieldError("model", model, "must be a loaded model", f"write unmask.load({str(model)!r})")
    if not isinstance(task, Task):
        name = task if isinstance(task, str) else "gsm8k"
        raise FieldError("task", task, "must be a Task", f"write unmask.evals.get_task({name!r})")


def evaluate_samples(
    model: TextModel,
    task: Task,
    samples: Sequence[Sample],
    sampler: Sampler,
    config: GenerationConfig,
    *,
    out: str | Path | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Watch | None = None,
) -> Summary:
    """Do the same as `evaluate`, with loaded samples."""
    job = make_job(model, task, samples, sampler, config, batch_size=batch_size)
    return finish(job, lambda batches: (job.decode(model, batch) for batch in batches), out, progress)


def task_config(task: Task) -> GenerationConfig:
    """Return the length and the stop strings of a task."""
    return GenerationConfig(max_new_tokens=task.max_new_tokens, stop=task.stop)


def load_samples(task: Task, data: str | Path | None = None, limit: int | None = None) -> list[Sample]:
    """Load the first `limit` samples of a task; raise if an id occurs twice."""
    if limit is not None:
        whole("limit", limit, 1)
    samples = list(task.load(None if data is None else Path(data)))[:limit]
    if not samples:
        raise ValueError(f"{task.name} has no samples{'' if data is None else f' in {data}'}")
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise ValueError(f"{task.name} has the sample {sample.id} twice; ids must be unique")
        seen.add(sample.id)
    return samples


def make_job(
    model: TextModel,
    task: Task,
    samples: Sequence[Sample],
    sampler: Sampler,
    config: GenerationConfig,
    *,
    batch_size: int,
) -> EvalJob:
    """Make the batches of a run and its manifest."""
    check_settings(sampler, config)
    if config.seed is None:
        config = replace(config, seed=0)  # a run must be the same when it is resumed
    if not isinstance(config.seed, int):
        raise FieldError("seed", config.seed, "must be one number for an evaluation")
    encoded = encode(model, samples, config.new_tokens(model.info))
    return EvalJob(
        task=task,
        batches=make_batches(encoded, batch_size),
        sampler=sampler,
        config=config,
        manifest=describe(model, task, encoded, sampler, config, batch_size),
    )


def finish(
    job: EvalJob, decode: Decode, out: str | Path | None = None, progress: Watch | None = None
) -> Summary:
    """Decode the batches that the folder does not hold yet, store each, and sum up."""
    if out is None:
        records, timings = _decode_rest(job, decode, None, [], [], progress)
        return summarize(records, timings, job.manifest)
    folder = RunFolder(Path(out))
    with folder.held():
        manifest = folder.begin(job.manifest)
        records, timings = _decode_rest(job, decode, folder, *folder.resume(job.batches), progress)
        summary = summarize(records, timings, manifest)
        write_json(folder.path / SUMMARY, asdict(summary))
    return summary


def _decode_rest(
    job: EvalJob,
    decode: Decode,
    folder: RunFolder | None,
    records: list[Record],
    timings: list[Timing],
    progress: Watch | None,
) -> tuple[list[Record], list[Timing]]:
    """Return all records and timings of the job; those passed in belong to its first batches."""
    resumed, began = len(records), perf_counter()
    last = began
    watch = progress or (lambda _: None)
    watch(_progress(job, records, resumed, 0.0))
    left = job.batches[len(timings) :]
    for decoded in in_order(decode(left), first=len(timings)) if left else ():
        now = perf_counter()
        timing = _timing(decoded, wall=now - last)
        if folder is not None:
            folder.append(decoded.records, timing)
        records.extend(decoded.records)
        timings.append(timing)
        last = now
        watch(_progress(job, records, resumed, now - began))
    return records, timings


def in_order(batches: Iterable[Decoded], *, first: int) -> Iterator[Decoded]:
    """Yield batches by number, each as soon as all before it are done; drop second copies."""
    early: dict[int, Decoded] = {}
    for decoded in batches:
        early[decoded.batch] = decoded
        while first in early:
            yield early.pop(first)
            first += 1


def _timing(decoded: Decoded, *, wall: float) -> Timing:
    return Timing(
        batch=decoded.batch,
        rows=len(decoded.records),
        seconds=decoded.seconds,
        scoring=decoded.scoring,
        wall=wall,
        peak_memory=decoded.peak_memory,
        hashes=tuple(hash_line(to_line(record)) for record in decoded.records),
    )


def _progress(job: EvalJob, records: Sequence[Record], resumed: int, seconds: float) -> Progress:
    return Progress(
        done=len(records),
        total=sum(len(batch.samples) for batch in job.batches),
        correct=sum(record.correct for record in records),
        steps=sum(record.steps for record in records),
        forwards=sum(record.forwards for record in records),
        resumed=resumed,
        seconds=seconds,
    )
