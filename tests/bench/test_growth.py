"""`unmask bench growth` in miniature."""

from __future__ import annotations

import json

import pytest

from unmask.bench.growth import (
    BYTES_PER_SECOND,
    FLOPS_PER_SECOND,
    SMALL,
    Point,
    Range,
    draw,
    run_growth,
    sizes,
)
from unmask.bench.step import SHAPES
from unmask.models import build


@pytest.mark.slow
def test_every_size_is_measured_drawn_and_written(tmp_path):
    printed: list[str] = []
    content = run_growth(way="recorded", small=True, out=tmp_path, log=printed.append)
    assert content["problems"] == []
    assert content == json.loads((tmp_path / "growth.json").read_text())
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    for points in content["families"].values():
        assert [(found["rows"], found["columns"]) for found in points.values()] == list(sizes(SMALL))
        assert all(found["forward_ms"] > 0 and found["step_ms"] > 0 for found in points.values())
    assert "| Dream-7B | 4 | 24 |" in printed[-1]


def test_the_floors_are_the_arithmetic_and_the_weights():
    content = run_growth(families=["llada"], way="eager", small=True, log=lambda _: None)
    found = content["families"]["LLaDA-8B"]["2 x 24"]
    model = build(SHAPES["published"]["llada"] | SHAPES["tiny"]["llada"])
    head = model.head.weight.numel()
    layers = sum(weight.numel() for weight in model.layers.parameters() if weight.dim() == 2)
    attention = 4 * 64 * 24**2 * 2  # two products of queries and keys, or weights and values, in two layers
    flops = 2 * (2 * layers * 24 + attention + 2 * head * 16)
    assert found["compute_floor_ms"] == pytest.approx(flops / FLOPS_PER_SECOND * 1e3)
    weights = sum(weight.nbytes for weight in model.parameters()) - model.embed.weight.nbytes
    assert found["bytes_floor_ms"] == pytest.approx(weights / BYTES_PER_SECOND * 1e3)


def test_at_full_size_cheap_points_come_first_and_each_once():
    wanted = list(sizes(Range()))
    assert len(wanted) == len(set(wanted)) == 13
    assert (wanted[0], wanted[-1]) == ((1, 128), (64, 384))


def test_a_partial_result_is_drawn(tmp_path):
    lone = Point(
        rows=1,
        columns=128,
        forward_ms=1.0,
        step_ms=2.0,
        compute_floor_ms=0.5,
        bytes_floor_ms=0.4,
        tokens_per_second=64_000.0,
    )
    draw({"families": {"LLaDA-8B": {"1 x 128": lone}, "Dream-7B": {}}}, tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()
    with pytest.raises(ValueError, match="nothing was measured"):
        draw({"families": {"LLaDA-8B": {}}}, tmp_path / "none.png")


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="ways must be some of eager, recorded, compiled; got fast"):
        run_growth(way="fast", small=True)
