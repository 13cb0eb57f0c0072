from __future__ import annotations

import pytest

from unmask import LESS, make_sampler
from unmask.experiments import get_experiment
from unmask.experiments.caching import CACHES, allowed
from unmask.experiments.shadow import Shadowed, Sight, watch
from unmask.samplers import Base
from unmask.text.config import GenerationConfig
from unmask.text.generate import generate


@pytest.mark.parametrize("order", ["confidence", "entropy"])
def test_a_watching_rule_changes_nothing(make_lab, order):
    lab = make_lab()
    model, prompts = lab.model(lab.models[0]), [sample.prompt for sample in lab.samples("mini-gsm8k")]
    config = GenerationConfig(max_new_tokens=32, block_length=16)
    alone, watched = (
        generate(model, prompts, sampler, config)
        for sampler in (Base(order=order), Shadowed(Base(order=order)))
    )
    assert [one.token_ids for one in alone] == [one.token_ids for one in watched]


def test_a_sight_counts_the_positions_that_a_step_could_compare(make_lab):
    lab = make_lab()
    config = GenerationConfig(max_new_tokens=8, block_length=4, stop_at_eos=False)
    found = watch(lab.model(lab.models[0]), lab.samples("mini-gsm8k"), Base(), config, batch_size=2)
    for sight in map(lambda kept: Sight(**kept), found):
        assert sight.positions == 2 * (3 + 2 + 1)  # of each block of four, all but the first step
        assert 0 <= sight.ready <= sight.positions
        assert 0 <= sight.changed <= sight.positions
        assert 0 < sight.share("jsd") < 0.7
        assert 0 < sight.share("confidence") <= 1


def test_only_samplers_that_stay_in_their_block_run_with_the_dual_cache():
    assert not allowed(make_sampler("klass"), "dual")
    assert allowed(make_sampler("klass"), "prefix")
    assert all(allowed(LESS(), cache) for cache in CACHES)


@pytest.mark.slow
def test_the_report_has_a_row_per_method_and_cache_and_says_what_is_refused(make_lab):
    lab = make_lab(tasks=("mini-gsm8k",), limit=1)
    report, _ = get_experiment("cache").make(lab)
    summary = report.tables[0]
    rows = [row[:2] for row in summary.rows]
    assert len(rows) == 4 * 3 - 1
    assert ("KLASS", "dual") not in rows
    assert ("LESS", "dual") in rows
    assert "KLASS has no row with the dual cache" in report.notes[0]
    assert {line["method"] for line in summary.data} == {", ".join(row) for row in rows}
    assert all(line["seconds"] > 0 for line in summary.data)
    assert [row[1] for row in report.tables[-1].rows] == list(CACHES)
