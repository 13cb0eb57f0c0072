"""Compare a step of every registered sampler with one of `threshold`, through the loop.

The loop gives a sampler the extra columns, branches or attention that it asks for, so their cost is part of
the forward. The layers are tiny and the vocabulary is LLaDA's, so on a CPU only the ratios mean anything. For
a step at full size see `unmask bench gpu --samplers all`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from statistics import median

import torch

from unmask.bench.step import SHAPES, Sizes, StepTimer
from unmask.models import random_model
from unmask.samplers import SAMPLERS

BESIDE = "threshold"
SIZES = Sizes(prompt=32, length=32, block=16, batches=(1,), budgets=(8,))
SIZE_NAMES = ("vocab_size", "embedding_size", "mask_token_id", "eos_token_id", "pad_token_id")
HEADER = f"| sampler | step, in steps of `{BESIDE}` | its forward, likewise | all but the forward, likewise |"


def kinds() -> list[str]:
    """Return the first preset of each combination of class, needs and string fields."""
    found: dict[object, str] = {}
    for name, sampler in SAMPLERS.items():
        names: list[str] = [item.name for item in fields(sampler)] if is_dataclass(sampler) else []
        words = tuple(value for value in (getattr(sampler, name) for name in names) if isinstance(value, str))
        found.setdefault((type(sampler), sampler.needs, words), name)
    return list(found.values())


def step_costs(
    names: Sequence[str],
    *,
    repeat: int,
    device: torch.device,
    sizes: Sizes = SIZES,
    vocabulary: bool = True,
) -> dict[str, tuple[float, ...]]:
    """Return the cost of a step, of its forward and of the rest, in units of those of `threshold`.

    Each cost is the median over turns. In a turn, `threshold` runs right before the sampler, so that other
    load slows both alike. Without the published vocabulary, the model is tiny in every respect.
    """
    published = SHAPES["published"]["llada"]
    config = {**published, **SHAPES["tiny"]["llada"]}
    if vocabulary:
        config |= {name: published[name] for name in SIZE_NAMES}
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    timer = StepTimer(random_model(config, device=device, dtype=dtype), sizes, device)
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    with torch.no_grad():
        for _ in range(repeat):
            for name, ratios in turns.items():
                beside, own = _parts(timer, BESIDE), _parts(timer, name)
                ratios.append(tuple(one / other for one, other in zip(own, beside, strict=True)))
    return {name: tuple(map(median, zip(*ratios, strict=True))) for name, ratios in turns.items()}


def _parts(timer: StepTimer, name: str) -> tuple[float, float, float]:
    """Return the milliseconds of a step, of its forward and of the rest."""
    timed = timer.sampler(name)
    step, forward = timed["step_ms"], timed["forward_ms"]
    assert step is not None, "a run has several steps"
    return step, forward, step - forward


def table(costs: Mapping[str, Sequence[float]]) -> str:
    """Return the costs as Markdown."""
    rows = [f"| `{name}` | {' | '.join(f'{cost:.2f}' for cost in own)} |" for name, own in costs.items()]
    return "\n".join([HEADER, "|---|---|---|---|", *rows])


def run_every_sampler(device: torch.device, repeat: int, log: Callable[[str], None]) -> None:
    """Time and print the table."""
    log(f"\none step through the loop, B = 1, W = {SIZES.length}, tiny layers, LLaDA's vocabulary\n")
    log(table(step_costs(kinds(), repeat=repeat, device=device)))
