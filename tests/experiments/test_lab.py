from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from threading import Event, Timer
from time import sleep

import pytest
from safetensors.torch import load_file, save_file

from unmask import LESS, compile
from unmask.evals import get_task
from unmask.evals.run import Progress, evaluate_samples
from unmask.experiments import get_experiment
from unmask.experiments.audit import audit
from unmask.experiments.lab import Lab, LabSettings
from unmask.experiments.methods import base
from unmask.experiments.overlap import DevicePool
from unmask.experiments.parallel import make_runs
from unmask.experiments.store import ENDING, Store, from_columns, to_columns
from unmask.fast import load as loading
from unmask.models.checkpoint.hub import SHIPPED
from unmask.samplers import SAMPLERS
from unmask.text.generate import generate

ROOT = Path(__file__).parents[2]


def run_of(lab, sampler=None, task="mini-gsm8k", **settings):
    return lab.run(lab.models[0], task, sampler or LESS(), **settings)


def test_a_run_is_made_once_and_then_read(make_lab):
    lab = make_lab()
    [first] = lab.results([run_of(lab), run_of(lab)]).values()
    again = make_lab(records_only=True)
    [second] = again.results([run_of(again)]).values()
    assert first == second
    assert [file.name.endswith(ENDING) for file in lab.store.path.rglob("*") if file.is_file()] == [True]


def test_a_packed_run_is_not_made_again(make_lab):
    lab = make_lab()
    run = run_of(lab)
    made = lab.result(run)
    assert lab.store.pack() == 1
    again = make_lab(records_only=True)
    assert again.result(run) == made


def test_a_record_holds_the_lines_that_an_evaluation_writes(make_lab, tmp_path):
    lab = make_lab()
    run = run_of(lab)
    kept = lab.result(run)
    samples = lab.samples(run.task)
    evaluate_samples(
        lab.model(run.model),
        get_task(run.task),
        samples,
        run.sampler,
        run.config,
        out=tmp_path / "plain",
        batch_size=2,
    )
    plain = from_columns(to_columns(tmp_path / "plain"))
    assert plain.records == kept.records
    assert plain.configuration == kept.configuration


def test_a_stopped_run_resumes_where_it_stopped(make_lab):
    lab = make_lab(limit=8, batch_size=1)

    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.result(run_of(lab), stop)
    resumed = []
    again = make_lab(limit=8, batch_size=1)
    outcome = again.result(run_of(again), lambda progress: resumed.append(progress.resumed))
    assert resumed[0] == 2
    undisturbed = make_lab(limit=8, batch_size=1, out=lab.settings.out / "other")
    assert outcome.records == undisturbed.result(run_of(undisturbed)).records


class Overlapping(Lab):
    """A lab that scores runs while others decode, as on a GPU."""

    def _workers(self, model: str) -> int:
        return 3


def test_overlapping_runs_have_the_records_of_sequential_runs(make_lab, tmp_path):
    lab = make_lab()
    runs = [
        run_of(lab, sampler, task, length=16)
        for sampler in (LESS(), base("llada"))
        for task in lab.tasks(lab.models[0])
    ]
    seen = []
    beside = Overlapping(replace(lab.settings, out=tmp_path / "beside"))
    found = beside.results(runs, lambda done, total, run, state: seen.append((run, state.done)))
    assert list(found) == runs
    assert [one.records for one in found.values()] == [one.records for one in lab.results(runs).values()]
    assert {(run, 2) for run in runs} <= set(seen)


def test_stopped_overlapping_runs_resume_where_they_stopped(make_lab, tmp_path):
    lab = make_lab(limit=6, batch_size=1)
    runs = [run_of(lab, LESS(max_jsd=0.01 * place), length=16) for place in range(4)]

    def stop(done, total, run, state) -> None:
        if run == runs[0] and state.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Overlapping(lab.settings).results(runs, stop)
    assert not all(lab._kept(run) for run in runs)
    undisturbed = make_lab(limit=6, batch_size=1, out=tmp_path / "other")
    resumed = lab.results(runs)
    assert [one.records for one in resumed.values()] == [
        one.records for one in undisturbed.results(runs).values()
    ]


def test_a_small_model_is_loaded_once(tmp_path):
    lab = Lab(LabSettings(models=("mini-llada", "mini-dream"), out=tmp_path, device="cpu"))
    first = lab.model("mini-llada")
    lab.model("mini-dream")
    assert lab.model("mini-llada") is first


def test_a_missing_run_is_named_when_only_records_may_be_used(make_lab):
    lab = make_lab(records_only=True)
    with pytest.raises(ValueError, match=r"lacks .*mini-gsm8k/less-.*--records-only"):
        lab.result(run_of(lab))


def test_records_of_other_weights_are_refused(make_lab, checkpoint, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    lab = make_lab(models=(str(copy),))
    lab.result(run_of(lab))
    file = next(file for file in copy.glob("*.safetensors") if any("ln_f" in key for key in load_file(file)))
    weights = load_file(file)
    save_file({name: tensor + 1 if "ln_f" in name else tensor for name, tensor in weights.items()}, file)
    changed = make_lab(models=(str(copy),))
    with pytest.raises(ValueError, match="other weights"):
        changed.result(run_of(changed))


def test_other_settings_are_another_run(make_lab):
    lab = make_lab()
    names = {
        run.name(2, 1)
        for run in (
            run_of(lab),
            run_of(lab, LESS(max_jsd=0.1)),
            run_of(lab, steps=64),
            run_of(lab, length=64),
        )
    }
    assert len(names) == 4
    assert run_of(lab).name(2, 1) != run_of(lab).name(3, 1)


def test_the_shipped_records_are_found():
    lab = Lab(LabSettings(models=SHIPPED, out=ROOT / "results", records_only=True))
    runs = get_experiment("policy").runs(lab)
    assert len(lab.results(runs.values())) == 32


def test_a_lab_with_a_cache_uses_it_where_an_experiment_chooses_none(make_lab):
    lab = make_lab(cache="prefix", refresh_every=2)
    assert (run_of(lab).config.cache, run_of(lab).config.refresh_every) == ("prefix", 2)
    assert (run_of(lab, cache=None).config.cache, run_of(lab, cache="dual").config.refresh_every) == (
        None,
        None,
    )


def test_compiled_runs_are_kept_beside_the_others(make_lab, monkeypatch):
    monkeypatch.setattr(loading, "compile_model", partial(compile, layers=False))
    plain, compiled = make_lab(), make_lab(compile=True)
    outcomes = [lab.result(run_of(lab)) for lab in (plain, compiled)]
    assert [one.configuration["model"]["compile"] for one in outcomes] == [False, True]
    assert outcomes[0].records == outcomes[1].records
    for lab in (plain, compiled):
        measured = lab.measurement(lab.models[0], "kind", {"a": 1}, lambda lab=lab: lab.settings.compile)
        assert measured is lab.settings.compile


@pytest.mark.parametrize(("limit", "sizes"), [(9, [3, 2, 2, 2]), (8, [2, 2, 2, 2]), (2, [1, 1, 1, 1])])
def test_tasks_share_the_limit(make_lab, limit, sizes):
    lab = make_lab(tasks=("mini-mmlu", "mini-hellaswag", "mini-winogrande", "mini-math"), limit=limit)
    assert [len(lab.samples(task)) for task in lab.settings.tasks] == sizes


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_base_writes_the_same_texts_whether_or_not_it_stops_at_the_end(make_lab, family):
    lab = make_lab(limit=8)
    run = run_of(lab, base(family), length=40)
    full = run_of(lab, base(family), length=40, stop_at_eos=False)
    prompts = [sample.prompt for sample in lab.samples(run.task)]
    model = lab.model(run.model)
    stopped, spent = (generate(model, prompts, one.sampler, one.config) for one in (run, full))
    assert [one.text for one in stopped] == [one.text for one in spent]
    assert {one.steps for one in spent} == {lab.result(run).spending_all().records[0].steps} == {40}
    assert min(one.steps for one in stopped) < 40


@pytest.mark.parametrize("name", ["less", "less-paper", "less-released"])
def test_an_audit_counts_what_the_loop_counts(make_lab, name):
    lab = make_lab()
    run = run_of(lab, SAMPLERS[name], length=40)
    model, samples = lab.model(run.model), lab.samples(run.task)
    trails = audit(model, samples, run.sampler, run.config, batch_size=2)
    answers = generate(model, [sample.prompt for sample in samples], run.sampler, run.config)
    counted = sorted((len(t.commits), sum(t.forced), sum(t.empty), sum(t.commits)) for t in trails)
    assert counted == sorted((a.steps, a.forced_steps, a.empty_steps, a.accepted + a.forced) for a in answers)
    assert all(flip <= seen for t in trails for flip, seen in zip(t.flips, t.watched, strict=True))
    assert any(sum(t.flips) for t in trails)


def test_work_that_waits_for_the_device_does_not_start_after_an_interrupt():
    started, release = [], Event()

    def work(item):
        with pool.device():
            started.append(item)
            if item:
                release.wait(10)

    pool = DevicePool(work, 3)
    results = pool.map([0, 1, 2])
    next(results)
    while len(started) < 2:
        sleep(0.001)
    Timer(0.05, release.set).start()
    results.close()  # an interrupt ends the loop over the results
    assert len(started) == 2


@pytest.mark.slow
def test_an_interrupt_ends_the_processes_of_other_models(make_lab, checkpoint, tmp_path):
    """The third model is not begun, and nothing waits for the second."""
    others = [shutil.copytree(checkpoint, tmp_path / name) for name in ("b", "c")]
    settings = make_lab(tasks=("mini-gsm8k",), limit=1).settings

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_runs(settings, [str(checkpoint), *map(str, others)], ["policy"], 1, interrupt)
    assert not active_children()
    kept = Store(settings.out / "records")
    assert kept.names(str(checkpoint), "mini-gsm8k")
    assert not kept.names(str(others[1]), "mini-gsm8k")
