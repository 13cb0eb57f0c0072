"""Every recorded trajectory of the block families: the sequence of a row after each step, with and without a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conformance import blocks, golden
from tests.conftest import golden_folders
from unmask.types import ModelInfo


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = golden_folders(metafunc.config)
    runs = [run for run in golden.runs(folders) if run.case["sampler"] in blocks.BUILDERS]
    metafunc.parametrize("run", runs, ids=[golden.label(folders, run) for run in runs])


@pytest.mark.parametrize("cached", [False, True], ids=["whole", "cached"])
def test_every_step_is_the_recorded_one(run: golden.Run, cached: bool) -> None:
    arrays = run.arrays
    made = blocks.replay(run.case["sampler"], run.case["settings"], arrays)
    model = golden.model_in(run.checkpoint)
    info = model.info
    try:
        steps = list(blocks.decoding(model, made, arrays, cached=cached))
        _, canvas = blocks.start(model, made, arrays)
    finally:
        model.info = info  # type: ignore[misc]
    for row, (prompt, start) in enumerate(zip(blocks.prompts(arrays), canvas.starts, strict=True)):
        ours = [step.tokens[row, start:].cpu() for step in steps if step.running[row]]
        theirs = recorded(arrays, row, len(prompt), info)
        expected = blocks.states(theirs, idle_steps=made.idle_steps)
        width = len(expected[0])
        found = blocks.states([state[:width] for state in ours], idle_steps=made.idle_steps)
        first = blocks.states([torch.full((width,), info.mask_id)], idle_steps=False)
        if not made.idle_steps:  # both begin with masks alone
            found, expected = ([s for s in part if s != first[0]] for part in (found, expected))
        assert found[: len(expected)] == expected
        assert len(found) == len(expected)


def recorded(arrays: dict[str, np.ndarray], row: int, prompt: int, info: ModelInfo) -> list[Any]:
    """The generated tokens of a row after each step; a column that is not there yet is a mask."""
    left = arrays["x_init"].shape[1] - arrays["x_steps"].shape[2]
    assert left == 0
    offset = prompt
    if "attention_mask" in arrays or "pad_left" in arrays:
        offset = arrays["prompt_ids"].shape[1]
    states = torch.from_numpy(arrays["x_steps"][:, row, offset:]).long()
    return list(states.masked_fill(states < 0, info.mask_id))
