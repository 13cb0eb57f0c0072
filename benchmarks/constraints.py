"""Constraints: how many texts fit, what a step costs, and how long an automaton takes to build.

    python -m benchmarks.constraints fit --generations 20000
    python -m benchmarks.constraints cost
    python -m benchmarks.constraints build --vocabulary 126464

`fit` decodes with a model of random logits, which breaks every grammar, with every kind of sampler, in blocks
and not, greedy and drawn, with constraints mixed in a batch, and with gaps. It needs the package jsonschema.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count, cycle
from statistics import median
from time import perf_counter, process_time
from types import SimpleNamespace

import torch
from torch import Tensor

import unmask
from unmask import Choice, GenerationConfig, JSONSchema, Regex
from unmask.bench.every_sampler import kinds
from unmask.constraints.automaton import tokens_of
from unmask.constraints.bytes import ByteAutomaton
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
FORM = {  # about 200 states
    "type": "object",
    "properties": {
        "question": {"type": "string"},
        "answer": {"type": "integer"},
        "steps": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "date": {"type": "string", "format": "date"},
        "unit": {"enum": ["none", "apples", "dollars", "minutes", "kilometres"]},
        "sure": {"type": "boolean"},
    },
    "required": ["question", "answer", "steps", "date", "unit", "sure"],
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


def run_fit(generations: int) -> None:
    """Decode, and print how many texts fit."""
    done = good = 0
    rng, names, began = random.Random(0), cycle(kinds()), perf_counter()
    for seed in count():
        if done >= generations:
            break
        model, sampler = Noise(seed), unmask.make_sampler(next(names))
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
        answers = unmask.generate(model, [[5, 6, 7]] * len(constraints), sampler, config)
        good += sum(fits(each, answer.text) for each, answer in zip(constraints, answers, strict=True))
        gaps = replace(
            config, constraint=JSONSchema(PERSON), max_new_tokens=None, min_new_tokens=0, seed=seed
        )
        text = f'{{"name": "[[gap {rng.choice(("0-4", "2"))}]]", "age":[[gap 1-3]][[gap 0-6]]}}'
        filled = unmask.infill(model, text, sampler, gaps)
        good += fits(gaps.constraint, filled.text)  # type: ignore[arg-type]
        done += len(answers) + 1
        if seed % 50 == 0:
            print(f"{good} of {done} texts fit, {perf_counter() - began:.0f} s", flush=True)
    print(f"{good} of {done} texts fit, {100 * good / done:.3f} %, {perf_counter() - began:.0f} s")


def run_cost(turns: int) -> None:
    """Print the time of a step with a constraint beside one without, on a small model."""
    model = unmask.load("mini-llada")
    constraint, prompt = JSONSchema(FORM), "Tom has 3 apples and buys 4. How many has he?"
    states = ByteAutomaton.compile(constraint).dead
    times: dict[bool, list[float]] = {False: [], True: []}
    for held in [False, True] * (turns + 1):
        config = GenerationConfig(max_new_tokens=128, constraint=constraint if held else None)
        began = process_time()  # not the wall clock: other programs would count
        [answer] = unmask.generate(model, [prompt], unmask.make_sampler("less"), config)
        times[held].append((process_time() - began) / answer.forwards)
    free, held_time = (median(times[held][1:]) for held in (False, True))
    print(
        f"{states} states; a step takes {1000 * free:.1f} ms, with the constraint {1000 * held_time:.1f} ms"
    )
    print(f"ratio of medians {held_time / free:.3f}")


def run_build(vocabulary: int) -> None:
    """Print the time to build the automaton of a schema for a large vocabulary of made-up tokens."""
    rng = random.Random(0)
    letters = [chr(letter).encode() for letter in range(32, 127)] + ["ä".encode(), b"\xe2", b"\x82"]
    tokens: set[bytes] = set(letters)
    while len(tokens) < vocabulary:
        tokens.add(b"".join(rng.choices(letters, k=rng.randint(2, 9))))
    began = perf_counter()
    small = ByteAutomaton.compile(JSONSchema(FORM))
    compiled = perf_counter()
    made = tokens_of(small, sorted(tokens), [])
    print(f"{small.dead} states, {made.next.shape[1]} classes of {len(tokens)} tokens")
    print(f"compiled in {compiled - began:.1f} s, read for the tokens in {perf_counter() - compiled:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("fit", "cost", "build"))
    parser.add_argument("--generations", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=126_464)
    options = parser.parse_args()
    if options.what == "fit":
        run_fit(options.generations)
    elif options.what == "cost":
        run_cost(options.turns)
    else:
        run_build(options.vocabulary)
