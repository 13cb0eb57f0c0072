"""Check that all texts fit, with random languages and models, every kind of sampler, any order of commits."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import jsonschema
import torch
from torch import Tensor

import unmask
from unmask import Choice, GenerationConfig, JSONSchema, Regex
from unmask.bench.every_sampler import kinds
from unmask.bench.timing import machine
from unmask.constraints.language import Constraint
from unmask.errors import FieldError
from unmask.models.checkpoint.load import build
from unmask.models.trunk import Trunk
from unmask.types import Cache, ModelInfo

WORDS = (
    *(chr(letter) for letter in range(32, 127)), "\n", "ä", "true", "false", "null", '":', '{"', '", "', "},",
    "name", "age", "tags", "born", "12", "2024", "-0", "yes", "no", "maybe",
)  # fmt: skip
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", 1.5, None]}, "maxItems": 2},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
}
ATOMS = (r"\d", "[a-z]", "[^\\n]", "ä", "-", "(yes|no|maybe)", "[A-F0-9]", r"\.")
REPEATS = ("", "", "?", "*", "+", "{2}", "{1,3}")
LENGTHS = (16, 24)
CHECKER = jsonschema.FormatChecker()


def run(generations: int, out: Path | None) -> None:
    """Decode and print how many texts fit. Write the count to `out` as it grows."""
    done = good = refused = 0
    rng, names, began = random.Random(0), cycle(kinds()), perf_counter()
    for seed in count():
        sampler, model = unmask.make_sampler(next(names)), Noise(seed) if seed % 2 else tiny_model(seed)
        languages = [draw_language(rng) for _ in range(2)]
        constraints = rng.choices(languages, k=rng.choice((1, 4, 8)))
        config = draw_settings(rng, seed, constraints)
        try:
            answers = unmask.generate(model, [[5, 6, 7]] * len(constraints), sampler, config)
        except FieldError as error:
            if error.field not in ("max_new_tokens", "constraint"):
                raise
            refused += 1  # the canvas is too short, or the language too large
            continue
        good += sum(fits(each, answer.text) for each, answer in zip(constraints, answers, strict=True))
        gaps = replace(config, constraint=JSONSchema(PERSON), max_new_tokens=None, min_new_tokens=0)
        text = f'{{"name": "[[gap {rng.choice(("0-4", "2"))}]]", "age":[[gap 1-3]][[gap 0-6]]}}'
        good += fits(JSONSchema(PERSON), unmask.infill(model, text, sampler, gaps).text)
        done += len(answers) + 1
        over = done >= generations
        if seed % 50 == 0 or over:
            seconds = round(perf_counter() - began)
            print(f"{good} of {done} texts fit, {100 * good / done:.3f} %, {seconds} s", flush=True)
            if out is not None:
                found: dict[str, Any] = {"fit": good, "texts": done, "asked": generations, "finished": over}
                found |= {"refused_batches": refused, "seconds": seconds}
                found |= {"machine": machine(torch.device("cpu"))}
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if over:
            break


def draw_settings(rng: random.Random, seed: int, constraints: list[Constraint | None]) -> GenerationConfig:
    """Return random settings of a batch."""
    length = rng.choice(LENGTHS)
    return GenerationConfig(
        max_new_tokens=length,
        steps=rng.choice((4, 8, length)),
        block_length=rng.choice((None, 8)),
        temperature=rng.choice((0.0, 1.0)),
        seed=seed,
        min_new_tokens=rng.choice((0, 3)) if Choice not in map(type, constraints) else 0,
        constraint=constraints,
    )


# ---- random languages


def draw_language(rng: random.Random) -> Constraint | None:
    """Return a random pattern, schema or choice, or None."""
    kind = rng.choice(("pattern", "pattern", "schema", "schema", "schema", "choice", "none"))
    if kind == "pattern":
        return Regex("|".join(draw_pattern(rng) for _ in range(rng.choice((1, 1, 2)))))
    if kind == "schema":
        return JSONSchema(draw_schema(rng, depth=rng.choice((1, 1, 2))))
    return Choice(rng.sample(["yes", "no", "maybe", "name: 12", "ä"], 3)) if kind == "choice" else None


def draw_pattern(rng: random.Random) -> str:
    return "".join(rng.choice(ATOMS) + rng.choice(REPEATS) for _ in range(rng.randint(1, 4)))


def draw_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """Return a random schema: numbers, strings, dates, enums, and objects and arrays of them."""
    leaves = ("integer", "number", "boolean", "null", "string", "date", "enum")
    kind = rng.choice((*leaves, "object", "object", "array", "any") if depth else leaves)
    if kind == "object":
        names = rng.sample(["name", "age", "tags", "ä", "x y", "1"], rng.randint(1, 3))
        inside = {name: draw_schema(rng, depth - 1) for name in names}
        required = rng.sample(names, rng.randint(0, len(names)))
        return {"type": "object", "properties": inside, "required": required}
    if kind == "array":
        return {"type": "array", "items": draw_schema(rng, depth - 1), "maxItems": rng.randint(1, 3)}
    if kind == "any":
        return {"anyOf": [draw_schema(rng, depth - 1) for _ in range(2)]}
    if kind == "enum":
        return {"enum": rng.sample(["yes", 1, -0.5, None, True, "ä"], rng.randint(1, 3))}
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 6)}
    return {"type": "string", "format": "date"} if kind == "date" else {"type": kind}


def fits(constraint: Constraint | None, text: str) -> bool:
    """Return whether a text fits, judged by code other than ours."""
    if isinstance(constraint, Regex):
        return re.fullmatch(constraint.pattern, text) is not None
    if isinstance(constraint, Choice):
        return text in constraint.options
    if not isinstance(constraint, JSONSchema):
        return True
    try:
        jsonschema.validate(json.loads(text), json.loads(str(constraint.schema)), format_checker=CHECKER)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


# ---- models


class Letters:
    """A tokenizer with a mask token, an end token and then WORDS."""

    special = SimpleNamespace(bos=None, pad=None)

    def encode(self, text: str) -> list[int]:
        return [2 + WORDS.index(letter) for letter in text]

    def decode(self, token_ids: Iterable[int]) -> str:
        return "".join(WORDS[token - 2] if token >= 2 else "" for token in token_ids)

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Noise:
    """A model of random logits, which are the same for the same row."""

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


def tiny_model(seed: int) -> Trunk:
    """Return a small LLaDA of random weights."""
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 64}
    vocabulary = {"vocab_size": 2 + len(WORDS), "embedding_size": 2 + len(WORDS), "mask_token_id": 0}
    model = build({"model_type": "llada", **sizes, **vocabulary, "eos_token_id": 1, "pad_token_id": 1})
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.5)
    model.tokenizer = Letters()  # type: ignore[assignment]
    return model.requires_grad_(False).eval()
