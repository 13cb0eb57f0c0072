"""Calibration without labels: bars are judged by the tokens of the careful rule."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tests.raises import raises_field
from unmask import GenerationConfig, load
from unmask.cli.app import app
from unmask.evals.agreement import Agreement, choose, measure
from unmask.samplers.registry import find_sampler

torch.set_num_threads(1)
PROMPTS = [
    [{"role": "user", "content": text}]
    for text in ("Evaluate 8(x + 4) for x = 6.", "Which of these people is the oldest?\nA. Owen\nB. Tess")
]


def made(bar: float, changed: int) -> Agreement:
    return Agreement(bar, changed, 100, 0.5, 0.0)


def test_the_lowest_bar_within_the_bound_is_chosen_if_all_above_it_are_too():
    bars = [made(0.8, 20), made(0.9, 6), made(0.95, 4), made(0.98, 1), made(0.99, 0)]
    assert choose(bars, 0.05).bar == 0.95
    assert choose(bars, 0.2).bar == 0.8
    assert choose(bars, 0.0).bar == 0.99
    assert choose([made(0.9, 1), made(0.95, 30), made(0.99, 0)], 0.05).bar == 0.99  # 0.9 is luck
    assert choose([made(0.9, 30), made(0.95, 30)], 0.05).bar == 0.95  # none meets the bound
    with raises_field("max_changed", 2):
        choose(bars, 2)


@pytest.fixture(scope="module")
def model():
    return load("mini-llada", device="cpu")


def test_a_higher_bar_commits_less_ahead_and_texts_do_not_depend_on_the_batch(model):
    config = GenerationConfig(max_new_tokens=20)
    found = measure(model, PROMPTS, config, batch_size=2)
    assert [one.texts for one in found] == [2] * len(found)
    early = [one.early for one in found]
    assert early == sorted(early, reverse=True)
    assert 0 < early[-1] < 1
    assert measure(model, PROMPTS, config, batch_size=1) == found
    # a bar of 1 is the careful rule itself, and a bar of 0 takes every first guess
    loose, strict = measure(model, PROMPTS, config, bars=(0.0, 1.0))
    assert loose.changed == 2
    assert strict.changed == 0


def test_a_model_without_an_end_token_is_calibrated_too():
    endless = load("mini-llada", device="cpu")
    endless.info = replace(endless.info, eos_ids=())
    [found] = measure(endless, ["Simplify 6/8."], GenerationConfig(max_new_tokens=8), bars=[0.5])
    assert found.bar == 0.5


def test_prompts_are_needed(model):
    with raises_field("prompts", []):
        measure(model, [], GenerationConfig())


def test_the_command_writes_a_preset_that_other_commands_take(tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "bar.json"
    prompts.write_text("Evaluate 8(x + 4) for x = 6.\n\nSolve x + 1 = 3.\n", encoding="utf-8")
    arguments = ["calibrate", "mini-dream", "--prompts", str(prompts), "--max-new-tokens", "12"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "with only 2 texts" in done.output or "no threshold meets" in done.output
    preset = json.loads(out.read_text(encoding="utf-8"))
    assert preset["sampler"] == "first-mask"
    assert "without labels" in preset["about"]
    assert find_sampler(str(out)).min_confidence == preset["fields"]["min_confidence"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "preset")])
    assert done.exit_code != 0
    assert "must end in .json" in done.output
    done = CliRunner().invoke(app, [*arguments, "-m", "mini-llada"])
    assert done.exit_code == 2
    assert "must be named once" in done.output
