"""The forward process: chain and closed form agree, training rows are masked as the recipe says."""

from __future__ import annotations

import pytest
import torch

from tests.raises import raises_field
from unmask.training.masking import Masking, corrupt, marginal, step, stratified_rates, survival

MASK = 9


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def masked(masking: Masking, *, rows: int = 2000, columns: int = 24, prompt: int = 4, answer: int = 10):
    tokens = torch.zeros(rows, columns, dtype=torch.int64)
    return corrupt(
        tokens,
        prompts=torch.full((rows,), prompt),
        answers=torch.full((rows,), answer),
        masking=masking,
        mask_id=MASK,
        generator=generator(),
    )


def test_survival_is_the_product_of_staying_probabilities():
    betas = torch.tensor([0.1, 0.5, 0.2])
    assert survival(betas).tolist() == pytest.approx([0.9, 0.45, 0.36])


def test_a_step_keeps_masks_and_changes_tokens_to_nothing_but_masks():
    tokens = torch.tensor([MASK, 1, 2, 3] * 500)
    after = step(tokens, 0.5, mask_id=MASK, generator=generator())
    assert (after[tokens == MASK] == MASK).all()
    assert ((after == tokens) | (after == MASK)).all()
    assert step(tokens, 0.0, mask_id=MASK, generator=generator()).equal(tokens)


def test_the_chain_and_the_closed_form_agree_in_distribution():
    betas = torch.linspace(0.02, 0.3, 8)
    rows, columns = 20_000, 3
    clean = torch.arange(columns).expand(rows, columns)
    chain, noise = clean, generator(1)
    for beta, alive in zip(betas, survival(betas), strict=True):
        chain = step(chain, beta, mask_id=MASK, generator=noise)
        closed = marginal(clean, alive, mask_id=MASK, generator=noise)
        for draw in (chain, closed):
            hit = draw == MASK
            spread = 4.5 * (alive * (1 - alive) / rows) ** 0.5
            assert (hit.float().mean(0) - (1 - alive)).abs().max() < spread
            # columns are independent: all three survive with the cube of the probability
            assert abs((~hit).all(-1).float().mean() - alive**columns) < 4.5 * (0.25 / rows) ** 0.5


def test_rates_are_uniform_and_one_falls_into_each_part():
    rates = stratified_rates(100, min_rate=0.02, generator=generator())
    parts = ((rates - 0.02) / 0.98 * 100).floor()
    assert parts.sort().values.tolist() == list(range(100))
    assert rates.min() >= 0.02
    assert rates.max() <= 1
    assert parts.tolist() != sorted(parts.tolist())


def test_prompts_are_never_masked_and_rows_reach_their_rate():
    result = masked(Masking(clean_prefix_share=0, full_mask_share=0))
    assert not result.masked[:, :4].any()
    assert ((result.tokens == MASK) == result.masked).all()
    share = result.masked[:, 4:].float().mean(-1)
    assert abs((share - result.rate).mean()) < 0.01
    assert torch.corrcoef(torch.stack([share, result.rate]))[0, 1] > 0.9


def test_clean_prefix_rows_keep_a_part_of_the_answer_and_mask_all_behind():
    result = masked(Masking(clean_prefix_share=1, full_mask_share=0))
    kept = (~result.masked[:, 4:]).sum(-1)
    assert result.masked[:, 4:].long().diff(dim=-1).min() >= 0  # never a token behind a mask
    assert kept.unique().tolist() == list(range(10))  # the answer's last token is always left to predict
    assert (result.rate == 1).all()


def test_full_mask_rows_hide_the_whole_answer():
    result = masked(Masking(clean_prefix_share=0.25, full_mask_share=0.25, min_rate=0.02))
    full = result.masked[:, 4:].all(-1) & (result.rate == 1)
    assert 0.25 < full.float().mean() < 0.31  # some clean prefixes are empty
    assert 0.47 < (result.rate == 1).float().mean() < 0.53


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"min_rate": 0}, "min_rate"),
        ({"clean_prefix_share": 1.5}, "clean_prefix_share"),
        ({"clean_prefix_share": 0.7, "full_mask_share": 0.7}, "full_mask_share"),
    ],
)
def test_masking_refuses_values_out_of_range(fields, name):
    with raises_field(name, fields[name]):
        Masking(**fields)
