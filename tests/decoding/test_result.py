"""Counting what the steps did."""

from __future__ import annotations

import torch

from tests.toy import Scripted, Toy, mask, run
from unmask import LESS, Base, Threshold, blank
from unmask.decoding.result import collect
from unmask.types import Decision, Step

M, E = 0, 1


def step(
    tokens, commit, eligible=None, *, forced=False, running=True, fresh=True, forward=True, leftover=False
):
    """One Step of one row with three generated columns, masks as strings."""
    where = mask(commit, "x")
    decision = Decision(where, mask(eligible or commit, "x"), torch.tensor([forced]))
    flags = torch.tensor([running]), torch.tensor([fresh])
    return Step(1, 0, slice(1, 4), torch.tensor([tokens]), where.long(), decision, *flags, forward, leftover)


def test_every_count_of_a_hand_made_run():
    steps = [
        step([5, M, M, M], "...", "..."),  # a skip: nothing eligible
        step([5, M, M, M], "...", "..x", fresh=False, forward=False),  # a skip on a reused prediction
        step([5, 7, M, M], "x..", "...", forced=True, fresh=False, forward=False),
        step([5, 7, 8, M], ".x.", "xx."),
        step([5, 7, 8, 9], "..x", "...", leftover=True),
    ]
    result = collect(steps, blank([[5]], 3, mask_id=M, pad_id=2), (E,))
    assert result.tokens.tolist() == [[5, 7, 8, 9]]
    assert result.generated.tolist() == [[7, 8, 9]]
    assert result.steps.tolist() == [4]
    assert result.forwards.tolist() == [3]
    assert result.evaluations == 3
    assert result.accepted.tolist() == [1]
    assert result.forced.tolist() == [1]
    assert result.forced_steps.tolist() == [1]
    assert result.empty_steps.tolist() == [2]
    assert result.leftovers.tolist() == [1]
    assert result.forced_share.tolist() == [0.25]
    assert result.empty_share.tolist() == [0.5]
    assert result.finish == ("length",)


def test_a_row_that_does_not_run_counts_nothing():
    idle = step([5, 7, 8, 9], "...", "...", forced=True, running=False, fresh=False)
    result = collect([idle], blank([[5]], 3, mask_id=M, pad_id=2, pins={0: 7, 1: 8, 2: 9}), ())
    for count in (result.steps, result.forwards, result.forced, result.forced_steps, result.empty_steps):
        assert count.tolist() == [0]
    assert result.forced_share.tolist() == [0.0]


def test_no_step_at_all_leaves_the_canvas_as_it_was():
    canvas = blank([[5], [6]], 2, mask_id=M, pad_id=2, pins={0: 7, 1: 8})
    result = collect([], canvas, (E,))
    assert torch.equal(result.tokens, canvas.tokens)
    assert (result.evaluations, result.finish) == (0, ("length", "length"))


def test_masks_behind_the_end_are_closed_with_the_end_token():
    result = collect([step([5, 7, E, M], "xx.")], blank([[5]], 3, mask_id=M, pad_id=2), (E,))
    assert result.generated.tolist() == [[7, E, E]]
    assert result.finish == ("eos",)


def test_without_end_tokens_no_text_ends():
    result = collect([step([5, 7, E, M], "xx.")], blank([[5]], 3, mask_id=M, pad_id=2), ())
    assert result.generated.tolist() == [[7, E, M]]
    assert result.finish == ("length",)


def test_an_end_token_behind_a_mask_does_not_end_the_text():
    result = collect([step([5, M, E, 8], ".xx")], blank([[5]], 3, mask_id=M, pad_id=2), (E,))
    assert result.finish == ("length",)


def test_a_sure_model_is_decoded_in_one_step_by_threshold_and_forced_nowhere():
    model = Scripted([[0.0, 0.0, 9.0]] * 4, mask_id=0, eos_ids=(1,))
    result = run(model, Threshold(), length=4)
    assert (result.steps.tolist(), result.accepted.tolist(), result.forced.tolist()) == ([1], [4], [0])
    assert result.generated.tolist() == [[2, 2, 2, 2]]
    assert model.at == result.evaluations == 1


def test_an_unsure_model_is_forced_at_every_step():
    result = run(Scripted([[0.0, 0.0, 0.0, 0.1]] * 4), Threshold(), length=4)
    assert (result.forced.tolist(), result.forced_share.tolist()) == ([4], [1.0])
    assert result.empty_share.tolist() == [1.0]


def test_rows_of_a_batch_are_counted_apart():
    result = run(Toy(eos_ids=()), Base(), [[2], [3]], length=4, filled=[{}, {0: 5, 1: 5, 2: 5}])
    assert result.steps.tolist() == [4, 1]
    assert result.accepted.tolist() == [4, 1]
    assert result.forwards.tolist() == [4, 1]
    assert result.evaluations == 4


def test_commits_of_a_budget_too_small_are_leftovers():
    result = run(Toy(eos_ids=()), LESS(), length=6, steps=2)
    assert result.steps.tolist() == [2]
    assert result.leftovers.tolist() == [6 - int(result.accepted + result.forced)]
