"""Make the runs of several models at a time, each in its own process.

Small models leave most of a GPU idle, so several share it. The processes write into one store with a file
per record, where the caller then finds all records.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context

from unmask.experiments import get_experiment
from unmask.experiments.lab import Lab, LabSettings


def make_runs(
    settings: LabSettings,
    models: Sequence[str],
    names: Sequence[str],
    jobs: int,
    watch: Callable[[str], None],
) -> None:
    """Make the runs of experiments for every model, `jobs` models at a time.

    An interrupt or an error ends the other processes at once. The same call resumes their runs.
    """
    others = set(active_children())
    # Ctrl-C reaches every process of a terminal, but only this one should react
    ignore_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    spawn = get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=ignore_interrupts) as pool:
        waiting = {pool.submit(_gather, replace(settings, models=(name,)), names): name for name in models}
        try:
            for count, future in enumerate(as_completed(waiting), 1):
                made = future.result()
                watch(f"{waiting[future]}: {made} runs, {count} of {len(models)} models done")
        except BaseException:
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _gather(settings: LabSettings, names: Sequence[str]) -> int:
    """Make the runs of one model in a worker process. Return their number."""
    import torch

    torch.set_num_threads(1)
    lab = Lab(settings)
    return sum(len(get_experiment(name).gather(lab)[1]) for name in names)
