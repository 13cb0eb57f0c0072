"""When a kernel is used, and how to do without."""

from __future__ import annotations

import pytest
import torch

from unmask.fast.kernels import MOST_CANDIDATES, SWITCH, usable


def test_no_kernel_runs_on_the_cpu():
    assert not usable(torch.zeros(1, 2, 50), 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_uses_kernels_unless_told_otherwise(monkeypatch):
    pytest.importorskip("triton")
    logits = torch.zeros(1, 2, 50, device="cuda")
    assert usable(logits, 8)
    assert not usable(logits, MOST_CANDIDATES + 1)
    assert not usable(logits.double(), 8)
    monkeypatch.setenv(SWITCH, "0")
    assert not usable(logits, 8)
