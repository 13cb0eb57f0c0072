"""The benchmark's plain rules agree with the samplers, and the samplers' cost stays in bounds."""

import pytest
import torch

from unmask.bench.plain import PLAIN
from unmask.bench.samplers import measure, observation, predictions
from unmask.samplers import make_sampler


@pytest.mark.parametrize("name", PLAIN)
def test_a_sampler_commits_what_its_plain_rule_says(name: str) -> None:
    now, before = predictions(2_000, window=64, device="cpu")
    sampler = make_sampler(name)
    obs = observation(sampler, now, before)
    committed = torch.where(sampler.decide(obs).commit[0])[0].tolist()
    assert set(committed) == PLAIN[name](obs)


def test_a_step_of_less_costs_at_most_a_third_more_than_the_pass_over_the_logits() -> None:
    costs = {name: ours for name, ours, _ in measure(126_464, repeat=3, device="cpu", window=32)}
    assert costs["less"] <= 1.3
