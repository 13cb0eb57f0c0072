"""A device without float64, such as an Apple GPU, decodes the same tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.decoding.test_blocks import model, prompts
from unmask import Base, GenerationConfig, generate
from unmask.decoding import transfer
from unmask.models.trunk import Trunk
from unmask.serving import Engine, batch

CONFIG = GenerationConfig(max_new_tokens=9, steps=6)


class NoFloat64(TorchDispatchMode):
    """Fails if anything is computed in float64."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        assert all(each.dtype != torch.float64 for each in made), f"{call} computes in float64"
        return out


@pytest.fixture(params=["linear", "dream", "remaining"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Trunk:
    """A model with one of the schedules, whose rows have step budgets of their own."""
    made = model("bd3lm")
    monkeypatch.setattr(made, "info", replace(made.info, schedule=request.param))
    return made


def lose_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU be a device without float64."""
    monkeypatch.setattr(transfer, "WITHOUT_FLOAT64", ("cpu",), raising=False)


def test_a_batch_is_decoded_without_float64(own: Trunk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(own, prompts(3, 3), Base(), CONFIG)
    lose_float64(monkeypatch)
    with NoFloat64():
        assert generate(own, prompts(3, 3), Base(), CONFIG) == expected


def test_a_server_sends_no_float64_to_a_device_without_it(
    own: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [generate(own, [row], Base(), CONFIG)[0] for row in prompts(4, 3)]
    sent: set[torch.dtype] = set()

    def send(tensor: Tensor, device: torch.device) -> Tensor:
        sent.add(tensor.dtype)
        return transfer.to_device(tensor, device)

    monkeypatch.setattr(batch, "to_device", send)
    lose_float64(monkeypatch)
    with Engine(own) as engine:
        jobs = [engine.submit(row, Base(), CONFIG) for row in prompts(4, 3)]
        served = [job.result(20) for job in jobs]
    assert served == expected
    assert torch.float32 in sent
    assert torch.float64 not in sent
