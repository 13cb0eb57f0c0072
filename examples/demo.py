"""The same prompt under every main sampler, on the tiny checkpoints that the tests use."""

from __future__ import annotations

from pathlib import Path

import torch

from unmask import Options, blank, decode, make_sampler, plan
from unmask.models import load

CHECKPOINTS = Path(__file__).parent.parent / "tests" / "goldens"
NAMES = ("base", "threshold", "factor", "klass", "prophet", "less-paper", "less-released", "less")
LENGTH = 64


def main() -> None:
    torch.set_num_threads(1)
    for folder, block_length in (("llada_tiny", 16), ("dream_calm_tiny", None)):
        model = load(CHECKPOINTS / folder)
        regime = f"blocks of {block_length}" if block_length else "full sequence"
        print(f"\n{folder}: {LENGTH} new tokens in at most {LENGTH} steps, {regime}")
        print(f"{'sampler':<14} {'steps':>5} {'forwards':>8} {'by rule':>7} {'forced':>6}  first tokens")
        canvas = blank([[7, 42, 99, 311, 5]], LENGTH, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
        blocks = plan(canvas.start, LENGTH, steps=LENGTH, block_length=block_length)
        for name in NAMES:
            result = decode(model, canvas, make_sampler(name), blocks, Options(stop_at_eos=False))
            counts = [int(count) for count in (result.steps, result.forwards, result.accepted, result.forced)]
            tokens = " ".join(str(token) for token in result.generated[0, :8].tolist())
            print(f"{name:<14} {counts[0]:>5} {counts[1]:>8} {counts[2]:>7} {counts[3]:>6}  {tokens} ...")
    print("\nThe checkpoints are random: the tokens mean nothing, the steps and forwards are real.")


if __name__ == "__main__":
    main()
