"""`unmask bench cpu` in miniature."""

from __future__ import annotations

import json

import pytest

from unmask.bench.cpu import run_cpu


@pytest.mark.slow
def test_both_samplers_and_their_forwards_are_timed(tmp_path):
    printed: list[str] = []
    content = run_cpu(small=True, out=tmp_path, log=printed.append)
    base, less = (content["samplers"][name] for name in ("base", "less"))
    for spent in (base, less):
        assert 0 < spent["forward_seconds"] < spent["seconds"]
        assert 0 < spent["forwards"] <= spent["steps"]
    assert less["steps"] < base["steps"]
    assert json.loads((tmp_path / "cpu.json").read_text()) == content
    ratio = base["seconds"] / less["seconds"]
    assert f"`less` takes {ratio:.2f} x fewer seconds than `base`." in printed[-1]
