"""From logits to a Prediction: top-K with ties to the lower id, log-sum-exp, bans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import predict
from unmask.decoding.summary import CHUNK, ban, summarize, top_k_ids
from unmask.samplers.signals import entropy, kl
from unmask.types import Attention, HiddenStates, Prediction


def plain_top(logits: list[float], k: int) -> list[int]:
    return sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:k]


@settings(max_examples=150)
@given(
    vocabulary=st.sampled_from([1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5, 1000]),
    k=st.sampled_from([1, 2, 3, 8, 20, 400]),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    ruled_out=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**30),
)
def test_the_top_k_ids_are_those_of_a_stable_sort(vocabulary, k, levels, ruled_out, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels, (2, 3, vocabulary), generator=generator).float()
    logits[torch.rand(logits.shape, generator=generator) < ruled_out] = -math.inf
    ids = top_k_ids(logits, k)
    assert ids.shape == (2, 3, min(k, vocabulary))
    for row in range(2):
        for column in range(3):
            assert ids[row, column].tolist() == plain_top(logits[row, column].tolist(), k)


def test_of_equal_logits_the_lower_ids_win_across_chunks():
    logits = torch.zeros(1, 1, 5 * CHUNK)
    assert top_k_ids(logits, 3).tolist() == [[[0, 1, 2]]]
    logits[0, 0, [70, 4 * CHUNK, 2 * CHUNK]] = 1.0
    assert top_k_ids(logits, 4).tolist() == [[[70, 2 * CHUNK, 4 * CHUNK, 0]]]


def test_plus_and_minus_zero_are_equal():
    assert top_k_ids(torch.tensor([[[-0.0, 0.0]]]), 2).tolist() == [[[0, 1]]]


def test_a_prediction_holds_the_kept_logits_and_the_log_sum_exp():
    now = predict([[0.0, math.log(3), -math.inf, 0.0]], 2)
    assert now.top_ids.tolist() == [[[1, 0]]]
    assert now.lse.tolist() == [[pytest.approx(math.log(5))]]
    assert now.top_probs.tolist() == [[[pytest.approx(0.6), pytest.approx(0.2)]]]
    assert now.top1.tolist() == [[1]]


def test_half_precision_logits_are_counted_in_float32():
    logits = torch.randn(1, 4, 300, generator=torch.Generator().manual_seed(1)).bfloat16()
    now = summarize(logits, 8)
    assert now.lse.dtype == now.top_logits.dtype == now.logits.dtype == torch.float32
    torch.testing.assert_close(now.lse, logits.double().logsumexp(-1).float(), rtol=1e-6, atol=0)


def test_fewer_tokens_than_k_are_all_kept():
    assert predict([[0.0, 2.0, 1.0]], 8).top_ids.tolist() == [[[1, 2, 0]]]


def test_a_banned_token_has_no_probability_and_the_others_share_its_mass():
    now = predict(ban(torch.tensor([[5.0, 0.0, 0.0]]), (0,)), 3)
    assert now.top_ids.tolist() == [[[1, 2, 0]]]
    assert now.top_probs.tolist() == [[[0.5, 0.5, 0.0]]]


def test_top_keeps_the_best_candidates_and_nothing_else_changes():
    now = predict([[3.0, 1.0, 2.0]], 3)
    assert now.top(2).top_ids.tolist() == [[[0, 2]]]
    assert torch.equal(now.top(2).lse, now.lse)
    assert now.top(9).top_ids.shape[-1] == 3


def test_where_takes_some_rows_from_another_prediction():
    here, there = predict(torch.zeros(2, 1, 3)), predict(torch.ones(2, 1, 3) * torch.arange(3))
    mixed = here.where(torch.tensor([True, False]), there)
    assert mixed.top1.tolist() == [[0], [2]]
    assert torch.equal(mixed.lse, torch.stack([here.lse[0], there.lse[1]]))
    assert torch.equal(mixed.logits, torch.stack([here.logits[0], there.logits[1]]))
    assert here.without_logits().where(torch.tensor([True, False]), there).logits is None


def test_a_prediction_is_the_join_of_its_rows_with_all_that_it_keeps():
    part, square = torch.arange(6.0).view(3, 2), torch.arange(12.0).view(3, 2, 2)
    whole = replace(
        predict(torch.arange(18.0).view(3, 2, 3) % 5),
        hidden=HiddenStates(square, torch.eye(2)),
        shadow=predict(torch.arange(18.0).view(3, 2, 3) % 7).without_logits(),
        attention=Attention(square, part, part > 1, part > 2, 4),
    )
    rows = whole.split()
    assert [row.lse.shape for row in rows] == [(1, 2)] * 3
    assert rows[1].shadow.top1.tolist() == whole.shadow.top1[1:2].tolist()
    assert all(row.fitting is None and row.attention.first == 4 for row in rows)
    assert_equal(Prediction.join(rows), whole)
    assert_equal(rows[2], whole.take(slice(2, 3)))


def assert_equal(one: Prediction, other: Prediction) -> None:
    differences: list[torch.Tensor] = []

    def compare(here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        differences.extend([] if torch.equal(here, there) else [here])
        return here

    one.each(compare, other)
    assert not differences


@pytest.mark.parametrize("width", [1, 17])
def test_a_row_alone_has_the_numbers_of_the_row_in_a_batch_whatever_the_threads(width):
    generator = torch.Generator().manual_seed(0)
    now, before = (torch.randn(6, width, 40_000, generator=generator) * 3 for _ in range(2))

    def numbers(rows: slice) -> torch.Tensor:
        p, q = summarize(now[rows].clone(), 2), summarize(before[rows].clone(), 2)
        return torch.stack([p.lse, entropy(p), kl(p, q)])

    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        together = numbers(slice(0, 6))
        alone = torch.cat([numbers(slice(row, row + 1)) for row in range(6)], dim=1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, alone)
