"""Constraints: how many texts fit, what a step costs, and how long an automaton takes to build.

    python -m benchmarks.constraints fit --generations 20000
    python -m benchmarks.constraints build --texts FOLDER --automaton form.pt
    python -m benchmarks.constraints cost
    python -m benchmarks.constraints cost --device cuda --automaton form.pt
    python -m benchmarks.constraints accuracy

`cost` without a device takes a small model on the CPU; with one, the shape of LLaDA-8B with random weights.
`accuracy` holds answers of the small tasks to their format.
`build` makes a vocabulary of the most frequent pieces of words in some texts, or in Python's own library.
`fit` decodes with a model of random logits, which breaks every grammar, with every kind of sampler, in blocks
and not, greedy and drawn, with constraints mixed in a batch, and with gaps. It needs the package jsonschema.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import unmask
from benchmarks import constraint_accuracy, constraint_cost
from unmask import Choice, GenerationConfig, JSONSchema, Regex
from unmask.bench.every_sampler import kinds
from unmask.bench.timing import machine
from unmask.constraints.language import Constraint
from unmask.types import Cache, ModelInfo

WORDS = (
    *(chr(letter) for letter in range(32, 127)), "\n", "ä", "true", "false", "null", '":', '{"', '", "', "},",
    "name", "age", "tags", "born", "12", "2024", "-0", "yes", "no", "maybe",
)  # fmt: skip
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", 1.5, None]}, "maxItems": 2},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
}
CONSTRAINTS: list[Constraint | None] = [
    Regex(r"\d{3}-\d{4}"),
    Regex(r"(yes|no|maybe)( [a-z]{2,6}){0,3}\."),
    Regex(r"[^\n]*"),
    Choice(["yes", "no", "maybe", "name: 12"]),
    JSONSchema(PERSON),
    None,
]


class Letters:
    """A tokenizer of WORDS behind a mask and an end token."""

    special = SimpleNamespace(bos=None, pad=None)

    def encode(self, text: str) -> list[int]:
        return [2 + WORDS.index(letter) for letter in text]

    def decode(self, token_ids: Iterable[int]) -> str:
        return "".join(WORDS[token - 2] if token >= 2 else "" for token in token_ids)

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Noise:
    """A model of random logits: the same for the same row."""

    seed: int = 0
    tokenizer = Letters()
    info = ModelInfo(vocab_size=2 + len(WORDS), mask_id=0, eos_ids=(1,), separable=True)

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        return torch.stack([self._row(row, window) for row in tokens])

    def _row(self, row: Tensor, window: slice) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *row.tolist())) & 0x7FFFFFFF)
        return 4 * torch.randn(window.stop - window.start, self.info.vocab_size, generator=generator)

    def shadow_states(self, tokens: Tensor, attend: Tensor | None, window: slice) -> tuple[Tensor, Tensor]:
        logits = self(tokens, attend, window, None)
        return logits, logits.roll(1, dims=0)

    def attention_states(self, tokens: Tensor, attend: Tensor | None, layers: int) -> tuple[Tensor, Tensor]:
        rows, n = tokens.shape
        return self(tokens, attend, slice(0, n), None), torch.full((rows, n, n), 1 / n)


def fits(constraint: Constraint | None, text: str) -> bool:
    """Whether a text fits, by another program than ours."""
    import jsonschema

    if isinstance(constraint, Regex):
        return re.fullmatch(constraint.pattern, text) is not None
    if isinstance(constraint, Choice):
        return text in constraint.options
    if constraint is None:
        return True
    try:
        jsonschema.validate(json.loads(text), PERSON)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def run_fit(generations: int, out: Path | None) -> None:
    """Decode, and print how many texts fit; write the count to `out` as it grows."""
    done = good = 0
    rng, names, began = random.Random(0), cycle(kinds()), perf_counter()
    for seed in count():
        sampler = unmask.make_sampler(next(names))
        constraints = [rng.choice(CONSTRAINTS) for _ in range(rng.choice((1, 4, 8)))]
        length = rng.choice((32, 48))
        config = GenerationConfig(
            max_new_tokens=length,
            steps=rng.choice((8, 16, length)),
            block_length=rng.choice((None, 16)),
            temperature=rng.choice((0.0, 1.0)),
            seed=seed,
            min_new_tokens=rng.choice((0, 3)) if Choice not in map(type, constraints) else 0,
            constraint=constraints,
        )
        answers = unmask.generate(Noise(seed), [[5, 6, 7]] * len(constraints), sampler, config)
        good += sum(fits(each, answer.text) for each, answer in zip(constraints, answers, strict=True))
        gaps = replace(
            config, constraint=JSONSchema(PERSON), max_new_tokens=None, min_new_tokens=0, seed=seed
        )
        text = f'{{"name": "[[gap {rng.choice(("0-4", "2"))}]]", "age":[[gap 1-3]][[gap 0-6]]}}'
        filled = unmask.infill(Noise(seed), text, sampler, gaps)
        good += fits(gaps.constraint, filled.text)  # type: ignore[arg-type]
        done += len(answers) + 1
        over = done >= generations
        if seed % 50 == 0 or over:
            seconds = round(perf_counter() - began)
            print(f"{good} of {done} texts fit, {100 * good / done:.3f} %, {seconds} s", flush=True)
            if out is not None:
                found: dict[str, Any] = {"fit": good, "texts": done, "asked": generations, "finished": over}
                found |= {"seconds": seconds, "machine": machine(torch.device("cpu"))}
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if over:
            break


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
        run_fit(options.generations, options.out)
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
