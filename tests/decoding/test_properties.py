"""What must hold for every registered sampler, and for the divergences, on random cases."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.toy import COUNTS, Toy, log_probs, make_canvas, predict, run, trail
from unmask import (
    KLASS,
    LESS,
    SAMPLERS,
    WINO,
    Base,
    Credit,
    Dawn,
    FirstMask,
    Hierarchy,
    LESSReleased,
    LocalLeap,
    Prophet,
    Saber,
    Selection,
    Threshold,
)
from unmask.bench.every_sampler import kinds
from unmask.decoding.result import collect
from unmask.samplers.signals import confidence, entropy, jsd, kl, margin
from unmask.types import Sampler, Step

LN2 = math.log(2)
KINDS = kinds()  # the other presets differ from one of these in numbers only
every_sampler = pytest.mark.parametrize("name", KINDS)
every_plain_sampler = pytest.mark.parametrize(
    "name", [name for name in KINDS if SAMPLERS[name].needs.speculation is None]
)
EAGER = [  # values with which the toy makes every branch of a rule happen
    KLASS(min_confidence=0.1, max_kl=0.5, history=1),
    KLASS(min_confidence=0.1, max_kl=0.5, history=2),
    KLASS(min_confidence=0.1, max_kl=2.0, history=3, unmask_strategy="min_kl"),
    KLASS(min_confidence=0.1, max_kl=0.5, unmask_strategy="random"),
    Prophet(early=2.0, mid=1.5, late=1.0),
    Prophet(early=3.0, mid=2.0, late=1.0, answer_start=0, answer_length=1, base=Base(order="random")),
    LESS(min_confidence=0.2, max_jsd=0.3, persistence=3, patience=1),
    LESS(min_confidence=0.2, max_jsd=0.1, top_k=2, exact=False, policy="frontier", lookahead=1, patience=3),
    LESSReleased(min_confidence=0.2, max_jsd=0.5, end_bar=0.3, end_floor=0.1),
    Base(order_temperature=0.3, temperature=0.7, top_k=3),
    Threshold(min_confidence=0.4),
    LocalLeap(min_confidence=0.5, relaxed_confidence=0.2, radius=1),
    Hierarchy(min_confidence=0.5, low_confidence=0.2),
    FirstMask(min_confidence=0.4, window=3),
    FirstMask(min_confidence=0.4, along="jsd", along_jsd=0.1, revoke_below=0.4),
    Credit(min_confidence=0.4, weight=2.0, decay=0.95, credits=2),
    Saber(number=5),
    WINO(min_confidence=0.2, accept_least=2, first_allowance=3),
    Dawn(min_confidence=0.6, induced_confidence=0.3, low_confidence=0.2, sink=0.3, edge=0.2),
]


@dataclass(frozen=True)
class Case:
    """One decoding: a toy model, prompts of different lengths, and how the budget is cut."""

    model: Toy
    prompts: tuple[tuple[int, ...], ...]
    filled: tuple[dict[int, int], ...]  # tokens that a row's generation already holds
    length: int
    steps: int
    block_length: int | None
    stop_at_eos: bool
    selection: Selection
    seeds: tuple[int, ...]

    @property
    def settings(self) -> dict:
        return {
            "length": self.length,
            "steps": self.steps,
            "block_length": self.block_length,
            "stop_at_eos": self.stop_at_eos,
            "selection": self.selection,
        }

    def run(self, sampler: str | Sampler, **changes):
        together = {"filled": self.filled, "seeds": self.seeds, **self.settings, **changes}
        return run(self.model, named(sampler), self.prompts, **together)

    def trail(self, sampler: str | Sampler, **changes):
        together = {"filled": self.filled, "seeds": self.seeds, **self.settings, **changes}
        return trail(self.model, named(sampler), self.prompts, **together)

    def counted(self, steps: list[Step]):
        """The result of a trail."""
        canvas = make_canvas(self.model, self.prompts, self.length, filled=self.filled)
        return collect(steps, canvas, self.model.eos_ids if self.stop_at_eos else ())

    def alone(self, sampler: str | Sampler, row: int):
        mine = {"filled": [self.filled[row]], "seeds": [self.seeds[row]]}
        return run(self.model, named(sampler), [self.prompts[row]], **mine, **self.settings)


def named(sampler: str | Sampler) -> Sampler:
    return SAMPLERS[sampler] if isinstance(sampler, str) else sampler


@st.composite
def cases(draw, max_rows: int = 3) -> Case:
    vocabulary = draw(st.sampled_from([12, 5, 3, 2]))
    dice = random.Random(draw(st.integers(0, 2**20)))
    length = draw(st.integers(1, 12))
    block_length = draw(st.none() | st.integers(1, length))
    blocks = 1 if block_length is None else -(-length // block_length)
    mask_id = dice.choice([0, vocabulary - 1])
    words = [token for token in range(vocabulary) if token != mask_id]
    ends = (words[0],) if vocabulary > 2 else ()
    rows = draw(st.integers(1, max_rows))
    holding = draw(st.booleans())
    return Case(
        model=Toy(
            vocab_size=vocabulary,
            seed=dice.randrange(1000),
            mask_id=mask_id,
            eos_ids=ends,
            lead=dice.choice([9.0, 16.0]),
            drift=dice.choice([0.0, 0.3, 3.0]),
            quantum=draw(st.sampled_from([0.0, 1.0])),
            holes=dice.random() < 0.3,
            schedule=draw(st.sampled_from(["linear", "dream"])),
        ),
        prompts=tuple(
            tuple(dice.choice(words) for _ in range(size))
            for size in draw(st.lists(st.integers(1, 6), min_size=rows, max_size=rows))
        ),
        filled=tuple(
            {
                offset: dice.choice(words[1:] or words)
                for offset in range(length)
                if holding and dice.random() < 0.4
            }
            for _ in range(rows)
        ),
        length=length,
        steps=draw(st.integers(blocks, 2 * length + 2)),
        block_length=block_length,
        stop_at_eos=draw(st.booleans()),
        selection=draw(
            st.sampled_from([Selection(), Selection(temperature=0.8), Selection(temperature=1.5, top_p=0.9)])
        ),
        seeds=tuple(dice.randrange(10**6) for _ in range(rows)),
    )


@every_sampler
@settings(max_examples=4)
@given(case=cases())
def test_every_sampler_ends_within_its_budget_and_leaves_no_mask(name, case):
    _, steps = case.trail(name)
    budgets = [0] * len(case.prompts)
    for step in steps:
        took = step.running.tolist() if not step.leftover else [False] * len(budgets)
        budgets = [used + ran for used, ran in zip(budgets, took, strict=True)]
        assert step.index <= case.steps
    assert max(budgets) <= case.steps
    result = case.counted(steps)
    assert result.steps.tolist() == budgets
    assert not (result.generated == case.model.mask_id).any()
    filled = [case.length - len(held) for held in case.filled]
    assert named(name).needs.revoke or not result.revoked.any()
    commits = result.accepted + result.forced + result.leftovers
    if not named(name).needs.whole_blocks:  # else it rewrites, and no mask comes back
        commits = commits - result.revoked
    assert all(done <= masks for done, masks in zip(commits.tolist(), filled, strict=True))
    if not case.stop_at_eos:
        assert commits.tolist() == filled


@every_sampler
@settings(max_examples=4)
@given(case=cases())
def test_no_sampler_touches_the_prompt_or_a_token_that_is_there(name, case):
    canvas, steps = case.trail(name)
    before, given_tokens = canvas.tokens, canvas.tokens != case.model.mask_id
    for step in steps:
        changed = step.tokens != before
        assert not changed[:, : canvas.start].any()
        shown, revoked = torch.zeros_like(changed), torch.zeros_like(changed)
        shown[:, step.window] = step.decision.commit
        if step.decision.revoke is not None:
            revoked[:, step.window] = step.decision.revoke
        if step.decision.rewrite is not None:
            rewritten = torch.zeros_like(changed)
            rewritten[:, step.window] = step.decision.rewrite
            assert not (rewritten & given_tokens).any()
            changed = changed & ~rewritten
        assert torch.equal(shown | revoked, changed)
        assert (before[shown] == case.model.mask_id).all()
        assert not (step.tokens[shown] == case.model.mask_id).any()
        assert (step.tokens[revoked] == case.model.mask_id).all()
        assert (canvas.tokens[revoked] == case.model.mask_id).all()
        assert not changed[~step.running].any()
        before = step.tokens
    assert torch.equal(case.counted(steps).tokens[given_tokens], canvas.tokens[given_tokens])


@every_sampler
@settings(max_examples=5)
@given(case=cases(max_rows=4))
def test_a_batch_of_n_equals_n_singles(name, case):
    assert_batch_equals_singles(name, case)


@pytest.mark.parametrize("sampler", EAGER, ids=str)
@settings(max_examples=6)
@given(case=cases(max_rows=4))
def test_a_batch_of_n_equals_n_singles_where_rules_accept_often(sampler, case):
    assert_batch_equals_singles(sampler, case)


def assert_batch_equals_singles(sampler, case):
    batch = case.run(sampler)
    for row in range(len(case.prompts)):
        single = case.alone(sampler, row)
        assert batch.generated[row].tolist() == single.generated[0].tolist(), f"row {row}"
        for count in COUNTS:
            assert getattr(batch, count)[row] == getattr(single, count)[0], f"{count} of row {row}"
        assert batch.finish[row] == single.finish[0]


@every_sampler
@settings(max_examples=4)
@given(case=cases())
def test_the_same_seed_gives_the_same_tokens(name, case):
    first, second = case.run(name), case.run(name)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.steps, second.steps)


@every_sampler
def test_different_seeds_give_different_tokens_where_tokens_are_drawn(name):
    model, hot = Toy(vocab_size=12, lead=9.0, eos_ids=()), Selection(temperature=2.0)
    rows = run(model, SAMPLERS[name], [(2, 3)] * 6, length=12, seeds=range(6), selection=hot)
    results = set(map(tuple, rows.generated.tolist()))
    if isinstance(SAMPLERS[name], KLASS | Credit):  # they commit the argmax whatever the temperature
        assert len(results) == 1
    else:
        assert len(results) > 1


@every_plain_sampler
@settings(max_examples=4)
@given(case=cases())
def test_reusing_the_prediction_of_an_unchanged_canvas_changes_nothing_but_the_forwards(name, case):
    steps = case.trail(name, reuse=False)[1]
    thrifty, lavish = case.run(name, reuse=True), case.counted(steps)
    assert torch.equal(thrifty.tokens, lavish.tokens)
    for count in COUNTS:
        if count not in ("forwards", "rows"):
            assert torch.equal(getattr(thrifty, count), getattr(lavish, count)), count
    assert (thrifty.forwards <= lavish.forwards).all()
    assert thrifty.evaluations <= lavish.evaluations
    fills = [step.running.long() for step in steps if step.leftover]
    assert torch.equal(lavish.forwards, lavish.steps + sum(fills))


@every_plain_sampler
@settings(max_examples=3)
@given(case=cases())
def test_a_model_that_is_not_deterministic_is_asked_at_every_step(name, case):
    fickle = replace(case.model, deterministic=False, calls=[])
    result = replace(case, model=fickle).run(name)
    lavish = case.run(name, reuse=False)
    assert torch.equal(result.forwards, lavish.forwards)
    assert len(fickle.calls) == result.evaluations


@every_sampler
@settings(max_examples=3)
@given(case=cases())
def test_the_reported_evaluations_are_the_forwards_that_ran(name, case):
    model = replace(case.model, calls=[])
    result = replace(case, model=model).run(name)
    assert len(model.calls) == result.evaluations
    assert result.evaluations >= int(result.forwards.max())
    if len(case.prompts) == 1:
        assert result.evaluations == result.forwards[0]


# the toy itself


@settings(max_examples=20)
@given(case=cases())
def test_the_toy_gives_a_padded_row_the_logits_of_the_row_alone(case):
    canvas, _ = case.trail("base")
    window = slice(canvas.start, canvas.start + case.length)
    together = case.model(canvas.tokens, canvas.attend, window, None)
    for row, prompt in enumerate(case.prompts):
        alone, _ = replace(
            case, prompts=(prompt,), filled=(case.filled[row],), seeds=(case.seeds[row],)
        ).trail("base")
        window = slice(alone.start, alone.start + case.length)
        assert torch.equal(together[row], case.model(alone.tokens, None, window, None)[0])


def test_the_toy_hears_every_token_of_its_row():
    model, tokens = Toy(vocab_size=12), torch.tensor([[2, 3, 4, 0, 0, 5, 0]])
    before = model(tokens, None, slice(3, 7), None)
    for column in range(7):
        other = tokens.clone()
        other[0, column] = (other[0, column] + 1) % 12
        assert not torch.equal(before, model(other, None, slice(3, 7), None)), column


def test_the_toy_is_unsure_here_and_sure_there():
    tops = torch.cat(
        [
            Toy(seed=seed)(torch.tensor([[2, 3] + [0] * 5 + [4] * 5]), None, slice(2, 12), None)
            .softmax(-1)
            .amax(-1)
            .flatten()
            for seed in range(40)
        ]
    )
    assert tops.min() < 0.2
    assert tops.max() > 0.98
    assert 0.2 < (tops > 0.75).float().mean() < 0.8


# divergences


@dataclass(frozen=True)
class Pair:
    """Logits of two steps, [1, W, V] each, and how many candidates are kept."""

    before: torch.Tensor
    after: torch.Tensor
    top_k: int

    def predictions(self, top_k: int | None = None):
        return predict(self.before, top_k or self.top_k), predict(self.after, top_k or self.top_k)


@st.composite
def pairs(draw, width: int = 8) -> Pair:
    vocabulary = draw(st.integers(2, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    scale, drift = draw(st.sampled_from([0.3, 2.0, 8.0])), draw(st.sampled_from([0.01, 0.5, 2.0, 20.0]))
    before = torch.randn(1, width, vocabulary, generator=generator) * scale
    after = before + torch.randn(1, width, vocabulary, generator=generator) * drift
    if draw(st.booleans()):  # ties
        before, after = before.round(), after.round()
    if draw(st.booleans()):  # tokens without any probability, not always the same ones
        for logits in (before, after):
            holes = torch.rand(1, width, vocabulary, generator=generator) < 0.4
            holes[..., int(torch.randint(vocabulary, (1,), generator=generator))] = False
            logits[holes] = -torch.inf
    return Pair(before, after, draw(st.integers(1, vocabulary)))


def softmax64(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [weight / math.fsum(weights) for weight in weights]


def kl64(p: list[float], q: list[float]) -> float:
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.inf
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def klass_kl64(p: list[float], q: list[float]) -> float:
    """KL as KLASS computes it: 1e-12 is added inside both logarithms."""
    return math.fsum(a * (math.log(a + 1e-12) - math.log(b + 1e-12)) for a, b in zip(p, q, strict=True))


def jsd64(p: list[float], q: list[float]) -> float:
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return kl64(p, middle) / 2 + kl64(q, middle) / 2


def coarse_jsd64(before: list[float], after: list[float], k: int) -> float:
    """The equations of the paper's section 3.3: union of the top-K sets, the rest in one bin."""
    union = set()
    for logits in (before, after):
        union |= set(sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:k])
    bins = []
    for logits in (before, after):
        p = softmax64(logits)
        rest = math.fsum(p[v] for v in range(len(p)) if v not in union)
        bins.append([p[v] for v in sorted(union)] + [rest])
    return jsd64(*bins)


def each(values: torch.Tensor) -> list:
    return values[0].tolist()


@settings(max_examples=150)
@given(pair=pairs(), exact=st.booleans())
def test_jsd_is_symmetric_and_between_zero_and_ln_2(pair, exact):
    p, q = pair.predictions()
    there, back = jsd(p, q, exact=exact), jsd(q, p, exact=exact)
    assert there.isfinite().all()
    assert ((there >= 0) & (there <= LN2)).all()
    torch.testing.assert_close(there, back, rtol=0, atol=1e-5)


@settings(max_examples=60)
@given(pair=pairs(), exact=st.booleans())
def test_jsd_of_equal_distributions_is_exactly_zero(pair, exact):
    p, _ = pair.predictions()
    again, _ = pair.predictions()
    assert (jsd(p, again, exact=exact) == 0).all()


@settings(max_examples=100)
@given(pair=pairs(), exact=st.booleans())
def test_jsd_with_all_tokens_kept_is_the_full_vocabulary_jsd(pair, exact):
    vocabulary = pair.before.shape[-1]
    p, q = pair.predictions(vocabulary)
    plain = [
        jsd64(softmax64(a), softmax64(b)) for a, b in zip(each(pair.before), each(pair.after), strict=True)
    ]
    torch.testing.assert_close(jsd(p, q, exact=exact), torch.tensor([plain]), rtol=0, atol=1e-5)


@settings(max_examples=200)
@given(pair=pairs())
def test_exact_jsd_is_the_papers_equations(pair):
    p, q = pair.predictions()
    plain = [coarse_jsd64(a, b, pair.top_k) for a, b in zip(each(pair.before), each(pair.after), strict=True)]
    torch.testing.assert_close(jsd(p, q), torch.tensor([plain]), rtol=0, atol=1e-5)


@settings(max_examples=100)
@given(pair=pairs(width=32))
def test_both_jsd_agree_where_both_steps_keep_the_same_candidates(pair):
    p, q = pair.predictions()
    same = p.top_ids.sort(-1).values.eq(q.top_ids.sort(-1).values).all(-1)
    assume(bool(same.any()))
    exact, summary = jsd(p, q, exact=True), jsd(p, q, exact=False)
    torch.testing.assert_close(exact[same], summary[same], rtol=0, atol=1e-6)


@pytest.mark.parametrize("drift", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("vocabulary", [12, 50])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_summary_jsd_is_not_below_exact_on_softmax_distributions_that_drift_moderately(
    drift, vocabulary, scale
):
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1, 4000, vocabulary, generator=generator) * scale
    after = before + torch.randn(1, 4000, vocabulary, generator=generator) * drift
    exact, summary = (jsd(predict(before, 8), predict(after, 8), exact=exact) for exact in (True, False))
    assert (summary >= exact - 1e-6).all()
    assert (summary > exact + 1e-4).any(), "the sweep must see them differ"


def test_summary_jsd_can_be_below_exact_when_a_side_moves_its_mass_to_a_token_the_other_kept_out():
    p = predict(log_probs([[0.4, 0.0, 0.3, 0.3]]), 1)
    q = predict(log_probs([[0.49, 0.51, 0.0, 0.0]]), 1)
    exact, summary = float(jsd(p, q, exact=True)), float(jsd(p, q, exact=False))
    assert exact == pytest.approx(jsd64([0.4, 0.0, 0.6], [0.49, 0.51, 0.0]), abs=1e-6)
    assert summary == pytest.approx(jsd64([0.4, 0.0, 0.6], [0.0, 0.51, 0.49]), abs=1e-6)
    assert summary < exact - 0.05


@settings(max_examples=150)
@given(pair=pairs())
def test_kl_is_the_computation_of_klass_and_never_negative(pair):
    p, q = pair.predictions()
    plain = [
        klass_kl64(softmax64(a), softmax64(b))
        for a, b in zip(each(pair.before), each(pair.after), strict=True)
    ]
    assert (kl(p, q) >= 0).all()
    torch.testing.assert_close(kl(p, q), torch.tensor([plain]), rtol=2e-5, atol=2e-6)


@settings(max_examples=60)
@given(pair=pairs())
def test_kl_of_equal_distributions_is_exactly_zero(pair):
    p, _ = pair.predictions()
    assert (kl(p, p) == 0).all()


@settings(max_examples=100)
@given(pair=pairs())
def test_confidence_margin_and_entropy_are_the_plain_computations(pair):
    now = predict(pair.before, 2)
    for column, logits in enumerate(each(pair.before)):
        p = softmax64(logits)
        first, second = sorted(p, reverse=True)[:2]
        assert float(confidence(now)[0, column]) == pytest.approx(first, abs=1e-6)
        assert float(margin(now)[0, column]) == pytest.approx(first - second, abs=1e-6)
        plain = -math.fsum(x * math.log(x) for x in p if x > 0)
        assert float(entropy(now)[0, column]) == pytest.approx(plain, abs=5e-6)
