"""Runs on a Ray cluster: a Ray Data pool of workers, each with a copy of the model, decodes the batches.

A row of the dataset is the number of one batch, so batches and records are the same as in a single process.
Only the driver writes files. Ray restarts a worker that dies, and its batch is decoded again.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from unmask.errors import whole
from unmask.evals.batches import EvalBatch
from unmask.evals.decode import Decoded
from unmask.evals.manifest import Manifest, describe_model
from unmask.evals.run import BATCH_SIZE, EvalJob, Out, Watch, finish, make_job
from unmask.evals.summary import Summary
from unmask.evals.task import Sample, Task
from unmask.ray_cluster import connected, import_ray
from unmask.sandbox import require_isolation
from unmask.sandbox.isolation import UNSAFE, unsafe_code
from unmask.text.config import GenerationConfig
from unmask.text.prompts import TextModel
from unmask.types import Sampler

ATTEMPTS = 3  # Ray restarts dead workers forever; a batch that kills each of them ends the run

Load = Callable[[], TextModel]  # called once by every worker


class Attempts:
    """Counts the attempts at each batch; all workers share it, so it survives them."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Count one more attempt at this batch, and return how many there have been."""
        self.counts[number] += 1
        return self.counts[number]


class Worker:
    """A Ray actor with a copy of the model; decodes batches by their number."""

    def __init__(self, load: Load, job: EvalJob, batches: Sequence[EvalBatch], attempts: Any) -> None:
        self.job = job
        self.batches = {batch.number: batch for batch in batches}
        self.attempts = attempts
        self.model = load()
        model, expected = describe_model(self.model), job.manifest.configuration["model"]
        if model != expected:
            raise ValueError(f"a worker has the model {model}, but the run began with {expected}")
        if job.task.runs_programs:
            _check_isolation(job.manifest)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Decode the batch of a row; return an error as a value, because Ray Data would hide its message."""
        try:
            result: Decoded | Exception = self._decode(self.batches[row["number"]])
        except Exception as error:
            result = error
        return {"result": pickle.dumps(result)}

    def _decode(self, batch: EvalBatch) -> Decoded:
        if _ray().get(self.attempts.begin.remote(batch.number)) > ATTEMPTS:
            ids = [one.sample.id for one in batch.samples]
            raise ValueError(
                f"{ATTEMPTS} workers died on the batch from {ids[0]} to {ids[-1]}; lower the batch size, "
                "or see Ray's log"
            )
        return self.job.decode(self.model, batch)


@dataclass(frozen=True)
class Cluster:
    """A connection to a Ray cluster."""

    load: Load
    workers: int
    gpu: bool  # a GPU for every worker, else a CPU

    def evaluate_samples(
        self,
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
        """Run a task; the records are the same as in a single process."""
        job = self._job(task, samples[:limit], sampler, config, batch_size)
        job = replace(job, rest=samples[len(job.samples) :])
        return finish(job, lambda batches: self.decode(job, batches), out, progress, overwrite=overwrite)

    def _job(
        self, task: Task, samples: Sequence[Sample], sampler: Sampler, config: GenerationConfig, size: int
    ) -> EvalJob:
        """Make the job on a worker: this process may have no GPU, and need not load the model."""
        ray, load = _ray(), self.load

        def plan() -> EvalJob:
            if task.runs_programs:
                require_isolation()
            return make_job(load(), task, samples, sampler, config, batch_size=size)

        with _plain_errors():
            job: EvalJob = ray.get(ray.remote(plan).options(**self._share()).remote())
        environment = {**job.manifest.environment, "workers": self.workers}
        return replace(job, manifest=replace(job.manifest, environment=environment))

    def decode(self, job: EvalJob, batches: Sequence[EvalBatch]) -> Iterator[Decoded]:
        """Yield the batches in the order in which they finish."""
        ray = _ray()
        attempts = ray.remote(Attempts).options(num_cpus=0).remote()
        numbers = [{"number": batch.number} for batch in batches]
        rows = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(
            Worker,
            fn_constructor_args=(self.load, replace(job, samples=(), rest=()), batches, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(self.workers, len(numbers))),
            **self._share(),
        )
        with _plain_errors():
            for row in rows.iter_rows():
                result = pickle.loads(row["result"])
                if isinstance(result, Exception):
                    raise result
                yield result

    def _share(self) -> dict[str, int]:
        """Return the resources of a worker."""
        return {"num_gpus": 1} if self.gpu else {"num_cpus": 1}


@contextmanager
def connect(address: str, load: Load, *, workers: int | None = None, gpu: bool = True) -> Iterator[Cluster]:
    """Connect to a cluster by its address; "local" starts one here, which ends with the context.

    By default there is one worker per GPU, or one per CPU if there is no GPU or `gpu` is false.
    """
    if workers is not None:
        whole("workers", workers, 1)
    variables = {UNSAFE: "1"} if unsafe_code() else {}
    with connected(address, "ray.data", variables=variables) as ray:
        _quieten()
        slots = ray.cluster_resources()
        on_gpu = gpu and slots.get("GPU", 0) >= 1
        kind = "GPU" if on_gpu else "CPU"
        most = int(slots.get(kind, 0))
        if (workers or 1) > most:
            raise ValueError(f"workers must be at most {most}, the {kind}s of the cluster; got {workers}")
        yield Cluster(load, workers or most, on_gpu)


def _check_isolation(manifest: Manifest) -> None:
    """Raise if this worker isolates programs less strictly than the manifest says."""
    seen, recorded = require_isolation(), manifest.environment.get("isolation", "")
    if seen.allowed and str(seen) != recorded:
        raise ValueError(f"a worker isolates programs by {seen}, but the run began with {recorded}")


def _quieten() -> None:
    """Turn off the progress bars of Ray Data; we show our own."""
    context = _ray().data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel("ERROR")


def _ray() -> Any:
    """Return the module `ray` with its data library."""
    return import_ray("ray.data")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the errors of workers as if they happened here."""
    errors = _ray().exceptions
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, ValueError | OSError) else error from None
    except errors.RayActorError as error:
        raise ValueError(f"the workers failed: {error}") from error
