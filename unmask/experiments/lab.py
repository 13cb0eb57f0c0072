"""Where experiments are made: models, samples and the runs that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from unmask.config import GenerationConfig
from unmask.evals import get_task
from unmask.evals.fingerprint import fingerprint
from unmask.evals.records import digest
from unmask.evals.run import Progress, evaluate_samples, load_samples
from unmask.evals.task import Sample, Task
from unmask.experiments import methods
from unmask.experiments.runs import Outcome, Run
from unmask.experiments.store import Store
from unmask.models import load
from unmask.models.config import read_config
from unmask.models.hub import SHIPPED, find_folder
from unmask.models.trunk import Trunk
from unmask.prompts import device_of
from unmask.types import Sampler

GPU_BATCH = 64
CPU_BATCH = 1  # a CPU gains nothing from a batch, and a finished row would wait for the others

Watch: TypeAlias = Callable[[int, int, Run, Progress | None], None]  # runs done, runs, this one, how far


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What experiments are made on."""

    models: tuple[str, ...]
    out: Path
    tasks: tuple[str, ...] = ()  # none: the mini tasks for a shipped model, else the paper's
    limit: int | None = None  # samples of a category, shared by its tasks
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None  # None: 64 on a GPU, 1 on a CPU
    data: Path | None = None  # local files of the paper's benchmarks
    block_length: int | str | None = "auto"  # as GenerationConfig has it
    records_only: bool = False  # use what is kept, decode nothing
    max_loss: float = 1.0  # calibrate: points below Base at most
    max_steps: float | None = None  # calibrate: steps per sample at most, instead


class Lab:
    """Runs experiments' runs, and remembers what it loaded."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.out / "records")
        self._model: tuple[str, Trunk, str] | None = None
        self._samples: dict[str, list[Sample]] = {}
        self._families: dict[str, str] = {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models by their short names, each once."""
        return tuple(dict.fromkeys(model.removeprefix("unmask/") for model in self.settings.models))

    def tasks(self, model: str, only: Sequence[str] | None = None) -> list[str]:
        """The tasks of a model, those of the given categories."""
        usual = [f"mini-{role}" for role in methods.ROLES] if model in SHIPPED else methods.PAPER_TASKS
        chosen = self.settings.tasks or usual
        return [task for task in chosen if only is None or methods.category(task) in only]

    def family(self, model: str) -> str:
        """The model's family, as its config.json has it."""
        if model not in self._families:
            self._families[model] = str(read_config(find_folder(model))["model_type"]).lower()
        return self._families[model]

    def run(
        self, model: str, task: str, sampler: Sampler, *, length: int | None = None, **settings: Any
    ) -> Run:
        """A run with the task's own length and stop strings, and with these settings of the config."""
        asked = get_task(task)
        tokens = length or asked.max_new_tokens
        block = self.settings.block_length
        if isinstance(block, int):
            block = min(block, tokens)
        config = GenerationConfig(max_new_tokens=tokens, block_length=block, stop=asked.stop, **settings)  # type: ignore[arg-type]
        return Run(model=model, task=task, sampler=sampler, config=config)

    def samples(self, task: str, limit: int | None = None) -> list[Sample]:
        """The samples of a task within the limit."""
        if task not in self._samples:
            self._samples[task] = load_samples(get_task(task), self.settings.data, self._limit(task))
        return self._samples[task][:limit]

    def _limit(self, task: str) -> int | None:
        """How many samples of its category fall to a task."""
        if self.settings.limit is None:
            return None
        usual = (
            [f"mini-{role}" for role in methods.ROLES] if task.startswith("mini-") else methods.PAPER_TASKS
        )
        kin = [one for one in self.settings.tasks or usual if methods.category(one) == methods.category(task)]
        whole, rest = divmod(self.settings.limit, len(kin))
        return max(1, whole + (kin.index(task) < rest))

    def model(self, name: str) -> Trunk:
        """A model, loaded; the one before it is let go."""
        return self._loaded(name)[0]

    def batch_size(self, model: Trunk) -> int:
        """Rows that are decoded together."""
        return self.settings.batch_size or (CPU_BATCH if device_of(model).type == "cpu" else GPU_BATCH)

    def results(self, runs: Iterable[Run], watch: Watch | None = None) -> dict[Run, Outcome]:
        """What came of the runs: as it was kept, or made now."""
        wanted = sorted(dict.fromkeys(runs), key=lambda run: self.models.index(run.model))
        done: dict[Run, Outcome] = {}
        for number, run in enumerate(wanted):

            def progress(state: Progress, number: int = number, run: Run = run) -> None:
                if watch is not None:
                    watch(number, len(wanted), run, state)

            done[run] = self.result(run, progress)
        return done

    def result(self, run: Run, progress: Callable[[Progress], None] | None = None) -> Outcome:
        """What came of one run."""
        task = get_task(run.task)
        samples = self.samples(run.task)
        place = (run.model, run.task, run.name(len(samples), task.version))
        kept = self.store.outcome(*place)
        if kept is not None:
            self._check(run.model, kept.configuration["model"]["fingerprint"], place)
            return kept
        return self._make(run, task, samples, place, progress)

    def _make(
        self,
        run: Run,
        task: Task,
        samples: Sequence[Sample],
        place: tuple[str, ...],
        progress: Callable[[Progress], None] | None,
    ) -> Outcome:
        self._refuse_missing(place)
        model = self.model(run.model)
        evaluate_samples(
            model,
            task,
            samples,
            run.sampler,
            run.config,
            out=self.store.folder(*place),
            batch_size=self.batch_size(model),
            progress=progress,
        )
        return self.store.finish(*place)

    def fact(self, model: str, kind: str, settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Something measured that is no run: as it was kept, or made now and kept."""
        place = (model, kind, digest(dict(settings))[:12])
        kept = self.store.read(*place)
        if kept is None:
            self._refuse_missing(place)
            _, mark = self._loaded(model)
            self.store.keep({"settings": settings, "fingerprint": mark, "value": make()}, *place)
            kept = self.store.read(*place)
        self._check(model, kept["fingerprint"], place)
        return kept["value"]

    def _loaded(self, name: str) -> tuple[Trunk, str]:
        if self._model is None or self._model[0] != name:
            self._model = None  # the old one goes before the new one comes
            model = load(name, device=self.settings.device, dtype=self.settings.dtype)
            self._model = (name, model, fingerprint(model))
        return self._model[1], self._model[2]

    def _check(self, model: str, mark: str, place: Sequence[str]) -> None:
        """Refuse what another model of this name wrote."""
        if not self.settings.records_only and self._loaded(model)[1] != mark:
            raise ValueError(
                f"{'/'.join(place)} in {self.settings.out} is of other weights or another dtype than {model} "
                "has now; choose another --out, or use --records-only"
            )

    def _refuse_missing(self, place: Sequence[str]) -> None:
        if self.settings.records_only:
            raise ValueError(
                f"{self.settings.out} lacks {'/'.join(place)}; leave out --records-only to make it"
            )
