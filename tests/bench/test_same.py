"""`unmask bench same` in miniature: it counts equal tokens and names the paths that differ."""

from __future__ import annotations

import json

import pytest
import torch

from tests.conftest import GOLDENS
from unmask.bench.same import DTYPES, SAMPLERS, SMALL, WAYS, Check, run_same, wrong
from unmask.models import load

CPU = torch.device("cpu")
UNCOMPILED = [way for way in WAYS if way != "compiled"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada_tiny", "dream_tiny"])
def test_every_way_gives_the_tokens_of_the_plain_one_in_float32(tmp_path, family):
    printed: list[str] = []
    folder = str(GOLDENS / family)
    content = run_same(models=[folder], ways=UNCOMPILED, small=True, out=tmp_path, log=printed.append)
    assert content["problems"] == []
    found = content["models"][family]
    assert found["float32"] == {way: dict.fromkeys(SAMPLERS, 1.0) for way in UNCOMPILED}
    assert all(0 <= share <= 1 for shares in found["bfloat16"].values() for share in shares.values())
    assert list(found["bfloat16"]) == UNCOMPILED
    assert json.loads((tmp_path / "same.json").read_text()) == content
    assert folder not in (tmp_path / "same.json").read_text()
    assert f"| {family}, bfloat16, plain |" in printed[-1]


def test_a_shipped_model_gets_questions_of_different_lengths():
    check = Check("mini-llada", CPU, SMALL)
    canvas = check.canvas(load("mini-llada", device=CPU))
    assert canvas.tokens.shape[0] == SMALL.rows
    assert canvas.attend is not None
    assert len(set(canvas.attend.sum(-1).tolist())) > 1


def test_changed_tokens_are_counted_and_named_in_float32_alone():
    check = Check(str(GOLDENS / "llada_tiny"), CPU, SMALL)
    check.shares("plain", "float32")
    check.expected["float32"]["less"][0, :4] += 1
    shares = check.shares("dual", "float32")
    assert shares == {"base": 1.0, "threshold": 1.0, "klass": 1.0, "less": pytest.approx(1 - 4 / 48)}
    content = {"models": {"tiny": {dtype: {"dual": shares} for dtype in DTYPES}}}
    assert list(wrong(content)) == ["tiny, less, dual: 8.33% of the tokens changed in float32"]


def test_any_dtype_and_sampler_is_compared_with_its_own_plain_path():
    content = run_same(
        models=[str(GOLDENS / "llada_tiny")],
        ways=["dual"],
        dtypes=["int8", "bfloat16"],
        samplers=["less", "wino"],  # wino runs the whole canvas, so no cache
        small=True,
        log=lambda _: None,
    )
    assert content["problems"] == []
    found = content["models"]["llada_tiny"]
    assert found["int8"]["plain"] == {"less": 1.0, "wino": 1.0}  # beside itself
    assert found["int8"]["dual"] == {"less": 1.0}
    assert set(found["bfloat16"]["plain"]) == {"less", "wino"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ways": ["fast"]}, "ways must be some of plain, kernels"),
        ({"models": []}, "--model must name at least one model"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        run_same(small=True, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, some tens
def test_compiled_layers_write_the_plain_tokens_in_float32():
    content = run_same(
        models=[str(GOLDENS / "llada_tiny")], ways=["compiled"], small=True, log=lambda _: None
    )
    assert content["problems"] == []
