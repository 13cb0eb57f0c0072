"""The harness itself: it names what is missing, and needs no more of a set than it compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conformance import golden, references
from tests.conformance.test_trajectories import compare, executed_steps, recorded
from tests.conftest import GOLDENS
from unmask import Base, Options, Prophet
from unmask.types import ModelInfo

FAILED = pytest.fail.Exception
INFO = ModelInfo(vocab_size=512, mask_id=509)


def run(folder: Path = GOLDENS, **changed: Any) -> golden.Run:
    """A run of a case of the project's own set, changed."""
    [case] = [case for case in golden.cases(GOLDENS, "trajectories") if case["case"] == "llada_lowconf_full"]
    return golden.Run(folder, {**case, **changed}, 0)


def test_a_set_may_lack_its_logits_or_its_trajectories(tmp_path: Path) -> None:
    assert golden.runs([tmp_path]) == []
    assert golden.forwards([tmp_path]) == []


def test_a_case_needs_no_statistics_and_may_hold_unknown_fields(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    case = {"case": "new", "file": "new.npz", "n_runs": 2, "colour": "blue"}
    (tmp_path / "trajectories" / "manifest.json").write_text(json.dumps({"cases": [case], "version": 9}))
    arrays = {"r0.x_init": np.zeros((3, 4)), "r1.extra": np.zeros(1)}
    np.savez(tmp_path / "trajectories" / "new.npz", **arrays)
    first, second = golden.runs([tmp_path])
    assert (first.batch, first.quirks) == (3, [])
    assert list(second.arrays) == ["extra"]


def test_cases_of_several_sets_are_told_apart() -> None:
    assert golden.label([GOLDENS], run()) == "llada_lowconf_full-r0"
    assert golden.label([GOLDENS, GOLDENS], run()) == "goldens/llada_lowconf_full-r0"


def test_a_sampler_that_is_missing_is_named() -> None:
    with pytest.raises(FAILED, match="no sampler 'other'"):
        recorded(run(sampler="other"))


def test_a_model_family_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "other_tiny").mkdir()
    config = {"architectures": ["OtherModelLM"], "model_type": "llada"}
    (tmp_path / "other_tiny" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FAILED, match=r"cannot load other_tiny \(OtherModelLM\)"):
        recorded(run(tmp_path, checkpoint="other_tiny"))
    with pytest.raises(FAILED, match=r"no sampler 'other'.*cannot load absent \(no config.json\)"):
        recorded(run(tmp_path, checkpoint="absent", sampler="other"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"colour": "blue"}, "colour"),
        ({"temperature": 0.5}, "temperature=0.5"),
        ({"remasking": "random"}, "remasking='random'"),
    ],
)
def test_a_setting_that_is_missing_is_named(settings: dict[str, Any], named: str) -> None:
    values = {"steps": 4, "gen_length": 4, "block_length": 4, "cfg_scale": None, "unset": None}
    assert references.setup("llada_low_confidence", values, {}, INFO).length == 4
    with pytest.raises(FAILED, match=named):
        references.setup("llada_low_confidence", {**values, **settings}, {}, INFO)


def test_a_pinned_id_above_the_mask_id_is_no_mask() -> None:
    mask, pinned = 509, 511
    steps = np.array([[[7, 1, pinned]], [[7, 1, pinned]]])  # nothing is left for the second step
    arrays = {"prompt_ids": np.array([[7]]), "x_init": np.array([[7, mask, pinned]]), "x_steps": steps}
    setup = references.Setup(Prophet(answer_start=0), Options(), steps=2, length=2)
    assert executed_steps(arrays, setup, mask) == [0]


def test_steps_that_change_nothing_count_only_while_masks_are_left() -> None:
    mask = 509
    steps = np.array([[[7, mask, mask]], [[7, 1, 2]], [[7, 1, 2]]])  # as lucky draws of Dream's origin may be
    arrays = {"prompt_ids": np.array([[7]]), "x_init": steps[0], "x_steps": steps}
    setup = references.Setup(Base(), Options(), steps=3, length=2)
    assert executed_steps(arrays, setup, mask) == [0, 1]


def test_a_recorded_kl_is_compared_tightly_however_large() -> None:
    theirs = torch.tensor([[0.01, 20.0]])
    compare(theirs * (1 + 1e-4), theirs, "kl", 0)
    for off in (torch.tensor([[0.0102, 20.0]]), torch.tensor([[0.01, 20.1]])):
        with pytest.raises(AssertionError, match="kl, step 1"):
            compare(off, theirs, "kl", 0)
