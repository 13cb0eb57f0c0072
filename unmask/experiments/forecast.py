"""Estimate how long experiments will take, before they start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from time import perf_counter

from unmask.evals.batches import encode
from unmask.evals.manifest import device_name
from unmask.evals.records import settings_of
from unmask.experiments.experiment import Experiment
from unmask.experiments.lab import Lab
from unmask.experiments.methods import role
from unmask.experiments.paper import paper_tables
from unmask.experiments.runs import Run
from unmask.samplers import Base
from unmask.samplers.wrapper import kind
from unmask.text.generate import generate

STEPS = 4  # steps of the timed run
PROMPTS = 8  # prompts per task whose length is measured
PAPER_TOKENS = 256  # new tokens of the paper's runs


@dataclass(frozen=True, slots=True)
class TimedForward:
    """The measured time of one forward on this device."""

    model: str
    device: str
    rows: int
    columns: int
    seconds: float

    @property
    def per_token(self) -> float:
        """Seconds per token of the canvas."""
        return self.seconds / (self.rows * self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The cost of the runs that are not kept yet."""

    runs: int
    samplers: int
    samples: int  # total over the runs
    forwards: float  # forwards of single samples, total over the runs
    seconds: float
    stored: int  # runs whose forwards are known from a similar stored run
    chosen_later: int  # experiments that will choose more runs from the results
    timed: tuple[TimedForward, ...]


def forecast(lab: Lab, experiments: Iterable[Experiment]) -> Forecast:
    """Time a forward of every model, and multiply it by the forwards of all missing runs."""
    experiments = list(experiments)
    runs = lab.missing(run for one in experiments for run in one.runs(lab).values())
    timed: dict[str, TimedForward] = {}
    samples = forwards = seconds = stored = 0.0
    columns: dict[tuple[str, str, str | None, int | None], float] = {}
    # a large model leaves memory when the next is loaded, so time the one that runs first last
    for run in sorted(runs, key=lambda run: -lab.models.index(run.model)):
        if run.model not in timed:
            timed[run.model] = _time_forward(lab, run.model, runs)
        key = (run.model, run.task, run.protocol, run.config.max_new_tokens)
        if key not in columns:
            columns[key] = _columns(lab, run)
        count, known = len(lab.samples(run.task, protocol=run.protocol)), _stored_forwards(lab, run)
        each = _typical_forwards(run) if known is None else known
        samples += count
        forwards += count * each
        seconds += count * each * columns[key] * timed[run.model].per_token
        stored += known is not None
    return Forecast(
        runs=len(runs),
        samplers=len({run.sampler for run in runs}),
        samples=int(samples),
        forwards=forwards,
        seconds=seconds,
        stored=int(stored),
        chosen_later=sum(one.then is not None for one in experiments),
        timed=tuple(timed.values()),
    )


def _time_forward(lab: Lab, name: str, runs: Iterable[Run]) -> TimedForward:
    """Time a few steps of Base on the first prompt, at the lab's batch size."""
    model, run = lab.model(name), next(run for run in runs if run.model == name)
    samples = lab.samples(run.task, protocol=run.protocol)
    rows = min(lab.batch_size(model), len(samples))
    [first] = encode(model, samples[:1], run.config.new_tokens(model.info))
    config = replace(run.config, steps=STEPS, block_length=None, cache=None, refresh_every=None, stop=())
    for _ in range(2):  # the first is a warm-up
        began = perf_counter()
        outputs = generate(model, [first.ids] * rows, Base(), config)
        seconds = perf_counter() - began
    columns = len(first.ids) + run.config.new_tokens(model.info)
    each = seconds / max(1, max(output.forwards for output in outputs))
    return TimedForward(name, device_name(model), rows, columns, each)


def _columns(lab: Lab, run: Run) -> float:
    """Return the mean length of a canvas."""
    model = lab.model(run.model)
    tokens = run.config.new_tokens(model.info)
    encoded = encode(model, lab.samples(run.task, PROMPTS, protocol=run.protocol), tokens)
    return fmean(len(one.ids) for one in encoded) + tokens


def _stored_forwards(lab: Lab, run: Run) -> float | None:
    """Return the mean forwards of a stored run with this sampler and length, or None if there is none."""
    for name in lab.store.names(run.model, run.task):
        if not name.startswith(f"{run.prefix}-"):
            continue
        content = lab.store.read(run.model, run.task, name)
        configuration = content.get("configuration", {})
        sampler = {"kind": kind(run.sampler), **settings_of(run.sampler)}
        same_length = configuration.get("decoding", {}).get("max_new_tokens") == run.config.max_new_tokens
        if configuration.get("sampler") == sampler and same_length:
            return fmean(content["records"]["forwards"])
    return None


def _typical_forwards(run: Run) -> float:
    """Return the paper's steps for LLaDA-8B, scaled to the budget. Samplers it lacks count as LESS."""
    steps = float(run.config.steps or run.config.max_new_tokens or PAPER_TOKENS)
    rows = paper_tables()["headline"]["LLaDA-8B"]
    row = rows.get(kind(run.sampler), rows["LESS"])
    known = row.get(role(run.task)) or row["gsm8k"]  # the paper lacks some of the small tasks
    share: float = known[1] / PAPER_TOKENS
    return max(1.0, steps * share)
