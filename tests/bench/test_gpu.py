"""`unmask bench gpu` in miniature: it checks the paths that it times, and records where numbers come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from unmask.bench.gpu import SAMPLERS, GpuSettings, run_gpu
from unmask.bench.gpu_table import table, wrong
from unmask.bench.parts import KINDS, WAITING, kind_of
from unmask.bench.step import CACHES


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return []


@pytest.fixture(scope="module")
def content(out, printed) -> dict:
    return run_gpu(
        GpuSettings(families=["llada"], ways=["recorded", "eager"], small=True), out=out, log=printed.append
    )


@pytest.mark.slow
def test_the_small_run_measures_everything_and_finds_nothing_wrong(content):
    assert content["problems"] == []
    for family in content["families"].values():
        for way in ("eager", "recorded"):
            found = family[way]
            assert found["same_tokens"] == dict.fromkeys(CACHES, 1.0)
            for batch in content["batches"]:
                assert found[f"forward_b{batch}"] > 0
                assert found[f"block_b{batch}"] > 0
                assert all(found[f"step_b{batch}_{cache}"]["ms"] > 0 for cache in CACHES)
                assert found[f"step_b{batch}_none"]["after_ms"] > 0
                assert found[f"step_b{batch}_dual"]["inside_ms"] > 0
            assert list(found["samplers"]) == list(SAMPLERS)
            for row in (*found["samplers"].values(), found["step_b1_none"]):  # a step has a forward in it
                assert 0 < row["forward_ms"] < row["step_ms"]


@pytest.mark.slow
def test_the_file_holds_the_command_the_machine_and_the_numbers(content, out):
    written = json.loads((out / "gpu.json").read_text())
    assert written == json.loads(json.dumps(content))
    assert written["command"].startswith("unmask bench gpu --families llada --ways eager,recorded")
    assert written["machine"]["torch"] == torch.__version__
    assert str(out) not in (out / "gpu.json").read_text()


@pytest.mark.slow
def test_the_parts_of_a_step_are_of_known_kinds_and_drawn(content, out):
    for family in content["families"].values():
        parts = family["eager"]["parts"]
        assert [part["kind"] for part in parts] == [*KINDS, WAITING]
        assert next(part["ms"] for part in parts if part["kind"] == "matrix products") > 0
    assert (out / "gpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_tables_have_a_column_per_way_and_a_row_per_measurement(content, printed):
    shown = table(content)
    assert shown in "\n".join(printed)
    header = next(line for line in shown.splitlines() if line.startswith("| | "))
    assert header == "| | LLaDA-8B eager | LLaDA-8B recorded |"
    assert " - |" not in shown
    assert "| B = 2: GB above the weights per row, no cache: in tensors (taken by torch) |" in shown
    assert "| LLaDA-8B: `less`, recorded |" in shown


@pytest.mark.slow
def test_changed_tokens_and_a_wrong_summary_are_named(content):
    family = content["families"]["llada"]
    broken = {
        "families": {
            "llada": family
            | {
                "recorded": {"same_tokens": {"dual": 0.75}},
                "summary": {"32 rows": family["summary"]["32 rows"] | {"same_ids": False}},
            }
        }
    }
    assert list(wrong(broken)) == [
        "LLaDA-8B, cache dual: recorded forwards changed 25.0% of the tokens",
        "LLaDA-8B, 32 rows: the fused summary differs from the torch path",
    ]


@pytest.mark.slow
def test_parts_that_exceed_the_time_limit_are_left_out_and_reported():
    printed: list[str] = []
    content = run_gpu(
        GpuSettings(families=["dream"], ways=["eager"], small=True, minutes=0.0), log=printed.append
    )
    left_out = content["problems"]
    assert len(left_out) > 5
    assert all("the time given was over" in sentence for sentence in left_out)
    assert all(f"problem: {sentence}" in printed for sentence in left_out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"families": ["gpt"]}, "families must be some of llada, dream; got gpt"),
        ({"ways": []}, "ways must be some of eager, recorded, compiled; got none"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        run_gpu(GpuSettings(**options))


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("_choose", "summary of the logits"),
        ("triton_poi_fused_add_mul_3", "compiled layers and decisions"),
        ("Memcpy DtoH (Device -> Pageable)", "copies"),
        ("void at::native::elementwise_kernel<128, 4>", "other small kernels"),
    ],
)
def test_the_kind_of_a_kernel_follows_from_its_name(kernel, kind):
    assert kind_of(kernel) == kind
