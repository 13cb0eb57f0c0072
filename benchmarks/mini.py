"""Accuracy, steps and forwards of the samplers on the seven mini tasks.

python benchmarks/mini.py MODEL --out FILE.json [--samplers base less ...] [--items 500] [--block-length 32]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.evals.significance import wilson
from unmask.training.tasks import TEST_TASKS, get_task, test_items

LENGTH = 128
SAMPLERS = {
    "base": ("base", {}),
    "base-64": ("base", {}),
    "base-32": ("base", {}),
    "random": ("random", {}),
    "threshold-0.5": ("threshold", {"min_confidence": 0.5}),
    "threshold-0.75": ("threshold", {"min_confidence": 0.75}),
    "threshold-0.9": ("threshold", {}),
    "entropy-bound": ("entropy-bound", {}),
    "klass": ("klass", {}),
    "prophet": ("prophet", {}),
    "less-paper": ("less-paper", {}),
    "less-released": ("less-released", {}),
    "less": ("less", {}),
    "less-policy-frontier": ("less-policy-frontier", {}),
    "less-policy-all": ("less-policy-all", {}),
    "less-confidence-only": ("less-confidence-only", {}),
    "less-jsd-only": ("less-jsd-only", {}),
    "less-persistence-only": ("less-persistence-only", {}),
    "less-margin-only": ("less-margin-only", {}),
    "less-no-confidence": ("less-no-confidence", {}),
    "less-no-jsd": ("less-no-jsd", {}),
    "less-no-persistence": ("less-no-persistence", {}),
}
STEPS = {"base-64": 64, "base-32": 32}


def evaluate(model: Any, name: str, task: str, *, items: int, block_length: int | None) -> dict[str, Any]:
    """One sampler on one task."""
    preset, fields = SAMPLERS[name]
    tests = test_items(task)[:items]
    chats = [[{"role": "user", "content": item.prompt}] for item in tests]
    config = unmask.GenerationConfig(
        max_new_tokens=LENGTH, steps=STEPS.get(name), block_length=block_length, stop_at_eos=preset != "base"
    )
    began = time.perf_counter()
    outputs = unmask.generate(model, chats, unmask.make_sampler(preset, **fields), config, batch_size=500)
    seconds = time.perf_counter() - began
    texts = [output.text for output in outputs]
    scored = get_task(task).score_many(tests, texts)
    wrong = [
        (item.prompt, text)
        for item, text, score in zip(tests, texts, scored, strict=True)
        if not score.correct
    ]
    correct = sum(score.correct for score in scored)
    return {
        "accuracy": correct / len(tests),
        "interval": wilson(correct, len(tests)),
        "steps": sum(output.steps for output in outputs) / len(outputs),
        "forwards": sum(output.forwards for output in outputs) / len(outputs),
        "forced_share": sum(output.forced_share for output in outputs) / len(outputs),
        "seconds": seconds,
        "wrong": wrong[:3],
    }


def table(results: dict[str, dict[str, dict[str, Any]]], tasks: Sequence[str]) -> str:
    lines = [
        "| sampler | " + " | ".join(tasks) + " | mean | steps | forwards |",
        "|---" * (len(tasks) + 4) + "|",
    ]
    for name, rows in results.items():
        cells = [f"{100 * rows[task]['accuracy']:.1f}" if task in rows else "-" for task in tasks]
        mean = {
            key: sum(row[key] for row in rows.values()) / len(rows)
            for key in ("accuracy", "steps", "forwards")
        }
        lines.append(
            f"| {name} | {' | '.join(cells)} | {100 * mean['accuracy']:.1f} | {mean['steps']:.1f} | "
            f"{mean['forwards']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--tasks", nargs="+", default=list(TEST_TASKS))
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--block-length", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    model = unmask.load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in arguments.samplers:
        results[name] = {}
        for task in arguments.tasks:
            results[name][task] = row = evaluate(
                model, name, task, items=arguments.items, block_length=arguments.block_length
            )
            print(f"{name} {task}: {row['accuracy']:.3f} in {row['seconds']:.1f} s", flush=True)
        content = {"torch": torch.__version__, "block_length": arguments.block_length, "results": results}
        arguments.out.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(table({name: results[name]}, arguments.tasks).splitlines()[-1], flush=True)
    print("\n" + table(results, arguments.tasks), flush=True)


if __name__ == "__main__":
    main()
