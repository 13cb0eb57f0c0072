"""Compare accuracy with and without a constraint on the answer's format, item by item, on small models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask import GenerationConfig, Regex
from unmask.bench.timing import machine
from unmask.evals import get_task
from unmask.evals.compare import compare
from unmask.evals.records import Record, prompt_hash
from unmask.evals.task import Sample, Task
from unmask.experiments.stats import paired
from unmask.text.generate import prepare
from unmask.text.prompts import TextModel

MODELS = ("mini-llada", "mini-dream")
SAMPLERS = ("less", "first-mask")
LAST_LINE = {
    "mini-gsm8k": r"([^\n]+\n){0,8}The final answer is \d+\.",
    "mini-math": r"([^\n]+\n){0,8}[^\n]*\\boxed\{[^\n]+\}\.",
}
TASKS = (*LAST_LINE, "mini-mmlu")
OPTION = re.compile(r"^[A-D]\. (.+)$", re.MULTILINE)


def constraint_of(task: str, sample: Sample) -> Regex:
    """Return the format of a sample's answer: a fixed last line, or an option at the end."""
    if task in LAST_LINE:
        return Regex(LAST_LINE[task])
    options = OPTION.findall(sample.prompt[0]["content"])  # type: ignore[index]
    return Regex(rf"([^\n]*[ \n])?[^\n]*({'|'.join(map(re.escape, options))})\.?")


def build(tasks: Sequence[str], limit: int) -> None:
    """Build all automata into the folder UNMASK_CACHE, for use on a machine without a compiler."""
    for model in map(unmask.load, MODELS):
        for name in tasks:
            task = get_task(name)
            for sample in task.load(None)[:limit]:
                constraint = constraint_of(name, sample)
                config = GenerationConfig(max_new_tokens=task.max_new_tokens, constraint=constraint)
                prepare(model, [sample.prompt], unmask.make_sampler("less"), config)


def run(tasks: Sequence[str], limit: int, batch_size: int, out: Path | None, device: str) -> None:
    """Decode every task with both models and samplers, free and constrained, and report each comparison."""
    found: dict[str, Any] = {"items": limit, "batch_size": batch_size, "runs": []}
    found["machine"] = machine(torch.device(device))
    for name in tasks:
        task = get_task(name)
        samples = task.load(None)[:limit]
        for model_name in MODELS:
            model = unmask.load(model_name, device=device)
            for sampler in SAMPLERS:
                free, held = (
                    _records(model, task, samples, sampler, batch_size, held=held) for held in (False, True)
                )
                row = {"task": name, "model": model_name, "sampler": sampler, **_compared(free, held)}
                found["runs"].append(row)
                print(json.dumps(row), flush=True)
                if out is not None:
                    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


def _records(
    model: TextModel, task: Task, samples: Sequence[Sample], sampler: str, batch_size: int, *, held: bool
) -> list[Record]:
    records = []
    for first in range(0, len(samples), batch_size):
        batch = samples[first : first + batch_size]
        constraint = [constraint_of(task.name, sample) for sample in batch] if held else None
        config = GenerationConfig(max_new_tokens=task.max_new_tokens, constraint=constraint)
        answers = unmask.generate(model, [sample.prompt for sample in batch], sampler, config)
        verdicts = task.score(batch, [answer.text for answer in answers])
        for sample, answer, verdict in zip(batch, answers, verdicts, strict=True):
            records.append(
                Record(
                    id=sample.id,
                    prompt=prompt_hash(sample),
                    text=answer.text,
                    extracted=verdict.extracted,
                    correct=verdict.correct,
                    also={},
                    steps=answer.steps,
                    forwards=answer.forwards,
                    forced_share=answer.forced_share,
                    leftovers=answer.leftovers,
                    tokens=len(answer.token_ids),
                    prompt_tokens=answer.prompt_tokens,
                    finish=answer.finish,
                )
            )
    return records


def _compared(free: Sequence[Record], held: Sequence[Record]) -> dict[str, Any]:
    result, gap = compare(free, held), paired(free, held)
    return {
        "samples": result.samples,
        "free": result.accuracies[0],
        "held": result.accuracies[1],
        "difference": result.difference,
        "difference_interval": [gap.low, gap.high],
        "lost": len(result.lost),
        "gained": len(result.gained),
        "same_texts": result.same_texts,
        "free_without_answer": sum(record.extracted is None for record in free),
        "held_without_answer": sum(record.extracted is None for record in held),
        "free_forwards": sum(record.forwards for record in free) / len(free),
        "held_forwards": sum(record.forwards for record in held) / len(held),
    }


def table(found: dict[str, Any]) -> str:
    """Return the comparisons as a Markdown table."""
    lines = ["| task | model | sampler | free | held | difference [95 %] | forwards, free and held |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in found["runs"]:
        low, high = (100 * bound for bound in row["difference_interval"])
        lines.append(
            f"| {row['task']} | {row['model']} | {row['sampler']} | {100 * row['free']:.1f} % "
            f"| {100 * row['held']:.1f} % | {100 * row['difference']:+.1f} [{low:+.1f}, {high:+.1f}] "
            f"| {row['free_forwards']:.1f}, {row['held_forwards']:.1f} |"
        )
    return "\n".join(lines)
