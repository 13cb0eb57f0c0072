"""The fused summary says what the torch path says. Without a GPU, Triton interprets the kernel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from unmask.decoding.summary import top_k_ids  # noqa: E402
from unmask.fast.kernels.summary import CHUNK, summarize  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, on log(0) and inf - inf
PART = 2 * CHUNK
SIZES = [1, 2, 7, 128, CHUNK - 1, CHUNK, CHUNK + 1, PART, 4 * PART + 1, 9 * CHUNK + 77]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def check(logits: torch.Tensor, k: int) -> None:
    """The kernel's answer is the torch path's."""
    ids, values, lse = (part.cpu() for part in summarize(logits.to(DEVICE), k))
    plain = logits.float()
    expected = top_k_ids(plain, k)
    assert torch.equal(ids, expected)
    assert torch.equal(values, plain.gather(-1, expected))
    torch.testing.assert_close(lse, plain.double().logsumexp(-1).float(), rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.sampled_from(SIZES),
    k=st.sampled_from([1, 2, 8, 13]),
    dtype=st.sampled_from(DTYPES),
    levels=st.sampled_from([1, 3, 10**4]),
    ruled_out=st.sampled_from([0.0, 0.5, 0.999, 1.0]),
    seed=st.integers(0, 2**30),
)
def test_the_kernel_agrees_with_the_torch_path(vocabulary, k, dtype, levels, ruled_out, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels + 1, (1, 2, vocabulary), generator=generator).float() / 7
    logits[torch.rand(logits.shape, generator=generator) < ruled_out] = -math.inf
    check(logits.to(dtype), k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [126_464, 152_064])
def test_the_published_vocabularies_are_summarized(vocabulary, dtype):
    logits = torch.randn(1, 2, vocabulary, generator=torch.Generator().manual_seed(0)) * 4
    check(logits.to(dtype), 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_logits_the_lower_ids_win_across_parts(dtype):
    logits = torch.zeros(1, 1, 3 * PART, dtype=dtype)
    logits[0, 0, [70, 2 * PART, PART + 5]] = 1.0
    check(logits, 5)
    check(torch.full((1, 1, 2 * PART), -3.25, dtype=dtype), 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plus_and_minus_zero_are_equal(dtype):
    check(torch.tensor([[[-0.0, 0.0, -0.0, -1.0]]], dtype=dtype), 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_has_no_finite_log_sum_exp_and_leaves_the_others_alone(dtype, bad):
    logits = torch.randn(1, 3, PART + 9, generator=torch.Generator().manual_seed(3)).to(dtype)
    fine = [part.cpu() for part in summarize(logits.to(DEVICE), 4)]
    logits[0, 1, PART + 2] = bad
    ids, values, lse = (part.cpu() for part in summarize(logits.to(DEVICE), 4))
    assert lse.isfinite().tolist() == [[True, False, True]]
    for got, expected in zip((ids, values, lse), fine, strict=True):
        assert torch.equal(got[0, [0, 2]], expected[0, [0, 2]])


def test_a_row_alone_has_the_numbers_of_the_row_in_a_batch():
    logits = torch.randn(2, 3, PART + 9, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    together = summarize(logits, 8)
    alone = [
        summarize(logits[row : row + 1, column : column + 1], 8) for row in range(2) for column in range(3)
    ]
    for index, whole in enumerate(together):
        assert torch.equal(whole.flatten(0, 1), torch.cat([one[index].flatten(0, 1) for one in alone]))


def test_a_window_of_wider_logits_is_read_as_it_lies():
    logits = torch.randn(2, 6, 300, generator=torch.Generator().manual_seed(5))
    check(logits[:, 2:5], 4)


def test_no_rows_give_no_rows():
    ids, values, lse = summarize(torch.zeros(0, 3, 50, device=DEVICE), 4)
    assert (ids.shape, values.shape, lse.shape) == ((0, 3, 4), (0, 3, 4), (0, 3))
