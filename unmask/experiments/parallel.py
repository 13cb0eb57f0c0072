"""Make the runs of several models at a time, each in a process of its own.

Small models leave most of a GPU idle, so several share it. The processes write into one store; every record
has a file of its own, and the caller then finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

from unmask.experiments import get_experiment
from unmask.experiments.lab import Lab, LabSettings


def make_runs(
    settings: LabSettings,
    models: Sequence[str],
    names: Sequence[str],
    jobs: int,
    watch: Callable[[str], None],
) -> None:
    """Make the runs of experiments for every model, `jobs` models at a time."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:  # a fork cannot use CUDA
        waiting = {pool.submit(_gather, replace(settings, models=(name,)), names): name for name in models}
        for count, future in enumerate(as_completed(waiting), 1):
            made = future.result()
            watch(f"{waiting[future]}: {made} runs, {count} of {len(models)} models done")


def _gather(settings: LabSettings, names: Sequence[str]) -> int:
    """Run in a process: make the runs of one model."""
    import torch

    torch.set_num_threads(1)
    lab = Lab(settings)
    return sum(len(get_experiment(name).gather(lab)[1]) for name in names)
