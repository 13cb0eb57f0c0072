"""The one loop: windows, blocks, bans, stops, reuse, history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from tests.toy import Scripted, Toy, make_canvas, run, trail
from unmask import LESS, Base, Options, Prophet, Selection, Threshold, decode, denoise, make_sampler, plan
from unmask.decoding.plan import Block, Plan
from unmask.types import Decision, Needs, Observation

E = 1


@dataclass(frozen=True)
class Spy:
    """Commits the leftmost active position, and keeps every Observation it was shown."""

    needs: Needs = field(default_factory=Needs)
    shown: list[Observation] = field(default_factory=list)
    commits: bool = True

    def decide(self, obs: Observation) -> Decision:
        self.shown.append(obs)
        commit = obs.active & (obs.active.cumsum(-1) == 1) & self.commits
        carry = torch.full_like(obs.seen, len(self.shown))
        return Decision(commit, commit, torch.zeros_like(obs.seen, dtype=torch.bool), carry)


def spy(**needs) -> Spy:
    return Spy(Needs(**needs))


def test_a_full_sequence_is_one_window_and_one_block():
    seen = spy()
    run(Toy(eos_ids=()), seen, length=5)
    assert len(seen.shown) == 5
    assert all(obs.masked.shape == (1, 5) and not obs.blockwise for obs in seen.shown)


def test_a_blockwise_sampler_sees_its_block_and_one_that_spans_sees_all_but_acts_in_the_block():
    narrow, wide = spy(), spy(span=True)
    for seen in (narrow, wide):
        run(Toy(eos_ids=()), seen, length=6, block_length=2)
    assert {obs.masked.shape for obs in narrow.shown} == {(1, 2)}
    assert {obs.masked.shape for obs in wide.shown} == {(1, 6)}
    assert [obs.active[0].int().tolist() for obs in wide.shown[:3]] == [
        [1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0],
    ]  # fmt: skip
    assert wide.shown[2].masked[0].int().tolist() == [0, 0, 1, 1, 1, 1]
    assert all(obs.blockwise for obs in narrow.shown + wide.shown)


def test_history_is_as_long_as_asked_for_newest_first_and_starts_afresh_in_every_block():
    seen = spy(lookback=2)
    run(Toy(eos_ids=()), seen, length=8, block_length=4)
    assert [len(obs.past) for obs in seen.shown] == [0, 1, 2, 2] * 2
    assert [int(obs.seen) for obs in seen.shown] == [0, 1, 2, 3] * 2
    assert [obs.carry is None for obs in seen.shown] == [True, False, False, False] * 2
    fourth = seen.shown[3]
    assert torch.equal(fourth.past[0].lse, seen.shown[2].now.lse)
    assert torch.equal(fourth.past[1].lse, seen.shown[1].now.lse)
    assert [int(obs.step) for obs in seen.shown] == [0, 1, 2, 3] * 2


def test_history_that_spans_is_kept_across_blocks():
    seen = spy(lookback=2, span=True)
    run(Toy(eos_ids=()), seen, length=4, block_length=2)
    assert [int(obs.seen) for obs in seen.shown] == [0, 1, 2, 3]
    assert [None if obs.carry is None else int(obs.carry) for obs in seen.shown] == [None, 1, 2, 3]


def test_history_keeps_full_logits_only_where_they_are_needed_and_now_always_has_them():
    lean, full = spy(lookback=1), spy(lookback=1, logits=True)
    for seen in (lean, full):
        run(Toy(eos_ids=()), seen, length=3)
        assert all(obs.now.logits is not None for obs in seen.shown)
    assert lean.shown[1].past[0].logits is None
    assert torch.equal(full.shown[1].past[0].logits, full.shown[0].now.logits)


def test_a_row_that_idles_in_a_block_keeps_its_history_for_the_next():
    seen = spy(lookback=1, span=True)
    # row 1 has nothing to do in the first block
    run(Toy(eos_ids=()), seen, [[2], [3]], length=4, block_length=2, filled=[{}, {0: 5, 1: 6}])
    third = seen.shown[2]
    assert third.seen.tolist() == [2, 0]
    assert third.carry.tolist()[0] == 2


def test_a_row_s_history_holds_its_own_steps_and_not_those_in_which_only_others_ran():
    model, kinds = Toy(eos_ids=(), drift=4.0), {"lookback": 2, "span": True}
    prompts, filled = [[2], [3, 4]], [{}, {0: 5}]  # row 1 is through with its first block one step earlier
    together = spy(**kinds)
    run(model, together, prompts, length=6, block_length=3, filled=filled)
    alone = spy(**kinds)
    run(model, alone, prompts[1:], length=6, block_length=3, filled=filled[1:])
    mine = [obs for obs in together.shown if obs.active[1].any()]
    assert len(mine) == len(alone.shown) == 5
    for batch, single in zip(mine, alone.shown, strict=True):
        known = int(single.seen)
        assert int(batch.seen[1]) == known
        for there, here in list(zip(batch.past, single.past, strict=False))[:known]:
            assert torch.equal(there.lse[1], here.lse[0])


def test_what_a_row_carries_waits_while_only_others_run():
    @dataclass(frozen=True)
    class Counter(Spy):
        def decide(self, obs: Observation) -> Decision:
            before = torch.zeros_like(obs.seen) if obs.carry is None else obs.carry
            return replace(Spy.decide(self, obs), carry=before + 1)

    together = Counter(Needs(span=True))
    run(Toy(eos_ids=()), together, [[2], [3]], length=6, block_length=3, filled=[{}, {0: 5, 1: 6}])
    # row 1 took one step in the first block, row 0 took three
    assert together.shown[3].carry.tolist() == [3, 1]


def test_a_row_that_is_through_with_its_block_cannot_be_committed_in_a_later_one():
    @dataclass(frozen=True)
    class Everything(Spy):
        def decide(self, obs: Observation) -> Decision:
            decision = Spy.decide(self, obs)
            return replace(decision, commit=decision.commit | (obs.masked & (obs.seen >= 1)[:, None]))

    _, steps = trail(
        Toy(eos_ids=()),
        Everything(Needs(span=True)),
        [[2], [3]],
        length=4,
        block_length=2,
        filled=[{}, {1: 5}],
    )
    # step 2: row 0 takes all it has; row 1 has no mask left in the block, so it waits for the next
    assert (steps[1].tokens == 0).sum(-1).tolist() == [0, 2]


def test_noise_and_quota_and_progress_are_prepared():
    seen = spy(noise=True)
    run(Toy(eos_ids=()), seen, length=4, steps=8, block_length=2, seeds=[3])
    assert all(obs.noise.shape == (1, 2) for obs in seen.shown)
    assert [int(obs.quota) for obs in seen.shown] == [1, 1, 1, 1]
    assert [float(obs.progress) for obs in seen.shown] == [1 / 8, 2 / 8, 5 / 8, 6 / 8]
    quiet = spy()
    run(Toy(eos_ids=()), quiet, length=2)
    assert quiet.shown[0].noise is None


def test_the_schedule_is_the_model_s_own_unless_told_otherwise():
    dream = Toy(eos_ids=(), schedule="dream")
    assert [int(step.decision.commit.sum()) for step in trail(dream, Base(), length=6)[1]] == [
        0,
        1,
        1,
        1,
        1,
        2,
    ]
    linear = trail(dream, Base(), length=6, schedule="linear")[1]
    assert [int(step.decision.commit.sum()) for step in linear] == [1] * 6


def test_signals_see_the_untouched_distribution_whatever_the_selection():
    cold, hot = spy(), spy()
    run(Toy(eos_ids=()), cold, length=3)
    run(Toy(eos_ids=()), hot, length=3, selection=Selection(temperature=3.0, top_k=2), seeds=[5])
    assert torch.equal(cold.shown[0].now.logits, hot.shown[0].now.logits)
    assert torch.equal(cold.shown[0].drawn, cold.shown[0].now.top1)


def test_the_mask_token_is_never_written_unless_the_ban_is_lifted():
    model = Scripted([[9.0, 0.0, 1.0]] * 3)
    assert run(model, Base(), length=3).generated.tolist() == [[2, 2, 2]]
    seen = spy()
    run(model, seen, length=3, banned_ids=(2,))
    assert seen.shown[0].now.top_ids[0, 0].tolist() == [0, 1]


def test_no_end_token_before_min_new_tokens_in_whatever_block():
    model = Scripted([[0.0, 9.0, 1.0]] * 6, eos_ids=(E,))
    for block_length in (None, 2, 3):
        result = run(model, Base(), length=6, min_new_tokens=3, block_length=block_length)
        assert result.generated[0].tolist() == [2, 2, 2, E, E, E]
        assert result.finish == ("eos",)


def test_a_row_stops_at_its_end_token_and_pays_for_nothing_behind_it():
    model = Scripted([[0.0, 0.0, 5.0], [0.0, 6.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], eos_ids=(E,))
    stops, goes_on = (run(model, Base(), length=4, stop_at_eos=stop) for stop in (True, False))
    assert (stops.steps.tolist(), stops.finish, stops.generated.tolist()) == ([2], ("eos",), [[2, E, E, E]])
    assert (goes_on.steps.tolist(), goes_on.finish) == ([4], ("length",))
    assert goes_on.generated.tolist() == [[2, E, 2, 2]]


def test_an_end_token_with_a_mask_to_its_left_stops_nothing_yet():
    model = Scripted([[0.0, 0.0, 1.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.5]], eos_ids=(E,))
    _, steps = trail(model, Base(), length=3)
    assert [step.tokens[0, 2:].tolist() for step in steps] == [[0, E, 0], [2, E, 0]]


def test_a_text_that_ended_in_an_early_block_runs_no_later_block():
    model = Scripted([[0.0, 9.0, 0.0]] * 8, eos_ids=(E,))
    result = run(model, Base(), length=8, block_length=2)
    assert (result.steps.tolist(), result.evaluations) == ([1], 1)


def test_an_end_token_in_the_prompt_stops_nothing():
    model = Scripted([[0.0, 0.0, 9.0]] * 3, eos_ids=(E,))
    assert run(model, Base(), [[E, E]], length=3).steps.tolist() == [3]


def test_leftovers_get_the_argmax_of_the_canvas_as_it_stands():
    model = Toy(eos_ids=(), drift=6.0)
    _, steps = trail(model, Base(), length=6, steps=3, schedule="linear")
    assert [step.leftover for step in steps] == [False] * 3
    _, steps = trail(model, Spy(), length=6, steps=3)
    assert [step.leftover for step in steps] == [False, False, False, True]
    last = steps[-1]
    logits = model(steps[-2].tokens, None, last.window, None)
    logits[..., 0] = -math.inf
    assert torch.equal(last.tokens[0, 5:], logits[0, 3:].argmax(-1))
    assert (last.index, last.forward) == (3, True)


def test_leftovers_stay_masked_where_they_are_not_wanted_and_later_blocks_go_on():
    result = run(Toy(eos_ids=()), spy(), length=6, steps=4, block_length=3, fill_leftovers=False)
    assert (result.generated == 0).int().tolist() == [[0, 0, 1, 0, 0, 1]]
    assert result.leftovers.tolist() == [0]


def test_a_skipped_step_runs_no_forward_and_the_next_commit_does():
    model, sampler = Toy(eos_ids=(), lead=0.0), make_sampler("less-paper", min_confidence=1.0)
    _, steps = trail(model, sampler, length=2, steps=9)
    assert [step.forward for step in steps] == [True, False, False, True, False, False]
    assert [bool(step.decision.forced) for step in steps] == [False, False, True] * 2
    assert len(model.calls) == 2
    _, lavish = trail(model, sampler, length=2, steps=9, reuse=False)
    assert all(step.forward for step in lavish)


def test_a_leftover_fill_after_a_skip_needs_no_forward_either():
    model = Toy(eos_ids=(), lead=0.0)
    result = run(model, make_sampler("less-paper", min_confidence=1.0), length=3, steps=2)
    assert (result.steps.tolist(), result.leftovers.tolist()) == ([2], [3])
    assert len(model.calls) == result.evaluations == 1


def test_in_a_batch_only_the_rows_that_changed_count_a_forward():
    model, sampler = Toy(seed=3, eos_ids=()), make_sampler("less-paper")
    result = run(model, sampler, [[2], [3], [4], [5]], length=8, steps=30)
    assert result.forwards.tolist() == [8] * 4  # one per commit, as each row alone would need
    assert (result.forwards < result.steps).all()
    assert result.evaluations > 8  # the rows do not skip in the same steps


def test_a_decision_cannot_touch_what_is_not_masked_or_not_running():
    class Greedy:
        needs = Needs()

        def decide(self, obs: Observation) -> Decision:
            everything = torch.ones_like(obs.active)
            nobody = torch.zeros_like(obs.seen, dtype=torch.bool)
            return Decision(everything, everything, nobody, tokens=torch.full_like(obs.drawn, 7))

    filled = [{0: 5}, {0: 5, 1: 6, 2: 4}]
    result = run(Toy(eos_ids=()), Greedy(), [[2], [3]], length=3, filled=filled)
    assert result.generated.tolist() == [[5, 7, 7], [5, 6, 4]]
    assert result.accepted.tolist() == [2, 0]


def test_a_sampler_may_write_other_tokens_than_the_drawn():
    @dataclass(frozen=True)
    class Sevens(Spy):
        def decide(self, obs: Observation) -> Decision:
            return replace(Spy.decide(self, obs), tokens=torch.full_like(obs.drawn, 7))

    _, steps = trail(Toy(eos_ids=()), Sevens(), length=2)
    assert steps[-1].tokens[0, 2:].tolist() == [7, 7]
    assert steps[0].drawn.tolist() == [[7, 7]]


def test_a_canvas_without_masks_takes_no_step():
    result = run(Toy(), LESS(), length=2, pins={0: 5, 1: 6})
    assert (result.evaluations, result.steps.tolist()) == (0, [0])


def test_padding_that_looks_like_a_mask_is_still_padding():
    model = Toy(eos_ids=())  # mask and padding are both token 0
    result = run(model, Base(), [[2, 3, 4], [5]], length=3)
    assert result.tokens[1, :2].tolist() == [0, 0]
    assert result.generated[1].tolist() == run(model, Base(), [[5]], length=3).generated[0].tolist()


def test_steps_are_numbered_over_blocks_and_carry_their_block():
    _, steps = trail(Toy(eos_ids=()), Base(), length=4, block_length=2)
    assert [(step.index, step.block) for step in steps] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert steps[2].window == slice(4, 6)


def test_unused_steps_of_a_block_are_not_given_to_the_next():
    model = Scripted([[0.0, 0.0, 9.0]] * 2 + [[0.0, 0.0, 0.0]] * 2)
    result = run(model, Threshold(), length=4, steps=4, block_length=2)
    assert result.steps.tolist() == [3]


def test_the_canvas_that_was_given_is_left_alone():
    model = Toy(eos_ids=())
    canvas = make_canvas(model, [[2, 3]], 4)
    before = canvas.tokens.clone()
    list(denoise(model, canvas, Base(), plan(2, 4, steps=4)))
    assert torch.equal(canvas.tokens, before)


def test_steps_keep_their_own_tokens():
    _, steps = trail(Toy(eos_ids=()), Base(), length=3)
    assert [int((step.tokens == 0).sum()) for step in steps] == [2, 1, 0]


def test_the_cache_is_told_of_every_block_and_handed_to_the_model():
    class Recorder:
        persistent = False

        def __init__(self):
            self.blocks = []

        def start_block(self, block):
            self.blocks.append(block)

        def note_masks(self, window, masked): ...

    handed, toy = [], Toy(eos_ids=())

    class Model:
        info = toy.info

        def __call__(self, tokens, attend, window, cache):
            handed.append(cache)
            return toy(tokens, attend, window, None)

    cache, canvas = Recorder(), make_canvas(toy, [[2]], 4)
    decode(Model(), canvas, Base(), plan(1, 4, steps=4, block_length=2), cache=cache)
    assert cache.blocks == [slice(1, 3), slice(3, 5)]
    assert handed == [cache] * 4


def test_a_caller_may_end_rows_earlier():
    model = Toy(eos_ids=())
    canvas = make_canvas(model, [[2], [3]], 4)

    def done(tokens):
        return torch.tensor([True, False]) & ((tokens == 0).sum(-1) <= 2)

    steps = list(denoise(model, canvas, Base(), plan(1, 4, steps=4), stop=done))
    assert (steps[-1].tokens == 0).sum(-1).tolist() == [2, 0]
    assert [step.running.tolist() for step in steps] == [[True, True]] * 2 + [[False, True]] * 2


def test_half_precision_models_are_decided_in_float32():
    toy = Toy(eos_ids=())

    class Half:
        info = toy.info

        def __call__(self, *arguments):
            return toy(*arguments).bfloat16()

    seen = spy()
    run(Half(), seen, length=2)
    assert seen.shown[0].now.logits.dtype == seen.shown[0].now.lse.dtype == torch.float32


def test_prophet_leaves_a_block_with_the_whole_generation_decoded():
    model = Scripted([[-99.0, 0.0, 9.0]] * 6)
    result = run(model, Prophet(answer_start=0), length=6, block_length=2)
    assert (result.steps.tolist(), result.accepted.tolist()) == ([1], [6])


def test_options_are_the_documented_defaults():
    options = Options()
    assert (options.stop_at_eos, options.fill_leftovers, options.reuse) == (True, True, True)
    assert (options.selection, options.banned_ids, options.schedule) == (Selection(), None, None)


def test_rows_that_ended_or_did_not_change_are_left_out_of_the_forward():
    model = Toy(eos_ids=())
    filled = [{}, dict.fromkeys(range(6), 3), dict.fromkeys(range(5), 3), {}]
    result = run(model, Base(), [(2, 3), (4,), (5, 6, 7), (8,)], filled=filled)
    assert result.steps.tolist() == [6, 0, 1, 6]
    assert model.calls == [3, 2, 2, 2, 2, 2]


def test_rows_of_a_model_that_knows_them_by_number_stay_together():
    @dataclass(frozen=True)
    class Numbered(Toy):
        @property
        def info(self):
            return replace(super().info, separable=False)

    model = Numbered(eos_ids=())
    run(model, Base(), [(2, 3), (4,)], filled=[{}, dict.fromkeys(range(6), 3)])
    assert set(model.calls) == {2}


def test_what_a_sampler_keeps_of_a_step_is_not_written_by_a_later_one():
    @dataclass(frozen=True)
    class Keeper(Base):
        def decide(self, obs):
            kept = obs.now.full_logits
            return replace(super().decide(obs), signals={"kept": kept, "copy": kept.clone()})

    filled = [{}, dict.fromkeys(range(5), 3), {}]
    _, steps = trail(Toy(eos_ids=()), Keeper(), [(2, 3), (4,), (5, 6, 7)], filled=filled)
    assert len(steps) == 6
    for step in steps:
        assert torch.equal(step.decision.signals["kept"], step.decision.signals["copy"])


def test_a_row_that_is_done_stays_so():
    def flickering(tokens):
        filled = (tokens[:, 2:] != 0).sum(-1)
        return (filled == 2) & torch.tensor([True, False])

    canvas = make_canvas(Toy(eos_ids=()), [(2, 3), (4, 5)], 6)
    steps = denoise(Toy(eos_ids=()), canvas, Base(), plan(2, 6, steps=6), stop=flickering)
    assert [step.running.tolist() for step in steps] == [[True, True]] * 2 + [[False, True]] * 4


def test_a_batch_of_many_loses_rows_in_eighths():
    model, ends = Toy(eos_ids=()), range(20)
    filled = [dict.fromkeys(range(min(6, row // 3)), 3) for row in ends]
    together = run(model, Base(), [(2, row % 9 + 2) for row in ends], filled=filled)
    assert model.calls == sorted(model.calls, reverse=True)
    assert set(model.calls) <= {3, 6, 9, 12, 15, 18, 20}
    for row in ends:
        alone = run(Toy(eos_ids=()), Base(), [(2, row % 9 + 2)], filled=[filled[row]])
        assert torch.equal(together.tokens[row], alone.tokens[0])


def test_what_ends_a_row_may_come_from_a_leftover_fill():
    never, model = LESS(min_confidence=1.0, patience=10**9), Toy(eos_ids=())
    canvas = make_canvas(model, [(2, 3)], 6)

    def first_block_is_full(tokens):
        return (tokens[:, 2:5] != 0).all(-1)

    cut = plan(2, 6, steps=4, block_length=3)
    steps = list(denoise(model, canvas, never, cut, stop=first_block_is_full))
    assert [(step.block, step.leftover) for step in steps] == [(0, False), (0, False), (0, True)]


def test_a_block_without_a_step_is_filled_as_leftovers():
    model = Toy(eos_ids=())
    cut = Plan((Block(slice(1, 3), 0, 0), Block(slice(3, 5), 2, 0)), 2, blockwise=True)
    result = decode(model, make_canvas(model, [[2]], 4), Base(), cut)
    assert not (result.generated == model.mask_id).any()
    assert (int(result.leftovers), int(result.steps)) == (2, 2)
