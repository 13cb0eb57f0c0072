"""Load a model, compiled or not. All commands, lm-eval and Ray workers load models through this module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unmask.fast.compile import compile as compile_model
from unmask.fast.graphs import runner_of
from unmask.models import load
from unmask.models.trunk import Trunk


def load_model(
    source: str | Path, *, device: str = "auto", dtype: str = "auto", compile: bool = False
) -> Trunk:
    """Load a checkpoint, and compile it if asked. Each shape is compiled in its first forward."""
    model = load(source, device=device, dtype=dtype)
    return compile_model(model) if compile else model


def load_and_prepare(load: Callable[[], Trunk], prepare: Callable[[Trunk], object]) -> Trunk:
    """Load a model and run `prepare` on it. With `partial`, this is a loader that Ray can pickle."""
    model = load()
    prepare(model)
    return model


def is_compiled(model: object) -> bool:
    """Return whether `unmask.compile` changed this model."""
    return runner_of(model) is not None
