"""A step of every registered sampler beside one of `threshold`, through the loop.

The loop gives a sampler the extra columns, branches or attention that it asks for, so their cost is in the
forward. The layers are tiny and the vocabulary is LLaDA's: on a CPU only the ratios mean something. For a
step at full size see `unmask bench gpu --samplers all`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass

import torch

from unmask.bench.step import SHAPES, Sizes, StepTimer
from unmask.models import random_model
from unmask.samplers import SAMPLERS

BESIDE = "threshold"
SIZES = Sizes(prompt=32, length=64, block=32, batches=(1,), budgets=(12,))
SIZE_NAMES = ("vocab_size", "embedding_size", "mask_token_id", "eos_token_id", "pad_token_id")
HEADER = f"| sampler | step, in steps of `{BESIDE}` | its forward, likewise | all but the forward, likewise |"


def kinds() -> list[str]:
    """Return one preset for each class, needs and choice of words: the others differ in numbers only."""
    found: dict[object, str] = {}
    for name, sampler in SAMPLERS.items():
        values = [getattr(sampler, item.name) for item in fields(sampler)] if is_dataclass(sampler) else []
        words = tuple(value for value in values if isinstance(value, str))
        found.setdefault((type(sampler), sampler.needs, words), name)
    return list(found.values())


def step_times(
    names: Sequence[str],
    *,
    repeat: int,
    device: torch.device,
    sizes: Sizes = SIZES,
    vocabulary: bool = True,
) -> dict[str, tuple[float, float]]:
    """Return the best milliseconds of a step of each sampler and of its forward. They take turns.

    Without the published vocabulary, the model is tiny in all respects.
    """
    published = SHAPES["published"]["llada"]
    config = {**published, **SHAPES["tiny"]["llada"]}
    if vocabulary:
        config |= {name: published[name] for name in SIZE_NAMES}
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    timer = StepTimer(random_model(config, device=device, dtype=dtype), sizes, device)
    best = dict.fromkeys(names, (float("inf"), float("inf")))
    with torch.no_grad():
        for _ in range(repeat):
            for name in names:
                timed = timer.sampler(name)
                step = timed["step_ms"]
                assert step is not None, "a run has several steps"
                best[name] = (min(best[name][0], step), min(best[name][1], timed["forward_ms"]))
    return best


def table(times: dict[str, tuple[float, float]]) -> str:
    """Return the times in units of those of `threshold`, as Markdown."""
    step, forward = times[BESIDE]
    lines = [HEADER, "|---|---|---|---|"]
    for name, (own_step, own_forward) in times.items():
        rest = (own_step - own_forward) / (step - forward)
        lines.append(f"| `{name}` | {own_step / step:.2f} | {own_forward / forward:.2f} | {rest:.2f} |")
    return "\n".join(lines)


def run_every_sampler(device: torch.device, repeat: int, log: Callable[[str], None]) -> None:
    """Time and print the table."""
    log(f"\none step through the loop, B = 1, W = {SIZES.length}, tiny layers, LLaDA's vocabulary\n")
    log(table(step_times(kinds(), repeat=repeat, device=device)))
