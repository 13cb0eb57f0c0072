"""The benchmark's plain rules agree with the samplers, and the samplers' cost stays in bounds."""

import pytest
import torch

from unmask.bench.plain import PLAIN
from unmask.bench.samplers import best_seconds, main, measure, observation, predictions
from unmask.samplers import make_sampler


@pytest.mark.parametrize("name", PLAIN)
def test_a_sampler_commits_what_its_plain_rule_says(name: str) -> None:
    now, before = predictions(2_000, window=64, device="cpu")
    sampler = make_sampler(name)
    obs = observation(sampler, now, before)
    committed = torch.where(sampler.decide(obs).commit[0])[0].tolist()
    assert set(committed) == PLAIN[name](obs)


def test_a_step_of_less_costs_at_most_a_third_more_than_the_pass_over_the_logits() -> None:
    costs = []
    while min(costs, default=2.0) > 1.3 and len(costs) < 3:  # another process may be at work
        [(_, cost, _)] = measure(126_464, repeat=3, device="cpu", window=32, names=["less"])
        costs.append(cost)
    assert min(costs) <= 1.3, costs


def test_what_is_timed_takes_turns() -> None:
    turns: list[str] = []
    best = best_seconds([lambda: turns.append("unit"), lambda: turns.append("rule")], 2, "cpu")
    assert turns == ["unit", "rule"] * 3
    assert all(0 < taken < 1 for taken in best)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda:99"), "device 'cuda:99' is not available on this machine"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--repeat", "0"), "--repeat must be a whole number >= 1"),
    ],
)
def test_wrong_use_ends_in_one_sentence(monkeypatch, capsys, arguments, words) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "samplers", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.out) == (2, "")
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
