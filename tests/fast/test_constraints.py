"""A constraint on a compiled model: the same tokens, and forwards that still start early."""

from __future__ import annotations

from typing import Any

import torch

from unmask import LESS, Options, blank, denoise, plan
from unmask.bench.step import full_size
from unmask.constraints.automaton import END, TokenAutomaton
from unmask.constraints.fitting import Fitting
from unmask.decoding.bans import Bans
from unmask.decoding.result import collect
from unmask.fast.compile import compile

STEPS = 8
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def decode(model, automaton):
    info = model.info
    canvas = blank([[5, 6, 7]], 16, mask_id=info.mask_id, pad_id=info.pad_id).to(DEVICE)
    bans = Bans((info.mask_id,), language=Fitting.of([automaton], canvas, canvas.start))
    options = Options(stop_at_eos=False, fill_leftovers=False)
    steps = denoise(model, canvas, LESS(), plan(canvas.start, 16, steps=STEPS), options, bans=bans)
    return collect(steps, canvas, ()).generated


def test_a_compiled_model_starts_its_constrained_forwards_early_and_writes_the_same():
    model = full_size("llada", DEVICE, small=True).float()
    kinds = 2 + torch.arange(model.info.vocab_size) % 2  # odd and even tokens in turn
    kinds[list(model.info.eos_ids)] = END
    turns = torch.tensor([[2, 2, 1, 2], [2, 2, 2, 0], [2, 2, 2, 2]])
    automaton = TokenAutomaton(turns, kinds, torch.tensor([True, True, False]))
    plain = decode(model, automaton).cpu()
    runner: Any = compile(model, layers=False, join=False).runner
    assert torch.equal(decode(model, automaton).cpu(), plain)
    assert runner.finished >= STEPS - 1
    written = plain[0] != model.info.mask_id
    assert written.sum() >= STEPS
    assert torch.equal(plain[0][written] % 2, torch.arange(len(written))[written] % 2)
