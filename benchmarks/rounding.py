"""Measure how much each format rounds: KL divergence to float32, on canvases of a small model.

    python -m benchmarks.rounding --model mini-llada --out FILE.json

The canvases come from several steps of `base` and `less` on test questions of the seven tasks. Then single
layers and kinds of weight are rounded to int4, and some are kept at 8 bits while the others are at 4.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

import unmask
from unmask.bench.timing import machine
from unmask.experiments import methods
from unmask.models.quantized.convert import FORMATS
from unmask.models.quantized.int4 import Int4Linear, Int4PairLinear
from unmask.models.quantized.int8 import Int8Linear
from unmask.models.quantized.linear import QuantizedLinear
from unmask.models.trunk import Trunk
from unmask.text.generate import prepare
from unmask.training.tasks import test_items

STEPS = 4  # steps of each run whose canvases are kept
KINDS = ("query", "key", "value", "output", "gate", "up", "down")
Canvas = tuple[Tensor, slice]  # tokens [1, N] and the generated columns
Weights = dict[str, Tensor]


def canvases(model: Trunk, items: int) -> Iterator[Canvas]:
    """Yield canvases of `base` and `less` that still hold masks."""
    assert model.tokenizer is not None
    family = str(model.config["model_type"]).lower()
    for role in methods.ROLES:
        for item in test_items(f"mini-{role}")[:items]:
            prompt = model.tokenizer.chat([{"role": "user", "content": item.prompt}])
            for sampler, steps in ((methods.base(family), 32), (unmask.make_sampler("less"), None)):
                config = unmask.GenerationConfig(max_new_tokens=128, steps=steps)
                window = slice(len(prompt), len(prompt) + 128)
                seen = [step.tokens.clone() for step in prepare(model, [prompt], sampler, config).steps]
                seen = [tokens for tokens in seen if (tokens[:, window] == model.info.mask_id).any()]
                places = torch.linspace(0, len(seen) - 1, STEPS).long().tolist() if seen else []
                yield from ((seen[place], window) for place in sorted(set(places)))


@torch.no_grad()
def masked_logits(model: Trunk, kept: list[Canvas]) -> Tensor:
    """Return log-probabilities of all masked positions, [n, V]."""
    found = [
        model(tokens, None, window, None)[tokens[:, window] == model.info.mask_id] for tokens, window in kept
    ]
    return torch.cat(found).float().log_softmax(-1)


def compare(expected: Tensor, found: Tensor) -> dict[str, float]:
    """Return the mean KL divergence, and the share of equal top-1 tokens."""
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    return {"kl": float(divergence), "top1": float((expected.argmax(-1) == found.argmax(-1)).float().mean())}


def rounded(weight: Tensor, layer: type[QuantizedLinear]) -> Tensor:
    """Round a weight as a quantized layer does."""
    return layer.decode(*layer.encode(weight), weight.shape[1], torch.float32)


def variants(plain: Mapping[str, Tensor], layers: int) -> Iterator[tuple[str, Weights]]:
    """Yield names and rounded weights of the layers: some of them at 4 bits, or all but some."""
    keys = [key for key, weight in plain.items() if key.startswith("layers.") and weight.dim() == 2]
    int4, pair = ({key: rounded(plain[key], kind) for key in keys} for kind in (Int4Linear, Int4PairLinear))
    embed = {"embed.weight": rounded(plain["embed.weight"], Int8Linear)}

    def of_layers(*numbers: int) -> list[str]:
        return [key for key in keys if int(key.split(".")[1]) in numbers]

    def of_kinds(*kinds: str) -> list[str]:
        return [key for key in keys if key.split(".")[-2] in kinds]

    for number in range(layers):
        yield f"4 bits in layer {number} alone", {key: int4[key] for key in of_layers(number)}
    for kind in KINDS:
        yield f"4 bits in {kind} alone", {key: int4[key] for key in of_kinds(kind)}
    kept = {
        "4 bits in every layer": [],
        "8 bits in the last layer": of_layers(layers - 1),
        "8 bits in the last two": of_layers(layers - 2, layers - 1),
        "8 bits in the last three": of_layers(layers - 3, layers - 2, layers - 1),
        "8 bits in the first and the last": of_layers(0, layers - 1),
        "8 bits in all attention outputs": of_kinds("output"),
        "8 bits in all queries, keys and values": of_kinds("query", "key", "value"),
    }
    for name, wide in kept.items():
        yield name, int4 | embed | {key: pair[key] for key in wide}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--items", type=int, default=4, help="questions of each task")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = unmask.load(options.model, device="cpu")
    kept = list(canvases(model, options.items))
    expected = masked_logits(model, kept)
    found: dict[str, dict[str, float]] = {}
    content = {
        "command": f"python -m benchmarks.rounding --model {options.model} --items {options.items}",
        "machine": machine(torch.device("cpu")),
        "positions": len(expected),
        "results": found,
    }

    def add(name: str, model: Trunk) -> None:
        found[name] = compare(expected, masked_logits(model, kept))
        print(f"{name:40} KL {found[name]['kl']:.5f}  same top-1 {found[name]['top1']:.1%}", flush=True)

    print(len(expected), "masked positions", flush=True)
    for dtype in ("bfloat16", *FORMATS):
        add(dtype, unmask.load(options.model, device="cpu", dtype=dtype))
    plain = {key: weight.clone() for key, weight in model.state_dict().items()}
    for name, weights in variants(plain, model.shape.layers):
        model.load_state_dict(plain | weights)
        add(name, model)
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
