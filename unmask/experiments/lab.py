"""The lab makes runs: it loads models and samples, decodes, and keeps the records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from unmask.errors import FieldError
from unmask.evals import get_task
from unmask.evals.batches import EncodedSample, EvalBatch, encode
from unmask.evals.decode import Decoded, decode_batch
from unmask.evals.fingerprint import fingerprint
from unmask.evals.manifest import describe
from unmask.evals.records import digest
from unmask.evals.run import EvalJob, Progress, finish, load_samples
from unmask.evals.task import Sample
from unmask.experiments import methods
from unmask.experiments.overlap import DevicePool
from unmask.experiments.runs import Outcome, Run
from unmask.experiments.store import Store
from unmask.fast.load import load_model
from unmask.models.checkpoint.config import read_config
from unmask.models.checkpoint.hub import SHIPPED, find_folder
from unmask.models.trunk import Trunk
from unmask.text.config import GenerationConfig
from unmask.text.fields import CacheName
from unmask.text.prompts import device_of
from unmask.training.grid import Trained, read_summary
from unmask.types import Sampler

GPU_BATCH = 64
CPU_BATCH = 4  # larger batches gain nothing on a CPU
SCORING = 2  # runs scored and written while the next one holds the GPU

Load: TypeAlias = Callable[["Lab", str], Trunk]  # loads a model by name, with the lab's settings
# decodes batches in other processes; the first argument is the name of the model
DecodeElsewhere: TypeAlias = Callable[[str, EvalJob, Sequence[EvalBatch]], Iterable[Decoded]]
Watch: TypeAlias = Callable[
    [int, int, Run, Progress | None], None
]  # runs done, runs in total, this run, its progress


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """Models, tasks and devices of experiments, and their output folder."""

    models: tuple[str, ...]
    out: Path
    tasks: tuple[str, ...] = ()  # () means the mini tasks for shipped and grid models, else the paper's
    limit: int | None = None  # samples per model, shared by its tasks
    device: str = "auto"
    dtype: str = "auto"
    compile: bool = False
    batch_size: int | None = None  # None means 64 on a GPU, 4 on a CPU
    data: Path | None = None  # local files of the paper's benchmarks
    max_new_tokens: int | None = None  # None means each task's own
    block_length: int | str | None = "auto"  # for this and the next two, see GenerationConfig
    cache: CacheName | None = None  # for runs whose experiment chooses no cache
    refresh_every: int | None = None
    records_only: bool = False  # use kept records, decode nothing
    max_loss: float = 1.0  # calibrate: at most this many points below Base
    max_steps: float | None = None  # calibrate: instead, at most this many steps per sample
    grid: Path | None = None  # evidence: a folder with a grid of models, or with its grid.json alone


class Missing(ValueError):
    """A record cannot be read or made, because something is missing."""


class Loaded(NamedTuple):
    """A model in memory and its fingerprint."""

    model: Trunk
    fingerprint: str


def _load(lab: Lab, name: str) -> Trunk:
    settings = lab.settings
    return load_model(name, device=settings.device, dtype=settings.dtype, compile=settings.compile)


class Lab:
    """Makes the runs of experiments, or reads them if they are kept."""

    def __init__(
        self, settings: LabSettings, load: Load | None = None, decode: DecodeElsewhere | None = None
    ) -> None:
        self.settings = settings
        self._load = load or _load
        self._decode = decode  # None means in this process
        self.store = Store(settings.out / "records")
        self._models: dict[str, Loaded] = {}
        self._fingerprints: dict[str, str] = {}  # fingerprints of all models loaded so far
        self._done: dict[Run, Outcome] = {}
        self._samples: dict[tuple[str, str | None], list[Sample]] = {}
        self._encoded: dict[tuple[str, str, str | None, int], list[EncodedSample]] = {}
        self._families: dict[str, str] = {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The names of the models, without repeats. If none is named, all models of the grid."""
        if self.grid and not self.settings.models:
            return tuple(self.grid)
        return tuple(dict.fromkeys(model.removeprefix("unmask/") for model in self.settings.models))

    def tasks(self, model: str, only: Sequence[str] | None = None) -> list[str]:
        """Return the tasks of a model, or only those of the given categories."""
        default = self._mini if model in SHIPPED or model in self.grid else methods.PAPER_TASKS
        chosen = self.settings.tasks or default
        return [task for task in chosen if only is None or methods.category(task) in only]

    @cached_property
    def grid(self) -> dict[str, Trained]:
        """The models of the grid by name. Empty without a grid."""
        folder = self.settings.grid
        if folder is None:
            return {}
        trained = read_summary(folder)
        if not trained:
            raise FieldError(
                "grid", str(folder), "holds no finished model", "train one with `unmask train --grid`"
            )
        return {one.name: one for one in trained}

    @property
    def _mini(self) -> list[str]:
        """The tasks of small models. A grid adds tasks, because its models were trained on more."""
        roles = (*methods.ROLES, *methods.ORDER_ROLES) if self.grid else methods.ROLES
        return [f"mini-{role}" for role in roles]

    def family(self, model: str) -> str:
        """Return the model's family, from its config.json."""
        if model in self.grid:
            return self.grid[model].family
        if model not in self._families:
            self._families[model] = str(read_config(find_folder(model))["model_type"]).lower()
        return self._families[model]

    def run(
        self,
        model: str,
        task: str,
        sampler: Sampler,
        *,
        length: int | None = None,
        protocol: str | None = None,
        **settings: Any,
    ) -> Run:
        """Return a run with the task's length and stop strings. Settings go to its GenerationConfig."""
        benchmark = get_task(task, protocol)
        tokens = length or self.new_tokens(task)
        block = self.settings.block_length
        if isinstance(block, int):
            block = min(block, tokens)
        fixed = {"max_new_tokens": tokens, "block_length": block, "stop": benchmark.stop, "seed": 0}
        chosen = {**fixed, **settings}
        if "cache" not in settings:
            chosen |= {"cache": self.settings.cache, "refresh_every": self.settings.refresh_every}
        config = GenerationConfig(**chosen)
        return Run(model=model, task=task, sampler=sampler, config=config, protocol=protocol)

    def new_tokens(self, task: str) -> int:
        """Return the number of new tokens of a task."""
        return self.settings.max_new_tokens or get_task(task).max_new_tokens

    def samples(self, task: str, limit: int | None = None, *, protocol: str | None = None) -> list[Sample]:
        """Return the samples of a task, up to its share of the limit."""
        key = (task, protocol)
        if key not in self._samples:
            self._samples[key] = load_samples(get_task(*key), self.settings.data)[: self._limit(task)]
        return self._samples[key][:limit]

    def _limit(self, task: str) -> int | None:
        """Return a task's share of the limit."""
        limit = self.settings.limit
        if limit is None:
            return None
        default = self._mini if task.startswith("mini-") else methods.PAPER_TASKS
        tasks = list(self.settings.tasks or default)
        whole = {one: int(limit * share) for one, share in methods.item_shares(tasks).items()}
        rest = limit - sum(whole.values())
        return max(1, whole[task] + (tasks.index(task) < rest))

    def model(self, name: str) -> Trunk:
        """Return a model. Shipped ones stay in memory, others only until the next is loaded."""
        return self._loaded(name).model

    def batch_size(self, model: Trunk) -> int:
        """Return the number of samples to decode together."""
        return self.settings.batch_size or (CPU_BATCH if device_of(model).type == "cpu" else GPU_BATCH)

    def results(self, runs: Iterable[Run], watch: Watch | None = None) -> dict[Run, Outcome]:
        """Return the outcomes of runs. Read the kept ones, make the others."""
        # group the runs of each large model to load it once; shipped ones stay in memory and keep their order
        place = {name: 0 if name in SHIPPED else 1 + index for index, name in enumerate(self.models)}
        chosen = sorted(dict.fromkeys(runs), key=lambda run: place[run.model])
        done, left = self._done, self.missing(chosen)

        def make(run: Run) -> Outcome:
            def progress(state: Progress) -> None:
                pool.check()
                if watch is not None:
                    watch(sum(one in done for one in chosen), len(chosen), run, state)

            return self._make(run, progress, pool)

        for name, group in groupby(left, key=lambda run: run.model):
            self._refuse_missing(self._key(left[0]), len(left), len(chosen))
            pool: DevicePool[Run, Outcome] = DevicePool(make, self._workers(name))
            for run, outcome in pool.map(list(group)):
                done[run] = outcome
        return {run: done[run] for run in chosen}

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that are not kept, without repeats. Read the kept ones."""
        left = []
        for run in dict.fromkeys(runs):
            kept = self._done.get(run) or self._kept(run)
            if kept is None:
                left.append(run)
            else:
                self._done[run] = kept
        return left

    def result(self, run: Run, progress: Callable[[Progress], None] | None = None) -> Outcome:
        """Return the outcome of one run."""
        watch = None if progress is None else lambda done, runs, run, state: progress(state)
        return self.results([run], watch)[run]

    def _workers(self, model: str) -> int:
        """Return how many runs to make at the same time. On a CPU, scoring would slow down decoding."""
        alone = self._decode is not None or device_of(self.model(model)).type == "cpu"
        return 1 if alone else 1 + SCORING

    def _key(self, run: Run) -> tuple[str, ...]:
        """Return the key of a run in the store."""
        samples = self.samples(run.task, protocol=run.protocol)
        version = get_task(run.task, run.protocol).version
        name = run.name(len(samples), version, compiled=self.settings.compile)
        return run.model, run.task, name

    def _kept(self, run: Run) -> Outcome | None:
        key = self._key(run)
        kept = self.store.outcome(*key)
        if kept is not None:
            self._check(run.model, kept.configuration["model"]["fingerprint"], key)
        return kept

    def _make(
        self, run: Run, progress: Callable[[Progress], None], pool: DevicePool[Run, Outcome]
    ) -> Outcome:
        """Decode, score and keep a run. Only decoding holds the device."""
        model, key = self.model(run.model), self._key(run)
        job = self._job(run)

        def decode(batches: Sequence[EvalBatch]) -> Iterator[Decoded]:
            if self._decode is not None:
                yield from self._decode(run.model, job, batches)
                return
            for batch in batches:
                yield decode_batch(model, job.task, batch, job.sampler, job.config, device=pool.device())

        finish(job, decode, self.store.folder(*key), progress)
        return self.store.finish(*key)

    def _job(self, run: Run) -> EvalJob:
        """Prepare a run. Prompts are encoded once per model, task and length."""
        model, fingerprint = self._loaded(run.model)
        task, length = get_task(run.task, run.protocol), run.config.new_tokens(model.info)
        key = (run.model, run.task, run.protocol, length)
        if key not in self._encoded:
            self._encoded[key] = encode(model, self.samples(run.task, protocol=run.protocol), length)
        encoded, size = self._encoded[key], self.batch_size(model)
        return EvalJob(
            task=task,
            samples=encoded,
            sampler=run.sampler,
            config=run.config,
            batch_size=size,
            manifest=describe(
                model, task, encoded, run.sampler, run.config, size, known_fingerprint=fingerprint
            ),
        )

    def measurement(
        self, model: str, kind: str, settings: Mapping[str, Any], measure: Callable[[], Any]
    ) -> Any:
        """Return a kept measurement, or measure now and keep it."""
        settings = {**settings, "compile": True} if self.settings.compile else settings
        key = (model, kind, digest(dict(settings))[:12])
        kept = self.store.read(*key)
        if kept is None:
            self._refuse_missing(key)
            record = {
                "settings": settings,
                "fingerprint": self._loaded(model).fingerprint,
                "value": measure(),
            }
            self.store.keep(record, *key)
            kept = self.store.read(*key)
        self._check(model, kept["fingerprint"], key)
        return kept["value"]

    def _loaded(self, name: str) -> Loaded:
        if name not in self._models:
            # free the memory of a large model before the next is loaded
            self._models = {one: kept for one, kept in self._models.items() if one in SHIPPED}
            gc.collect()  # a compiled model refers to itself
            model = self._load(self, self._path(name))
            self._models[name] = Loaded(model, fingerprint(model))
            self._fingerprints[name] = self._models[name].fingerprint
        return self._models[name]

    def _path(self, name: str) -> str:
        """Return the folder of a grid model, or the name of any other model."""
        if not self.settings.grid or name not in self.grid:
            return name
        folder = self.settings.grid / name
        if not folder.is_dir():
            raise Missing(
                f"{self.settings.grid} has no weights of {name}; add --records-only to use its records"
            )
        return str(folder)

    def _check(self, model: str, fingerprint: str, key: Sequence[str]) -> None:
        """Raise if a record was made with other weights than the model has now."""
        if self.settings.records_only:
            return
        if (self._fingerprints.get(model) or self._loaded(model).fingerprint) != fingerprint:
            raise ValueError(
                f"{'/'.join(key)} in {self.settings.out} is of other weights or another dtype than {model} "
                "has now; choose another --out, or use --records-only"
            )

    def _refuse_missing(self, key: Sequence[str], missing: int = 1, total: int = 1) -> None:
        if self.settings.records_only:
            count = f" and {missing - 1} more of {total} runs" if missing > 1 else ""
            raise Missing(
                f"{self.settings.out} lacks {'/'.join(key)}{count}; leave out --records-only to make it"
            )
