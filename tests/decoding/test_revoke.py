"""A sampler may mask or rewrite what it committed; the prompt, pins and other rows stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raises import raises_field
from tests.serving.test_engine import TextToy
from tests.toy import Toy, make_canvas
from unmask import GenerationConfig, Options, Saber, decode, denoise, generate, plan, stream
from unmask.serving import Engine
from unmask.types import Decision, Needs, Observation

PROMPTS = [[2, 3, 4], [5], [6, 7]]


@dataclass(frozen=True)
class Fickle:
    """Commits `ahead` positions from the left, and revokes or rewrites written ones by their place."""

    ahead: int = 3
    revoke_every: int = 3  # of the columns; 0: none
    rewrite_every: int = 0
    once: bool = True  # a column at most once
    span: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(revoke=True, span=self.span)

    def decide(self, obs: Observation) -> Decision:
        assert obs.tokens is not None
        assert obs.written is not None
        column = torch.arange(obs.masked.shape[1], device=obs.masked.device)
        spent = torch.zeros_like(obs.masked) if obs.carry is None else obs.carry
        open_ = obs.written & ~spent if self.once else obs.written
        nothing = torch.zeros_like(obs.masked)
        revoke = open_ & (column % self.revoke_every == 0) if self.revoke_every else nothing
        rewrite = open_ & (column % self.rewrite_every == 1) if self.rewrite_every else nothing
        commit = obs.active & (obs.active.cumsum(-1) <= self.ahead)
        forced = torch.zeros_like(obs.step, dtype=torch.bool)
        return Decision(
            commit, commit, forced, spent | revoke | rewrite, obs.drawn, revoke=revoke, rewrite=rewrite
        )


SAMPLERS = [
    Fickle(),
    Fickle(span=True),
    Fickle(revoke_every=0, rewrite_every=2),
    Fickle(revoke_every=2, rewrite_every=3),
    Saber(),
    Saber(number=6),
    Fickle(ahead=1, revoke_every=1, once=False),  # takes back all it writes
]


@settings(max_examples=80)
@given(
    sampler=st.sampled_from(SAMPLERS),
    length=st.integers(1, 12),
    block=st.none() | st.integers(1, 12),
    steps=st.integers(12, 40),
    seed=st.integers(0, 9),
)
def test_a_run_ends_without_a_mask_and_rows_are_as_alone(sampler, length, block, steps, seed):
    model = Toy(seed=seed)
    blocks = plan(3, length, steps=steps, block_length=None if block is None else min(block, length))
    together = decode(model, make_canvas(model, PROMPTS, length), sampler, blocks)
    assert not (together.generated == model.mask_id).any()
    for row, prompt in enumerate(PROMPTS):
        alone_plan = plan(
            len(prompt), length, steps=steps, block_length=None if block is None else min(block, length)
        )
        alone = decode(model, make_canvas(model, [prompt], length), sampler, alone_plan)
        assert torch.equal(together.generated[row], alone.generated[0])
        assert together.per_row()[row] == alone.per_row()[0]


def test_the_prompt_and_pins_are_never_revoked():
    model = Toy(eos_ids=())
    canvas = make_canvas(model, [[2, 3]], 8, pins={2: 9, 5: 8})
    for sampler in SAMPLERS:
        for step in denoise(model, canvas, sampler, plan(2, 8, steps=16)):
            assert step.tokens[0, [0, 1, 4, 7]].tolist() == [2, 3, 9, 8]
            if not step.leftover:
                assert not (step.decision.revoke & (canvas.tokens[:, step.window] != 0)).any()


def test_a_step_says_what_was_revoked_and_the_counts_add_up():
    model = Toy(eos_ids=())
    canvas, seen, before = make_canvas(model, [[2]], 9), 0, None
    for step in denoise(model, canvas, Fickle(revoke_every=3, rewrite_every=2), plan(1, 9, steps=18)):
        window = step.tokens[:, step.window]
        assert (window[step.decision.revoke] == model.mask_id).all()
        if before is not None:
            masked_again = (window == model.mask_id) & (before != model.mask_id)
            assert torch.equal(masked_again, step.decision.revoke)
        seen += int(step.decision.revoke.sum() + step.decision.rewrite.sum())
        before = window
    result = decode(model, canvas, Fickle(revoke_every=3, rewrite_every=2), plan(1, 9, steps=18))
    assert seen == int(result.revoked) > 0
    committed = result.accepted + result.forced + result.leftovers
    assert int(committed) >= 9


def test_the_quota_of_a_revoking_sampler_is_read_from_the_canvas():
    quotas = []

    class Watching(Fickle):
        def decide(self, obs):
            quotas.append((int(obs.active.sum()), int(obs.quota)))
            return super().decide(obs)

    model = Toy(eos_ids=())
    decode(model, make_canvas(model, [[2]], 8), Watching(ahead=2), plan(1, 8, steps=10))
    for step, (masks, quota) in enumerate(quotas):
        assert quota == -(-masks // (10 - step))


def test_a_stream_sends_nothing_that_is_revoked_later():
    model = TextToy(Toy(eos_ids=()))
    config = GenerationConfig(max_new_tokens=12, block_length=4)
    for sampler in SAMPLERS[:-1]:
        chunks = list(stream(model, [2, 3], sampler, config))
        [generation] = generate(model, [[2, 3]], sampler, config)
        assert "".join(chunk.text for chunk in chunks) == generation.text
        assert all(
            generation.text.startswith("".join(c.text for c in chunks[:i])) for i in range(len(chunks))
        )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_stop_string_cuts_the_text_that_would_have_been_written(sampler):
    model = TextToy(Toy(eos_ids=()))
    config = GenerationConfig(max_new_tokens=24, block_length=8)
    [whole] = generate(model, [[5, 6]], sampler, config)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        [cut] = generate(model, [[5, 6]], sampler, config, stop=(letter,))
        assert cut.text == whole.text.split(letter)[0]
        assert cut.steps <= whole.steps


def test_the_server_answers_as_a_run_alone():
    model = TextToy(Toy())
    config = GenerationConfig(max_new_tokens=10, block_length=5)
    asks = [(prompt, sampler) for sampler in SAMPLERS for prompt in PROMPTS]
    with Engine(model) as engine:
        jobs = [engine.submit(prompt, sampler, config) for prompt, sampler in asks]
        answers = [job.result(20) for job in jobs]
    assert answers == [generate(model, [prompt], sampler, config)[0] for prompt, sampler in asks]
    assert any(answer.revoked for answer in answers)


@pytest.mark.parametrize("name", ["revoke", "rewrite"])
def test_a_sampler_that_did_not_ask_may_not_revoke(name):
    class Rash(Fickle):
        needs = Needs()

        def decide(self, obs):
            nothing = torch.zeros_like(obs.masked)
            forced = torch.zeros_like(obs.step, dtype=torch.bool)
            return Decision(obs.active, obs.active, forced, **{name: nothing})

    model = Toy()
    with raises_field(f"Rash.decide: {name}"):
        decode(model, make_canvas(model, [[2]], 4), Rash(), plan(1, 4, steps=4), Options())
