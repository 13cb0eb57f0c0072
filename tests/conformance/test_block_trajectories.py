"""Every recorded trajectory of the block families: each row after each step, with and without a cache."""

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
    released = model.info
    try:
        steps = list(blocks.decoding(model, made, arrays, cached=cached))
        _, canvas = blocks.start(model, made, arrays)
        info = model.info
    finally:
        model.info = released  # type: ignore[misc]
    for row, (prompt, start) in enumerate(
        zip(blocks.prompts(arrays, info.pad_id), canvas.starts, strict=True)
    ):
        ours = [step.tokens[row, start:].cpu() for step in steps if step.running[row]]
        theirs = recorded(arrays, row, prompt, info)
        width = min(made.length, len(theirs[0]) - bool(made.grid and made.grid.first_alone))
        found, expected = (
            blocks.states([state[:width] for state in states], idle_steps=made.idle_steps)
            for states in (ours, theirs)
        )
        if not made.idle_steps:  # a reference may begin with a step for other rows, or with one not counted
            begin = recorded(arrays, row, prompt, info, "x_init")[0][:width].tolist()
            blank = [info.mask_id] * width
            found, expected = (
                [state for state in part if state not in (begin, blank)] for part in (found, expected)
            )
        if made.quits_late and len(found) < len(expected):
            end = next(i for i, token in enumerate(found[-1]) if token in info.eos_ids)
            assert all(state[: end + 1] == found[-1][: end + 1] for state in expected[len(found) :])
            expected = expected[: len(found)]
        assert found == expected


def recorded(
    arrays: dict[str, np.ndarray], row: int, prompt: list[int], info: ModelInfo, name: str = "x_steps"
) -> list[Any]:
    """The generated tokens of a row after each step; a column that is not there yet is a mask."""
    tokens = arrays["x_init"][row].tolist()
    first = next(column for column in range(len(tokens)) if tokens[column : column + len(prompt)] == prompt)
    states = torch.from_numpy(
        arrays[name].reshape(-1, *arrays["x_init"].shape)[:, row, first + len(prompt) :]
    ).long()
    return list(states.masked_fill(states < 0, info.mask_id))
