"""The Monte-Carlo bound against exact enumeration, and greedy unmasking against a plain loop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb, log, sqrt
from statistics import mean, pstdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.raises import raises_field
from tests.text.conftest import tiny
from tests.toy import Scripted, Toy
from unmask.decoding.guidance import Guided
from unmask.evals.likelihood import (
    MAX_COLUMNS,
    Pair,
    draw_masks,
    greedily_decoded,
    log_likelihoods,
    stratified_sizes,
)
from unmask.types import ModelInfo

TOKENS = st.integers(2, 11)
PAIRS = st.lists(
    st.builds(
        Pair,
        st.lists(TOKENS, min_size=1, max_size=6).map(tuple),
        st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=6,
)
SHORT = Pair((5, 6, 7, 8), (20, 30, 40))


@dataclass
class Watched:
    """A model that remembers what it was asked."""

    model: Any
    seen: list[Tensor] = field(default_factory=list)

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    def __call__(self, tokens: Tensor, *rest: Any) -> Tensor:
        self.seen.append(tokens.clone())
        return self.model(tokens, *rest)


def loss(model: Any, pair: Pair, hidden: tuple[int, ...]) -> float:
    """Cross-entropy of the hidden tokens of an answer, from one forward of one row."""
    start = len(pair.context)
    tokens = torch.tensor([[*pair.context, *pair.answer]])
    for offset in hidden:
        tokens[0, start + offset] = model.info.mask_id
    logits = model(tokens, None, slice(start, tokens.shape[1]), None)
    log_probs = logits[0].double().log_softmax(-1)
    return -sum(float(log_probs[offset, pair.answer[offset]]) for offset in hidden)


def exact(model: Any, pair: Pair) -> tuple[float, float]:
    """Mean and standard deviation of a single draw, over all sizes and all subsets."""
    length = len(pair.answer)
    weighted = [
        (1 / length / comb(length, size), -length / size * loss(model, pair, hidden))
        for size in range(1, length + 1)
        for hidden in combinations(range(length), size)
    ]
    average = sum(weight * value for weight, value in weighted)
    return average, sqrt(sum(weight * (value - average) ** 2 for weight, value in weighted))


def greedy(model: Any, context: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The most confident position takes its argmax, one forward at a time."""
    tokens = torch.tensor([[*context, *[model.info.mask_id] * length]])
    for _ in range(length):
        logits = model(tokens, None, slice(len(context), tokens.shape[1]), None)[0].float()
        best = logits.softmax(-1).max(-1)
        open_ = tokens[0, len(context) :] == model.info.mask_id
        place = int(torch.where(open_, best.values, -1).argmax())
        tokens[0, len(context) + place] = best.indices[place]
    return tuple(tokens[0, len(context) :].tolist())


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_many_draws_come_as_close_to_the_exact_bound_as_chance_lets_them(name: str) -> None:
    model, draws = tiny(name), 100_000  # of seven different masks, so seven rows
    average, deviation = exact(model, SHORT)
    [found] = log_likelihoods(model, [SHORT], draws=draws)
    assert deviation > 1
    assert abs(found - average) < 4 * deviation / sqrt(draws)


@settings(max_examples=20)
@given(answer=st.lists(TOKENS, min_size=1, max_size=4).map(tuple), seed=st.integers(0, 5))
def test_the_mean_over_seeds_is_the_exact_bound(answer: tuple[int, ...], seed: int) -> None:
    model, pair, runs, draws = Toy(seed=seed), Pair((2, 3), answer), 60, 3
    average, deviation = exact(model, pair)
    found = [log_likelihoods(model, [pair], draws=draws, seed=run)[0] for run in range(runs)]
    # stratified sizes only make the error smaller than that of independent draws
    assert abs(mean(found) - average) < 4.5 * deviation / sqrt(runs * draws) + 1e-4


def test_more_draws_vary_less() -> None:
    model, pair = Toy(), Pair((2, 3), (4, 9, 5, 7, 3, 8))

    def spread(draws: int) -> float:
        return pstdev(log_likelihoods(model, [pair], draws=draws, seed=seed)[0] for seed in range(60))

    assert spread(2) > 1.5 * spread(8) > 2 * spread(64) > 0


@given(length=st.integers(1, 40), draws=st.integers(1, 60))
def test_every_draw_has_a_uniform_size_and_the_sizes_are_spread_evenly(length: int, draws: int) -> None:
    tables = torch.stack([stratified_sizes(length, draws, first) for first in range(length)])
    for column in tables.T.tolist():
        assert sorted(column) == list(range(1, length + 1))
    for row in tables.tolist():
        counts = [row.count(size) for size in range(1, length + 1)]
        assert max(counts) - min(counts) <= 1


@given(length=st.integers(1, 12), draws=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
def test_masks_weigh_their_share_over_their_true_rate(length: int, draws: int, seed: int) -> None:
    masks = draw_masks(length, draws, seed)
    rates = masks.masked.double().mean(-1)
    shares = masks.weight * rates * draws
    assert shares.sum().item() == pytest.approx(draws)
    assert shares.round().tolist() == pytest.approx(shares.tolist())
    assert len({tuple(row) for row in masks.masked.tolist()}) == len(masks.masked)


def test_subsets_of_a_size_are_drawn_alike() -> None:
    masks = draw_masks(4, 60_000, 3)
    shares = masks.weight * masks.masked.double().mean(-1)
    wanted = torch.tensor([1 / 4 / comb(4, int(size)) for size in masks.masked.sum(-1)])
    assert len(shares) == 15
    assert torch.allclose(shares, wanted.double(), atol=0.005)


@given(draws=st.integers(1, 9), length=st.integers(1, 6))
def test_a_model_that_knows_nothing_gives_every_token_the_same_chance(draws: int, length: int) -> None:
    model = Scripted(torch.zeros(length, 12))
    [found] = log_likelihoods(model, [Pair((2,), (3,) * length)], draws=draws)
    assert found == pytest.approx(-length * log(12), rel=1e-5)


def test_a_single_token_is_exact_and_takes_one_row() -> None:
    model, pair = Watched(Toy()), Pair((2, 3), (4,))
    [found] = log_likelihoods(model, [pair])
    assert [len(tokens) for tokens in model.seen] == [1]
    assert found == pytest.approx(exact(Toy(), pair)[0], rel=1e-6)


@settings(max_examples=50)
@given(pairs=PAIRS, batch_size=st.integers(1, 9), data=st.data())
def test_neighbours_order_and_batch_size_change_nothing(
    pairs: list[Pair], batch_size: int, data: Any
) -> None:
    model = Toy()
    alone = {pair: log_likelihoods(model, [pair], draws=6)[0] for pair in pairs}
    mixed = data.draw(st.permutations(pairs))
    together = log_likelihoods(model, mixed, draws=6, batch_size=batch_size)
    assert together == pytest.approx([alone[pair] for pair in mixed], rel=1e-12)
    singles = [greedily_decoded(model, [pair])[0] for pair in mixed]
    assert greedily_decoded(model, mixed, batch_size=batch_size) == singles


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_batches_of_a_real_model_differ_by_rounding_only(name: str) -> None:
    pairs = [SHORT, Pair((9,) * 9, (50, 51, 52)), Pair((5, 6), (20, 31, 40, 41, 42))]
    alone = [log_likelihoods(tiny(name), [pair], draws=8, batch_size=1)[0] for pair in pairs]
    assert log_likelihoods(tiny(name), pairs, draws=8, batch_size=16) == pytest.approx(alone, rel=1e-5)


def test_another_seed_draws_other_masks() -> None:
    first, second, again = (log_likelihoods(Toy(), [Pair((2,), (3, 4, 5, 6))], seed=s) for s in (0, 1, 0))
    assert first == again != second


def masks_of(*pairs: Pair, **changes: Any) -> list[set[tuple[bool, ...]]]:
    """The masks that each pair was scored under."""
    found = []
    for pair in pairs:
        model = Watched(Toy())
        log_likelihoods(model, [pair], draws=5, **changes)
        rows = [row for tokens in model.seen for row in tokens.tolist()]
        found.append({tuple(token == 0 for token in row) for row in rows})
    return found


def test_answers_to_one_context_are_compared_under_the_same_masks() -> None:
    pairs = Pair((2, 3), (4, 5, 6, 7, 8)), Pair((2, 3), (9, 9, 9, 9, 9)), Pair((3, 2), (4, 5, 6, 7, 8))
    first, second, elsewhere = masks_of(*pairs)
    assert first == second != elsewhere
    first, second, elsewhere = masks_of(*pairs, paired=False)
    assert first != second != elsewhere != first


def test_the_context_is_never_masked_and_the_rest_of_the_answer_is_shown() -> None:
    model = Watched(Toy())
    log_likelihoods(model, [Pair((2, 3), (4, 5, 6))], draws=50)
    rows = [row for tokens in model.seen for row in tokens.tolist()]
    assert len(rows) == 7
    for row in rows:
        assert row[:2] == [2, 3]
        assert all(token in (0, true) for token, true in zip(row[2:], (4, 5, 6), strict=True))
        assert 0 in row


def test_long_answers_get_fewer_rows_in_a_forward() -> None:
    length = MAX_COLUMNS // 3
    model = Watched(Scripted(torch.zeros(length, 12)))
    model.model._info = replace(model.info, max_length=2 * MAX_COLUMNS)
    log_likelihoods(model, [Pair((2,), (3,) * length)], draws=7, batch_size=32)
    assert [len(tokens) for tokens in model.seen] == [3, 3, 1]


def test_guidance_scores_the_guided_distribution() -> None:
    model, pair = tiny("llada_tiny"), Pair((5, 6), (20,))
    canvas = torch.tensor([[5, 6, model.info.mask_id]])
    guided = Guided(model, 0.7, canvas != model.info.mask_id)
    expected = guided(canvas, None, slice(2, 3), None)[0, 0].log_softmax(-1)[20]
    [found] = log_likelihoods(model, [pair], guidance=0.7)
    assert found == pytest.approx(float(expected), rel=1e-5)
    assert found != pytest.approx(log_likelihoods(model, [pair])[0], rel=1e-3)


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_greedy_unmasking_is_recognised_and_nothing_else(name: str) -> None:
    model = tiny(name)
    contexts = [(5, 6, 7), (40, 41), (9,) * 7, (33,)]
    right = [Pair(context, greedy(model, context, 6)) for context in contexts]
    wrong = [replace(pair, answer=(*pair.answer[:-1], pair.answer[-1] ^ 1)) for pair in right]
    assert greedily_decoded(model, [*right, *wrong]) == [True] * 4 + [False] * 4


def test_greedy_unmasking_stops_at_the_first_wrong_token() -> None:
    context = (5, 6, 7)
    right = greedy(tiny("llada_tiny"), context, 6)
    wrong = tuple(token ^ 1 for token in right)
    for answer, forwards in ((right, 6), (wrong, 1)):
        model = Watched(tiny("llada_tiny"))
        assert greedily_decoded(model, [Pair(context, answer)]) == [forwards == 6]
        assert len(model.seen) == forwards


@pytest.mark.parametrize(
    ("pair", "changes", "field", "value"),
    [
        (Pair((), (3,)), {}, "context", ()),
        (Pair((3,), ()), {}, "answer", ()),
        (Pair((0,), (3,)), {}, "context", 0),
        (Pair((2,), (12,)), {}, "answer", 12),
        (Pair((2,) * 4095, (3, 3)), {}, "context", 4097),
        (Pair((2,), (3,)), {"draws": 0}, "draws", 0),
        (Pair((2,), (3,)), {"batch_size": 0}, "batch_size", 0),
        (Pair((2,), (3,)), {"guidance": -1.0}, "guidance", -1.0),
    ],
)
def test_what_cannot_be_scored_is_refused(
    pair: Pair, changes: dict[str, Any], field: str, value: Any
) -> None:
    with raises_field(field, value):
        log_likelihoods(Toy(), [pair], **changes)


def test_broken_logits_are_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="the model returned NaN or infinite logits"):
        log_likelihoods(Scripted(torch.full((1, 12), torch.nan)), [Pair((2,), (3,))])


def test_a_model_that_would_rather_write_a_mask_is_not_greedy() -> None:
    table = torch.zeros(2, 12)
    table[:, 5] = 2.0
    pair = Pair((2,), (5, 5))
    assert greedily_decoded(Scripted(table), [pair]) == [True]
    table[1, 0] = 3.0  # the mask token
    assert greedily_decoded(Scripted(table), [pair]) == [False]
