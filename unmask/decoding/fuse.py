"""Many small operations on a GPU as a few kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch

OPTIONS: dict[str, Any] = {
    "emulate_precision_casts": True,  # every product and sum is rounded, as torch does it
    "unroll_reductions_threshold": 9,  # eight candidates are summed in the kernel that made them
}
Given = ParamSpec("Given")
Out = TypeVar("Out")


def fused(work: Callable[Given, Out], *, when: bool) -> Callable[Given, Out]:
    """`work`, compiled for every shape it meets if `when` says so; it must be a function of a module."""
    return _compiled(work) if when else work


@cache
def _compiled(work: Callable[Given, Out]) -> Callable[Given, Out]:
    return torch.compile(work, dynamic=False, options=OPTIONS)
