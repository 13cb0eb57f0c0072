"""The parts of a split product add up to the product. Without a GPU, Triton interprets the kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from tests.conftest import GOLDENS  # noqa: E402
from unmask.fast import compile as compiled  # noqa: E402
from unmask.fast import split_products  # noqa: E402
from unmask.fast.kernels.product import fits, product  # noqa: E402
from unmask.fast.split_products import SPLITS, can_split, split_product  # noqa: E402
from unmask.models import load  # noqa: E402

# the interpreter has no products of bfloat16
DTYPES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]


def matrices(n: int, size: int, inner: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(rows, inner, generator=generator) for rows in (n, size))
    return x.to(DEVICE, dtype), (weight / inner**0.5).to(DEVICE, dtype)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 64),
    size=st.sampled_from([64, 192]),
    steps=st.integers(1, 3),
    cut=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**30),
)
def test_the_kernels_pieces_are_the_products_of_parts(n, size, steps, cut, dtype, seed):
    x, weight = matrices(n, size, 128 * cut * steps, dtype, seed)
    assert fits(x, weight, cut)
    parts = zip(*(t.float().cpu().chunk(cut, -1) for t in (x, weight)), strict=True)
    expected = torch.stack([left @ right.T for left, right in parts])
    torch.testing.assert_close(product(x, weight, cut).cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [1, 20, 64])
def test_the_kernel_multiplies_few_columns(n):
    x, weight = matrices(n, 128, 256, DTYPES[0])
    assert fits(x, weight, SPLITS)
    expected = x.float() @ weight.float().T
    torch.testing.assert_close(product(x, weight, SPLITS).sum(0), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("n", "size", "inner"), [(65, 64, 256), (64, 65, 256), (64, 64, 192)], ids=["columns", "outputs", "inner"]
)
def test_what_does_not_fit_the_kernel_is_left_to_the_library(n, size, inner):
    x, weight = matrices(n, size, inner, torch.float16)
    assert not fits(x, weight, SPLITS)
    expected = (x.float() @ weight.float().T)[None].cpu()
    torch.testing.assert_close(split_product(x[None], weight).sum(0).cpu(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [40, 70])
def test_pieces_keep_the_shape_of_their_rows_and_add_up(n, dtype):
    x, weight = matrices(2 * n, 64, 256, dtype)
    parts = split_product(x.view(2, n, 256), weight)
    assert parts.shape == (SPLITS, 2, n, 64)
    assert parts.dtype == torch.float32
    torch.testing.assert_close(
        parts.sum(0).cpu(), (x.float() @ weight.float().T).view(2, n, 64).cpu(), rtol=0, atol=1e-3
    )


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU gains by it")
def test_nothing_is_cut_where_nothing_is_gained():
    assert not can_split(matrices(1, 64, 256, torch.float16)[1])


@pytest.mark.parametrize("family", ["llada_tiny", "dream_tiny"])
def test_a_model_gives_the_same_logits_with_products_cut_up_to_a_number_of_columns(monkeypatch, family):
    dtype, error = ("float16", 0.1) if DEVICE == "cuda" else ("float32", 1e-4)  # after some layers
    plain, fast = (load(str(GOLDENS / family), device=DEVICE, dtype=dtype) for _ in range(2))
    calls: list[int] = []
    monkeypatch.setattr(compiled, "split_product", lambda *given: calls.append(1) or split_product(*given))
    monkeypatch.setattr(compiled, "can_split", lambda weight: True)
    monkeypatch.setattr(split_products, "UNIT", 1)
    monkeypatch.setattr(compiled, "MAX_SPLIT", 3 * 21)
    compiled.use_split_products(fast)
    for columns in (21, 22):
        tokens = torch.randint(5, 50, (3, columns), generator=torch.Generator().manual_seed(0)).to(DEVICE)
        expected, answer = (model(tokens, None, slice(6, 21), None) for model in (plain, fast))
        torch.testing.assert_close(answer, expected, rtol=0, atol=error)
        assert len(calls) == 2 * len(fast.layers)
