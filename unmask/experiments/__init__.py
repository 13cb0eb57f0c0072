"""The tables and figures of the LESS paper and of further studies: their runs, and how they are built."""

from __future__ import annotations

from importlib import import_module

from unmask.errors import one_of
from unmask.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "NEEDS_GRID", "Experiment", "get_experiment"]

# name -> module, the most important first; the results page and `all` keep this order
EXPERIMENTS: dict[str, str] = {
    "headline": "headline",
    "single-signal": "single_signal",
    "drop-one": "drop_one",
    "policy": "policy",
    "cache": "caching",
    "budget": "budget",
    "selection": "selection",
    "fallback": "fallback",
    "flip-rate": "flip_rate",
    "flops": "flops",
    "wallclock": "wallclock",
    "qualitative": "qualitative",
    "calibrate": "calibrate",
    "pareto": "pareto",
    "leave-one-out": "leave_one_out",
    "frontier": "frontier",
    "evidence": "evidence",
}
NEEDS_GRID = ("evidence",)  # `all` leaves these out if no grid of models is given


def get_experiment(name: str) -> Experiment:
    """Return the experiment with this name."""
    if name not in EXPERIMENTS:
        one_of("experiment", name, ("all", *EXPERIMENTS))
    experiment: Experiment = import_module(f"unmask.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return experiment
