"""Runs on a Ray cluster: a Ray Data pool of actors, each with a replica of the model, decodes the batches.

A row of the dataset is the number of one batch, so batches are those of a single process, and so are the
records. The driver alone writes. An actor that dies is started again and its batch decoded again.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import whole
from unmask.evals.batches import Batch
from unmask.evals.decode import Decoded
from unmask.evals.fingerprint import fingerprint
from unmask.evals.manifest import device_name
from unmask.evals.run import BATCH_SIZE, Job, Watch, finish, make_job
from unmask.evals.summary import Summary
from unmask.evals.task import Sample, Task
from unmask.ray_cluster import connected, import_ray
from unmask.text.config import GenerationConfig
from unmask.text.prompts import TextModel
from unmask.types import Sampler

ATTEMPTS = 3  # Ray starts dead actors again without end; a batch that kills every one of them must not

Load = Callable[[], TextModel]  # called once by every actor


class Attempts:
    """Counts how often each batch was begun; one for all replicas, so it outlives them."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """How often this batch was begun, this time included."""
        self.counts[number] += 1
        return self.counts[number]


class Replica:
    """An actor's copy of the model; decodes batches by their number."""

    def __init__(self, load: Load, job: Job, attempts: Any) -> None:
        self.job = job
        self.attempts = attempts
        self.model = load()
        known = {"fingerprint": fingerprint(self.model), "device": device_name(self.model)}
        wanted = job.manifest.configuration["model"]
        if known != wanted:
            raise ValueError(f"a worker has the model {known}, but the run began with {wanted}")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Row in, row out; an error travels as one too, because Ray Data would bury its message."""
        try:
            result: Decoded | Exception = self._decode(self.job.batches[row["number"]])
        except Exception as error:
            result = error
        return {"result": pickle.dumps(result)}

    def _decode(self, batch: Batch) -> Decoded:
        if _ray().get(self.attempts.begin.remote(batch.number)) > ATTEMPTS:
            ids = [question.sample.id for question in batch.questions]
            raise ValueError(
                f"{ATTEMPTS} workers died on the batch from {ids[0]} to {ids[-1]}; lower the batch size, "
                "or see Ray's log"
            )
        return self.job.decode(self.model, batch)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

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
        out: str | Path | None = None,
        batch_size: int = BATCH_SIZE,
        progress: Watch | None = None,
    ) -> Summary:
        """As in a single process, with the same records."""
        job = self._job(task, samples, sampler, config, batch_size)
        return finish(job, lambda batches: self._decode(job, batches), out, progress)

    def _job(
        self, task: Task, samples: Sequence[Sample], sampler: Sampler, config: GenerationConfig, size: int
    ) -> Job:
        """The job as a worker sees it: this process may have no GPU, and need not load the model."""
        ray, load = _ray(), self.load

        def plan() -> Job:
            return make_job(load(), task, samples, sampler, config, batch_size=size)

        with _plain_errors():
            job: Job = ray.get(ray.remote(plan).options(**self._share()).remote())
        environment = {**job.manifest.environment, "workers": self.workers}
        return replace(job, manifest=replace(job.manifest, environment=environment))

    def _decode(self, job: Job, batches: Sequence[Batch]) -> Iterator[Decoded]:
        """The batches as they get done."""
        ray = _ray()
        attempts = ray.remote(Attempts).options(num_cpus=0).remote()
        numbers = [{"number": batch.number} for batch in batches]
        rows = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(
            Replica,
            fn_constructor_args=(self.load, job, attempts),
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
        """What a worker takes of the cluster."""
        return {"num_gpus": 1} if self.gpu else {"num_cpus": 1}


@contextmanager
def connect(address: str, load: Load, *, workers: int | None = None, gpu: bool = True) -> Iterator[Cluster]:
    """A cluster by its address, or one on this machine ("local") that ends with the context.

    Workers are one per GPU, or one per CPU where there is none or `gpu` is false.
    """
    if workers is not None:
        whole("workers", workers, 1)
    with connected(address, "ray.data") as ray:
        _quieten()
        slots = ray.cluster_resources()
        on_gpu = gpu and slots.get("GPU", 0) >= 1
        kind = "GPU" if on_gpu else "CPU"
        there = int(slots.get(kind, 0))
        if (workers or 1) > there:
            raise ValueError(f"workers must be at most {there}, the {kind}s of the cluster; got {workers}")
        yield Cluster(load, workers or there, on_gpu)


def _quieten() -> None:
    """Our own progress is shown, not Ray Data's."""
    context = _ray().data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel("ERROR")


def _ray() -> Any:
    """Ray with its data library, which is imported by nobody else."""
    return import_ray("ray.data")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What went wrong in a worker, as it would be raised here."""
    errors = _ray().exceptions
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, ValueError | OSError) else error from None
    except errors.RayActorError as error:
        raise ValueError(f"the workers could not go on: {error}") from error
