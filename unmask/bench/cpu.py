"""`unmask bench cpu`: time `less` and `base` on a small model, and the part of a step outside the forward."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

import torch
from torch import Tensor

from unmask.bench.report import Report
from unmask.bench.timing import machine, machine_line
from unmask.models import load
from unmask.models.text.tokens import Tokenizer
from unmask.models.trunk import Trunk
from unmask.samplers import make_sampler
from unmask.text.config import GenerationConfig
from unmask.text.generate import generate
from unmask.training.tasks import TEST_TASKS, test_items
from unmask.types import Cache, ModelInfo

SAMPLERS = ("base", "less")
MODEL = "mini-llada"
LENGTH = 128


class Timed:
    """A model that adds up the seconds of its forwards."""

    def __init__(self, model: Trunk) -> None:
        self.model = model
        self.seconds = 0.0

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.tokenizer

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        began = perf_counter()
        logits: Tensor = self.model(tokens, attend, window, cache)
        self.seconds += perf_counter() - began
        return logits


class Spent(TypedDict):
    """The cost of a sampler over all prompts."""

    seconds: float
    forward_seconds: float
    steps: int
    forwards: int


def run_cpu(
    *,
    model: str = MODEL,
    small: bool = False,
    out: Path | None = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure, print the table, and write `out`/cpu.json. Return the results."""
    timed = Timed(load(model, device="cpu"))
    length, tasks = (16, TEST_TASKS[:2]) if small else (LENGTH, TEST_TASKS)
    prompts = [[{"role": "user", "content": test_items(task)[0].prompt}] for task in tasks]
    load_before = os.getloadavg()[0]
    spent = {name: Spent(seconds=0.0, forward_seconds=0.0, steps=0, forwards=0) for name in SAMPLERS}
    for name in SAMPLERS:
        _decode(timed, prompts[0], name, length)  # warm up
    for prompt in prompts:
        for name in SAMPLERS:  # in turns, so that other load slows both alike
            for key, value in _decode(timed, prompt, name, length).items():
                spent[name][key] += value  # type: ignore[literal-required]
    content = {
        "command": "unmask bench cpu" + (" --small" if small else ""),
        "machine": machine(torch.device("cpu")) | {"load_before": load_before},
        "model": Path(model).name,
        "length": length,
        "prompts": len(prompts),
        "samplers": spent,
    }
    log(table(content))
    report = Report(content, None if out is None else out / "cpu.json", deadline=0.0, log=log)
    report.write()
    return report.result()


def _decode(model: Timed, prompt: Sequence[Mapping[str, str]], name: str, length: int) -> Spent:
    model.seconds, began = 0.0, perf_counter()
    [done] = generate(model, [prompt], make_sampler(name), GenerationConfig(max_new_tokens=length))
    taken = perf_counter() - began
    return Spent(seconds=taken, forward_seconds=model.seconds, steps=done.steps, forwards=done.forwards)


def table(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    spent, threads = content["samplers"], content["machine"]["threads"]
    before = f"{threads} threads, load {content['machine']['load_before']:.1f} before"
    what = f"{content['model']}, L = {content['length']}, {content['prompts']} prompts one by one"
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}, {before}",
        "",
        f"| {what} | seconds | steps | forwards | ms per step | of it not the forward |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in spent.items():
        rest = 1 - row["forward_seconds"] / row["seconds"]
        lines.append(
            f"| `{name}` | {row['seconds']:.2f} | {row['steps']} | {row['forwards']} "
            f"| {row['seconds'] * 1e3 / row['steps']:.2f} | {rest:.1%} |"
        )
    ratio = spent["base"]["seconds"] / spent["less"]["seconds"]
    return "\n".join([*lines, "", f"`less` takes {ratio:.2f} x fewer seconds than `base`."])
