"""Run a benchmark: samples in, summary out. The decoder of the batches is a parameter: see cluster.py."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from unmask.errors import FieldError, whole
from unmask.evals.batches import EncodedSample, EvalBatch, encode, make_batches
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

    done: int  # number of samples that are done
    total: int
    correct: int
    steps: int
    forwards: int
    resumed: int  # samples that were done before the run was resumed
    seconds: float  # since the run was started or resumed

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate from the samples decoded so far, or None before the first."""
        decoded = self.done - self.resumed
        return self.seconds / decoded * (self.total - self.done) if decoded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """The samples of a run and the settings to decode them."""

    task: Task
    samples: Sequence[EncodedSample]
    sampler: Sampler
    config: GenerationConfig
    batch_size: int
    manifest: Manifest
    rest: Sequence[Sample] = ()  # the task's samples beyond the limit; an earlier run may have decoded them

    def decode(self, model: TextModel, batch: EvalBatch) -> Decoded:
        """Decode one batch."""
        return decode_batch(model, self.task, batch, self.sampler, self.config)


Watch: TypeAlias = Callable[[Progress], None]  # called at the start and after every batch
Decode: TypeAlias = Callable[[Sequence[EvalBatch]], Iterable[Decoded]]  # yields batches in any order
Out: TypeAlias = str | Path | Callable[[Manifest], Path]  # a run's folder, or a function that names it


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
    overwrite: bool = False,
) -> Summary:
    """Decode a task's samples and judge the answers; with `out`, store every batch and resume a stopped run.

    `sampler` is a sampler or its name. A larger `limit` adds samples to a stored run, a smaller one reads its
    first samples only; `overwrite` starts anew. Without a config, the task sets length and stop strings.
    `data` is a local folder of benchmark files.
    To evaluate a compiled model, pass `unmask.compile(model)`.
    """
    _check_objects(model, task)
    check_limit(limit)
    return evaluate_samples(
        model,
        task,
        load_samples(task, data),
        as_sampler(sampler),
        config or task_config(task),
        out=out,
        limit=limit,
        batch_size=batch_size,
        progress=progress,
        overwrite=overwrite,
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
    out: Out | None = None,
    limit: int | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Watch | None = None,
    overwrite: bool = False,
) -> Summary:
    """Do the same as `evaluate`, with loaded samples."""
    job = make_job(model, task, samples[:limit], sampler, config, batch_size=batch_size)
    job = replace(job, rest=samples[len(job.samples) :])

    def decode(batches: Sequence[EvalBatch]) -> Iterator[Decoded]:
        return (job.decode(model, batch) for batch in batches)

    return finish(job, decode, out, progress, overwrite=overwrite)


def check_limit(limit: int | None) -> None:
    """Raise unless the limit is a count or None."""
    if limit is not None:
        whole("limit", limit, 1)


def task_config(task: Task) -> GenerationConfig:
    """Return a config with the length and the stop strings of a task."""
    return GenerationConfig(max_new_tokens=task.max_new_tokens, stop=task.stop)


def load_samples(task: Task, data: str | Path | None = None) -> list[Sample]:
    """Load the samples of a task; raise if an id occurs twice."""
    samples = list(task.load(None if data is None else Path(data)))
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
    """Encode the samples of a run and make its manifest."""
    check_settings(sampler, config)
    whole("batch_size", batch_size, 1)
    if config.seed is None:
        config = replace(config, seed=0)  # a run must be the same when it is resumed
    if not isinstance(config.seed, int):
        raise FieldError("seed", config.seed, "must be one number for an evaluation")
    encoded = encode(model, samples, config.new_tokens(model.info))
    return EvalJob(
        task=task,
        samples=encoded,
        sampler=sampler,
        config=config,
        batch_size=batch_size,
        manifest=describe(model, task, encoded, sampler, config, batch_size),
    )


def finish(
    job: EvalJob,
    decode: Decode,
    out: Out | None = None,
    progress: Watch | None = None,
    *,
    overwrite: bool = False,
) -> Summary:
    """Decode the samples that the folder does not hold yet, store each batch, and summarize the run."""
    if out is None:
        records, timings = _decode_rest(job, decode, None, [], [], progress)
        return summarize(records, timings, job.manifest)
    folder = RunFolder(out(job.manifest) if callable(out) else Path(out))
    with folder.held():
        if overwrite:
            folder.clear()
        manifest = folder.begin(job.manifest, job.samples, job.rest)
        known = [*(one.sample for one in job.samples), *job.rest]
        stored = folder.resume(known, job.batch_size)
        records, timings = _decode_rest(job, decode, folder, *stored, progress)
        ids = {one.sample.id for one in job.samples}
        summary = summarize(*only(ids, records, timings), manifest)
        if len(records) == len(ids):
            write_json(folder.path / SUMMARY, asdict(summary))
    return summary


def only(
    ids: Container[str], records: Sequence[Record], timings: Sequence[Timing]
) -> tuple[list[Record], list[Timing]]:
    """Return the records of some samples, and their share of the time of each batch."""
    rows = iter(records)
    chosen, shares = [], []
    for timing in timings:
        part = [record for record in islice(rows, timing.rows) if record.id in ids]
        chosen += part
        if len(part) == timing.rows:
            shares.append(timing)
        elif part:
            share = len(part) / timing.rows
            times = {name: share * getattr(timing, name) for name in ("seconds", "scoring", "wall")}
            shares.append(replace(timing, rows=len(part), hashes=(), **times))
    return chosen, shares


def _decode_rest(
    job: EvalJob,
    decode: Decode,
    folder: RunFolder | None,
    records: list[Record],
    timings: list[Timing],
    progress: Watch | None,
) -> tuple[list[Record], list[Timing]]:
    """Return all records and timings of the run; the ones passed in are stored already."""
    done = {record.id for record in records}
    left = [one for one in job.samples if one.sample.id not in done]
    shown = [record for record in records if record.id in {one.sample.id for one in job.samples}]
    resumed, began = len(shown), perf_counter()
    last = began
    watch = progress or (lambda _: None)
    watch(_progress(job, shown, resumed, 0.0))
    batches = make_batches(left, job.batch_size, first=len(timings))
    for decoded in in_order(decode(batches), first=len(timings)) if batches else ():
        now = perf_counter()
        timing = _timing(decoded, wall=now - last)
        if folder is not None:
            folder.append(decoded.records, timing)
        records.extend(decoded.records)
        shown.extend(decoded.records)
        timings.append(timing)
        last = now
        watch(_progress(job, shown, resumed, now - began))
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
        total=len(job.samples),
        correct=sum(record.correct for record in records),
        steps=sum(record.steps for record in records),
        forwards=sum(record.forwards for record in records),
        resumed=resumed,
        seconds=seconds,
    )
