"""Every table and figure of the LESS paper: which runs it needs, and what is made of them."""

from __future__ import annotations

from importlib import import_module

from unmask.errors import one_of
from unmask.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "Experiment", "get_experiment"]

# name -> module, in the order of the results page and of `all`: what matters most comes first
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
}


def get_experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        one_of("experiment", name, ("all", *EXPERIMENTS))
    experiment: Experiment = import_module(f"unmask.experiments.{EXPERIMENTS[name]}").EXPERIMENT
    return experiment
