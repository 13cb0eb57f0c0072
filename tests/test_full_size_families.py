"""The benchmark of newer families in miniature on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import families, families_stage, full_size, full_size_stage
from unmask.models import build

BILLIONS = {"sdar": 8.19, "llada-moe": 7.36, "llada2": 16.26}


def in_this_process(call: list[str], **_: object) -> None:
    (families_stage if call[1] == str(families.STAGE) else full_size_stage).main(call[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_is_written_loaded_decoded_and_timed_beside_its_floors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(full_size.subprocess, "run", in_this_process)
    work, out = tmp_path / "work", tmp_path / "out"
    families.main(["--tiny", "--families", name, "--work", str(work), "--out", str(out)])
    assert list(work.iterdir()) == []
    [file] = out.iterdir()
    family = json.loads(file.read_text())["families"][name]
    assert family["problems"] == []
    assert all(run["tokens"] > 0 for run in family["decode"].values())
    assert set(family["same_tokens"].values()) == {1.0}
    for way, floors in family["floors"].items():
        assert family["compiled"][f"forward_{way}_b1"] > 0
        for batch, floor in floors.items():
            assert floor["bytes_ms"] > 0
            assert family["compiled"][f"step_{way}_b{batch}"]["steps"] > 0
    families.main(["--table", str(file)])
    assert capsys.readouterr().out.count(f"| {family['name']} |") >= 2


@pytest.mark.slow
def test_a_family_can_be_timed_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(full_size.subprocess, "run", in_this_process)
    monkeypatch.setattr(families, "TINY_SIZES", families.TINY_SIZES | {"batches": [1], "steps": {"1": 5}})
    out = tmp_path / "out.json"
    families.main(
        ["--tiny", "--in-memory", "--families", "sdar", "--work", str(tmp_path / "work"), "--out", str(out)]
    )
    content = json.loads(out.read_text())
    assert content["command"].endswith("--in-memory")
    family = content["families"]["sdar"]
    assert family["problems"] == []
    assert family["compiled"]["step_append_b1"]["steps"] > 0
    assert not {"write", "load", "decode", "eager"} & set(family)
    assert "SDAR-8B, inside a block" in capsys.readouterr().out


@pytest.mark.parametrize("name", BILLIONS)
def test_the_configs_have_about_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = build(families.FAMILIES[name]["published"])
    assert sum(weight.numel() for weight in model.parameters()) / 1e9 == pytest.approx(
        BILLIONS[name], abs=0.01
    )
