"""Attention to pages says what the torch path says. Without a GPU, Triton interprets the kernel."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from tests.fast.test_blocks import fast, plain  # noqa: E402
from tests.fast.test_kv_pool import alone, mixed, serve  # noqa: E402
from tests.kernels.test_attention import DTYPES, heads  # noqa: E402
from unmask.fast import compile as compiled  # noqa: E402
from unmask.fast import kernels  # noqa: E402
from unmask.fast.kernels import paged_attention  # noqa: E402
from unmask.models.layers import PAGE, Pages, attend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, on inf - inf


def pages(lengths: list[int], queries: int, seed: int) -> tuple[Pages, int]:
    """Rows of these lengths in shuffled pages of one pool, and the pages of the pool."""
    draw = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE) for length in lengths]
    free = (torch.randperm(sum(counts), generator=draw) + 1).tolist()  # page 0 is blank
    table = torch.zeros(len(lengths), max(counts) + 2, dtype=torch.long)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
    first = torch.tensor([length // 3 for length in lengths])
    ends = (
        first[:, None]
        + 1
        + torch.randint(0, 10**6, (len(lengths), queries), generator=draw)
        % (torch.tensor(lengths) - first).clamp(min=1).view(-1, 1)
    )
    ends[:, -1] = torch.tensor(lengths)
    return Pages(table, first, ends), sum(counts) + 1


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 4, 63, 64, 65, 200]), min_size=1, max_size=3),
    groups=st.sampled_from([1, 3, 4]),
    queries=st.sampled_from([1, 4, 8, 33]),
    dtype=st.sampled_from(DTYPES),
    grouped=st.booleans(),
    seed=st.integers(0, 2**30),
)
def test_the_kernel_agrees_with_the_torch_path(lengths, groups, queries, dtype, grouped, seed):
    where, count = pages(lengths, queries, seed)
    query = heads(len(lengths), 2 * groups, queries, 16, seed)
    keys, values = (heads(1, 2, count * PAGE, 16, seed + i)[0].transpose(0, 1) for i in (1, 2))
    parts = [part.to(DEVICE, dtype) for part in (query, keys, values)]
    for side in parts[1:]:  # no query sees a column behind its row, whatever it holds
        side[:PAGE] = 0
        for row, length in enumerate(lengths):
            for column in range(length, -(-length // PAGE) * PAGE):
                side[where.table[row, column // PAGE] * PAGE + column % PAGE] = torch.nan
    with patch.object(paged_attention, "_processors", lambda device: 0 if grouped else 10**9):
        answer = paged_attention.attend(*parts, *(part.to(DEVICE) for part in where), PAGE).float().cpu()
    expected = attend(*(part.float().cpu() for part in parts), where)
    torch.testing.assert_close(answer, expected, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.skipif(DEVICE == "cuda", reason="the kernel takes 16 bits there, which round differently")
def test_a_server_reads_pages_with_it_and_captures_one_shape_for_rows_of_any_length(monkeypatch):
    monkeypatch.setattr(kernels, "attends", lambda weight, size: True)  # interpreted
    model, asked = fast("fast_dllm_v2_tiny"), mixed(8, 3, longest=200)
    model.runner.reads_pages = compiled.use_attention_kernel(model)
    assert serve(model, asked) == alone(plain("fast_dllm_v2_tiny"), asked)
    assert len({key.keys for key in model.runner.captured}) == 1
