"""Constraints: how many texts fit, what a step costs, and how long an automaton takes to build.

    python -m benchmarks.constraints fit --generations 20000
    python -m benchmarks.constraints build --texts FOLDER --automaton form.pt
    python -m benchmarks.constraints cost
    python -m benchmarks.constraints cost --device cuda --automaton form.pt
    python -m benchmarks.constraints accuracy

`cost` uses a small model on the CPU, or, with --device, the shape of LLaDA-8B with random weights.
`accuracy` constrains the answers of the small tasks to their format.
`build` makes a vocabulary of the most frequent word pieces in some texts, or in Python's json package.
`fit` decodes random languages with random models, which break every grammar. It covers every kind of sampler,
decoding with and without blocks, greedy and drawn, different constraints in a batch, and gaps. It needs
jsonschema.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import constraint_accuracy, constraint_cost

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("fit", "cost", "build", "accuracy"))
    parser.add_argument("--generations", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=126_464)
    parser.add_argument("--tasks", nargs="+", default=constraint_accuracy.TASKS)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--build-only", action="store_true", help="fill the folder UNMASK_CACHE")
    parser.add_argument("--texts", type=Path, help="folder of texts")
    parser.add_argument("--automaton", type=Path, help="file that build writes and cost reads")
    parser.add_argument("--device", help="cost: time a step at full size there; accuracy: decode there")
    parser.add_argument("--small", action="store_true", help="the same in miniature")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.what == "fit":
        from benchmarks import constraint_fit  # needs jsonschema

        constraint_fit.run(options.generations, options.out)
        sys.exit()
    if options.what == "accuracy":
        if options.build_only:
            constraint_accuracy.build(options.tasks, options.items)
            sys.exit()
        size, device = options.batch_size, options.device or "cpu"
        constraint_accuracy.run(options.tasks, options.items, size, options.out, device)
        sys.exit()
    if options.what == "build":
        results = constraint_cost.build(options.vocabulary, options.texts, options.automaton)
    elif options.device is None:
        results = constraint_cost.small_model(options.turns)
    else:
        results = constraint_cost.full_size_model(
            options.device, options.automaton, options.turns, small=options.small
        )
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
