"""The fused attention says what the torch path says. Without a GPU, Triton interprets the kernel."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from tests.conftest import GOLDENS  # noqa: E402
from unmask.fast import compile as compiled  # noqa: E402
from unmask.fast import kernels  # noqa: E402
from unmask.fast.kernels import attention  # noqa: E402
from unmask.fast.kernels.attention import attend as fused  # noqa: E402
from unmask.fast.kernels.attention import fused_attend  # noqa: E402
from unmask.models import load  # noqa: E402
from unmask.models.layers import attend, key_mask  # noqa: E402

# the interpreter has no products of bfloat16
DTYPES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, on inf - inf


def heads(rows: int, count: int, columns: int, size: int, seed: int) -> Tensor:
    """Random numbers as a projection leaves them: a head's columns do not lie side by side."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, count, size, generator=generator).transpose(1, 2)


def check(query: Tensor, key: Tensor, value: Tensor, attended: Tensor | None, dtype: torch.dtype) -> None:
    """The kernel's answer is the torch path's in float32, up to the rounding of the dtype."""
    check_mask(query, key, value, key_mask(attended), dtype)


def check_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dtype: torch.dtype) -> None:
    given_ = [part.to(DEVICE, dtype) for part in (query, key, value)]
    answer = fused(*given_, None if mask is None else mask.to(DEVICE)).float().cpu()
    expected = attend(*(part.float().cpu() for part in given_), mask)
    assert answer.shape == expected.shape
    torch.testing.assert_close(answer, expected, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 2e-3)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 3]),
    queries=st.sampled_from([1, 31, 33, 65]),
    columns=st.sampled_from([1, 63, 64, 100]),
    size=st.sampled_from([16, 64]),
    padding=st.sampled_from([None, 0.0, 0.5, 1.0]),
    dtype=st.sampled_from(DTYPES),
    small=st.booleans(),
    seed=st.integers(0, 2**30),
)
def test_the_kernel_agrees_with_the_torch_path(
    rows, groups, queries, columns, size, padding, dtype, small, seed
):
    query = heads(rows, 2 * groups, queries, size, seed)
    key, value = (heads(rows, 2, columns, size, seed + i) for i in (1, 2))
    attended = None
    if padding is not None:
        attended = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) >= padding
    with patch.object(attention, "_max_small_programs", lambda device: 1000 if small else 0):
        check(query, key, value, attended, dtype)


def test_a_mask_may_lie_in_memory_as_it_likes():
    query, key, value = (heads(2, 2, 40, 16, seed) for seed in range(3))
    attended = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).t() > 0.5
    assert not attended.is_contiguous()
    check(query, key, value, attended, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "queries", "columns"), [(1, 4, 100), (2, 4, 300), (2, 40, 72), (3, 1, 40)])
def test_each_query_may_see_keys_of_its_own(dtype, rows, queries, columns):
    query = heads(rows, 4, queries, 16, 0)
    key, value = (heads(rows, 2, columns, 16, seed) for seed in (1, 2))
    for masked_rows in {1, rows}:
        mask = (
            torch.rand(masked_rows, 1, queries, columns + 9, generator=torch.Generator().manual_seed(3)) < 0.3
        )
        mask[..., 0] = True
        check_mask(query, key, value, mask[..., :columns], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_neither_overflow_nor_lose_the_best_key(dtype):
    query, key = torch.zeros(1, 1, 3, 16), torch.zeros(1, 1, 130, 16)
    query[..., 0], key[0, 0, 77, 0] = 200.0, 200.0
    value = heads(1, 1, 130, 16, 0)
    check(query, key, value, None, dtype)


@pytest.mark.skipif(DEVICE == "cpu", reason="torch.compile runs the operation itself, which needs a GPU")
def test_a_compiled_layer_mixes_with_the_kernel():
    query, key, value = (heads(2, 4, 40, 64, seed).to(DEVICE, torch.bfloat16) for seed in range(3))
    work = torch.compile(lambda *given: fused_attend(*given, None) * 2, dynamic=False)
    torch.testing.assert_close(work(query, key, value), fused(query, key, value, None) * 2)


@pytest.mark.parametrize(
    ("family", "limit"), [("llada_tiny", "MAX_SHORT"), ("dream_tiny", "MAX_SHORT_GROUPED")]
)
def test_a_model_gives_the_same_logits_with_it_and_uses_it_up_to_a_length(monkeypatch, family, limit):
    dtype, error = ("float16", 0.1) if DEVICE == "cuda" else ("float32", 1e-4)  # after some layers
    plain, fast = (load(str(GOLDENS / family), device=DEVICE, dtype=dtype) for _ in range(2))
    calls: list[int] = []
    monkeypatch.setattr(attention, "fused_attend", lambda *given: calls.append(1) or fused_attend(*given))
    monkeypatch.setattr(kernels, "attends", lambda weight, size: True)  # interpreted, if need be
    monkeypatch.setattr(compiled, limit, 3 * 21)
    compiled.use_attention_kernel(fast)
    for columns in (21, 22):
        tokens = torch.randint(5, 50, (3, columns), generator=torch.Generator().manual_seed(0)).to(DEVICE)
        padded = (torch.arange(columns)[None] >= torch.tensor([[0], [4], [20]])).to(DEVICE)
        for attended in (None, padded):
            expected, answer = (model(tokens, attended, slice(6, 21), None) for model in (plain, fast))
            torch.testing.assert_close(answer, expected, rtol=0, atol=error)
        assert len(calls) == 2 * len(fast.layers)
