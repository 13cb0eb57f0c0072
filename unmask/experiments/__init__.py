"""Every table and figure of the LESS paper: the runs it needs, and how it is built from them."""

from __future__ import annotations

from importlib import import_module

from unmask.errors import one_of
from unmask.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "NEEDS_GRID", "Experiment", "get_experiment"]

# name -> module, in the order of the results page and of `all`: the most important first
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
NEEDS_GRID = ("evidence",)  # left out of `all` without a grid of models


def get_experiment(name: str) -> Experiment:
    """Return the experiment of this name."""
    if name not in EXPERIMENTS:
        one_of("experiment", name, ("all", *EXPERIMENTS))
    experiment: Experiment = import_module(f"unmask.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return experiment
